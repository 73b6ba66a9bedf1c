"""The operator API under `/api`: what the dashboard is drawn from, and what people and programs act by.

`status` says how things are, `overview` gives numbers, `tasks` pages and single tasks, `acts` changes them, `groups` the failure causes, `searches` text
search in the background, `previews` the timeline of a policy, `audit` who did what, `alarms` what needs attention, `gates` what
stands in front of destinations, `effects` of which nobody knows whether they happened, `operations` brings dead tasks back step by step, `workers` who works.
"""

from redrive.web.api import (
    acts,
    alarms,
    audit,
    effects,
    gates,
    groups,
    operations,
    overview,
    previews,
    searches,
    status,
    tasks,
    workers,
)

# `acts` before `tasks`: `/api/tasks/redrive` does not name a ledger.
routers = (
    status.router, overview.router, groups.router, acts.router, tasks.router, searches.router, previews.router, audit.router, alarms.router,
    gates.router, effects.router, operations.router, workers.router,
)  # fmt: skip
