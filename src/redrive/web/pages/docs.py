"""The API, described by itself: `/openapi.json` as Swagger UI shows it, with the files of an installed package."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from redrive.web.pages.frame import POLICY, Looker, page_router, render
from redrive.web.pages.static import SWAGGER_VERSION

ICONS = POLICY.replace("img-src 'self'", "img-src 'self' data:")
"""Swagger UI draws its icons from its style sheet. Scripts and styles come from our own files, as everywhere."""

router = page_router()


@router.get("/docs", response_class=HTMLResponse)
async def docs(request: Request, visitor: Looker) -> HTMLResponse:
    """The page."""
    page = render(request, "docs.html", visitor, title="API", swagger_version=SWAGGER_VERSION)
    page.headers["Content-Security-Policy"] = ICONS
    return page
