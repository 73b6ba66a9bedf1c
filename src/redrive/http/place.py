"""Where the web application is: at the root of its host, or under a path of somebody else's.

Whoever mounts it says the path in `root_path` of the scope, as ASGI wants it. Routes, pages and scripts know their own paths alone; what
leaves for a browser gets the root here: links of a page where it is rendered, addresses of redirects, the paths of cookies.
"""

import re
from collections.abc import Mapping
from typing import Any

from markupsafe import escape
from starlette.requests import Request

_LINK = re.compile(r'(?<=[\s<])(href|src|action)="/(?!/)')
"""A link to a path of ours. Nothing that a task brings along can look like it: its quotation marks are escaped."""


def root_of(request: Request) -> str:
    """The path that the host has put us under: empty, or one without a slash at its end."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def own_path(scope: Mapping[str, Any]) -> str:
    """The path that is asked for, as our routes know it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and f"{path}/".startswith(f"{root}/") else path


def with_root(page: str, root: str) -> str:
    """A page whose links lead to our paths where they are."""
    return _LINK.sub(lambda link: f'{link[1]}="{escape(root)}/', page) if root else page
