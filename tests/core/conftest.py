"""Properties have no time limit per example: a slow machine is not a wrong answer."""

from hypothesis import settings

settings.register_profile("core", deadline=None, print_blob=True)
settings.load_profile("core")
