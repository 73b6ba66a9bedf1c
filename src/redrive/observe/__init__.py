"""Observers: what everyone sees. Each takes groups of facts after they happened; none may raise or wait."""
