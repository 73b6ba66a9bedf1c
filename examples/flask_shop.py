"""A shop in Flask, with an application factory: `flask --app examples.flask_shop run`, and `flask --app examples.flask_shop redrive worker`.

`docs/guides/flask.md` walks through it.
"""

import sqlite3
from contextlib import closing

from flask import Flask, current_app

from redrive import Task
from redrive.flask import FlaskRedrive

jobs = FlaskRedrive()


@jobs.handler(retries=3, wait=0)
def send_invoice(task: Task[int]) -> None:
    """Runs in the worker, in the context of the application."""
    if task.failures == 0:
        raise ConnectionError("mail server down")
    current_app.config["SENT"].append(task.payload)


def create_app(file: str = "shop.db") -> Flask:
    """The factory."""
    app = Flask(__name__)
    app.config.update(REDRIVE_URL=f"sqlite:///{file}", SENT=[])
    jobs.init_app(app)

    @app.post("/orders/<int:number>")
    def order(number: int) -> dict[str, bool]:
        with closing(sqlite3.connect(file)) as shop, shop:
            shop.execute("CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY)")
            shop.execute("INSERT INTO orders VALUES (?)", [number])
            jobs.add(send_invoice, number, key=f"invoice-{number}", within=shop)
            if number == 13:
                shop.rollback()
                return {"taken": False}
        return {"taken": True}

    return app
