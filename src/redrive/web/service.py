"""From a request to the service that it is for."""

from fastapi import Request

from redrive.wiring import Service


def service_of(request: Request) -> Service:
    """The service that the request is for."""
    service: Service = request.app.state.service
    return service
