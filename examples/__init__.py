"""Applications to try redrive with, and the demo."""
