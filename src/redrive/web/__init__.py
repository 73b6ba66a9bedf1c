"""The service over HTTP: health, metrics, the operator API and its pages.

`app` puts it together, `session` lets people in, `health` is for machines that watch, `api` for programs and for the scripts of
`pages`. What every request goes through is in `redrive.http`.
"""

from redrive.errors import needs_extra
from redrive.parts import require_room

with needs_extra("the service", "service"):
    require_room(__name__, "app")
    import fastapi as fastapi
