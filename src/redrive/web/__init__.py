"""The service over HTTP: health, metrics, the operator API and its pages.

`app` puts it together, `session` lets people in, `health` is for machines that watch, `api` for programs and for the scripts of
`pages`. What every request goes through is in `redrive.http`.
"""

from redrive.errors import needs_extra

with needs_extra("the service", "service"):
    import fastapi as fastapi
