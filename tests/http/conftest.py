"""A service as the pages have it, and somebody outside whom it calls."""

from tests.systems.triggers.conftest import receiver
from tests.web.conftest import app, local, remote, service

__all__ = ["app", "local", "receiver", "remote", "service"]
