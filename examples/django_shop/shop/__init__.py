"""The app with the shop's models and tasks."""
