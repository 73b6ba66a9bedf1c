"""The pages of the service, rendered here: what they show first is in the HTML, scripts only keep it fresh and act.

`frame` renders and says who looks, `static` serves what pages load, and each page has its own file: `overview` (of `verdict`), `tasks`,
`task` (drawn by `timeline`), `dead`, `causes`, `kinds`, `operations` (drawn by `operation_picture`), `effects`, `gates` (drawn by `gate_strip`), `workers`, `charts` (`widgets`, drawn by `drawing`), `audit`, `systems`, `login`. What people do goes through the API alone.
"""

from redrive.web.pages import (
    audit,
    causes,
    charts,
    dead,
    docs,
    effects,
    gates,
    kinds,
    login,
    operations,
    overview,
    static,
    systems,
    task,
    tasks,
    workers,
)

PAGES = (
    static.router, login.router, overview.router, tasks.router, task.router, dead.router, causes.router, kinds.router, operations.router, gates.router, effects.router, workers.router, charts.router, systems.router, audit.router,
    docs.router,
)  # fmt: skip
"""The routers of all pages."""
