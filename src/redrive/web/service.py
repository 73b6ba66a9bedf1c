"""From a request to the service that it is for."""

from fastapi import Request

from redrive.running import Running, Service


def running_of(request: Request) -> Running:
    """The application at work that the request is for: in a service, or in a worker that is asked for its figures."""
    running: Running = request.app.state.service
    return running


def service_of(request: Request) -> Service:
    """The service that the request is for."""
    service: Service = request.app.state.service
    return service
