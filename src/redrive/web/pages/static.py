"""What pages load: our style sheets and scripts, and those of Swagger UI from its package. Nothing comes from elsewhere."""

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response

from redrive.http.errors import ApiError

STATIC = Path(__file__).parent.parent / "static"
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
SWAGGER_VERSION = version("fastapi-swagger")
PACKAGED = {
    "swagger-ui.js": ("fastapi_swagger", "resources/swagger-ui-bundle.js", SWAGGER_VERSION),
    "swagger-ui.css": ("fastapi_swagger", "resources/swagger-ui.css", SWAGGER_VERSION),
}
"""Files of installed packages: where they are, and their version."""
COMPRESSED_FROM_BYTES = 1024
FOR_EVER = "public, max-age=31536000, immutable"
"""For an address that names its version."""
ASK_AGAIN = "public, no-cache"
"""Kept, but asked for each time whether it is still the same: a new release shows at once."""

router = APIRouter(tags=["pages"], include_in_schema=False)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file, as it is and compressed."""

    type: str
    tag: str
    plain: bytes
    compressed: bytes | None


@cache
def _listed() -> frozenset[str]:
    return frozenset({*PACKAGED, *(path.name for path in STATIC.iterdir() if path.suffix in TYPES)})


@cache
def _read(name: str) -> StaticFile:
    if name in PACKAGED:
        package, path, _ = PACKAGED[name]
        plain = files(package).joinpath(path).read_bytes()
    else:
        plain = (STATIC / name).read_bytes()
    compressed = gzip.compress(plain, 6, mtime=0) if len(plain) >= COMPRESSED_FROM_BYTES else None
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return StaticFile(TYPES[Path(name).suffix], tag, plain, compressed)


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """One of the listed files. Some are large: each is read and compressed once, beside the loop."""
    if name not in _listed():
        raise ApiError(404, "not_found", f"there is nothing at /static/{name}")
    file = await asyncio.to_thread(_read, name)
    lasts = name in PACKAGED and request.query_params.get("v") == PACKAGED[name][2]
    headers = {"Cache-Control": FOR_EVER if lasts else ASK_AGAIN, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, media_type=file.type, headers=headers | {"Content-Encoding": "gzip"})
    return Response(file.plain, media_type=file.type, headers=headers)
