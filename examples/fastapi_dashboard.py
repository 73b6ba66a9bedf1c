"""An application with a login of its own, and the dashboard of its tasks under `/ops/redrive`: `uvicorn examples.fastapi_dashboard:web`.

Log in as ada, who may act, or as bob, who may look. `docs/guides/dashboard.md` walks through it.
"""

import secrets
from typing import Annotated

from fastapi import FastAPI, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from redrive import PermanentError, Redrive, Task
from redrive.asgi import lifespan
from redrive.dashboard import Dashboard, Person

STAFF = {"ada": Person("ada", "operator"), "bob": Person("bob", "viewer")}
FORM = '<form method="post"><input name="name" aria-label="Name"><button>Log in</button></form>'


def build(file: str) -> tuple[FastAPI, Redrive]:
    """The web application over a SQLite file, and the tasks that it shows."""
    app = Redrive(f"sqlite:///{file}")
    logged_in: dict[str, str] = {}

    @app.handler(retries=3, wait=0)
    async def send_invoice(task: Task[int]) -> None:
        if task.payload == 13:
            raise PermanentError("invoice 13 does not exist")

    def who(request: Request) -> Person | None:
        return STAFF.get(logged_in.get(request.cookies.get("shop_session", ""), ""))

    dashboard = Dashboard("/ops/redrive", who=who, login="/login")
    web = FastAPI(lifespan=lifespan(app, work=True, dashboard=dashboard))
    web.mount(dashboard.path, dashboard)

    @web.get("/login")
    async def form() -> HTMLResponse:
        return HTMLResponse(FORM)

    @web.post("/login")
    async def login(name: Annotated[str, Form()], next: str = dashboard.path + "/") -> RedirectResponse:
        # A password would be checked here; and nobody is sent to another host.
        answer = RedirectResponse(next if next.startswith(dashboard.path) else dashboard.path + "/", status_code=303)
        logged_in[token := secrets.token_urlsafe()] = name
        answer.set_cookie("shop_session", token, httponly=True, samesite="lax")
        return answer

    @web.post("/invoices/{number}")
    async def send(number: int) -> None:
        await app.add(send_invoice, number, key=f"invoice-{number}")

    return web, app


web, app = build("shop.db")
