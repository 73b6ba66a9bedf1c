"""The extension for Flask: each application has tasks of its own, and handlers know which one they run in."""

import asyncio

from flask import Flask, current_app

from redrive import Task
from redrive.flask import FlaskRedrive
from redrive.testing import drain, temporary_url


def made(jobs: FlaskRedrive, name: str) -> Flask:
    """An application with a database of its own."""
    app = Flask(name)
    app.config["REDRIVE_URL"] = temporary_url()
    jobs.init_app(app)
    return app


async def worked(app: Flask) -> None:
    """All that is due, done."""
    async with app.extensions["redrive"] as redrive:
        await drain(redrive)


def test_each_application_has_its_own_tasks() -> None:
    """Handlers may be named before and after it is made, plain and async, and see the application that they run in."""
    jobs, seen = FlaskRedrive(), list[tuple[str, str]]()

    @jobs.handler
    def early(task: Task) -> None:
        seen.append((current_app.name, task.key))

    one, two = made(jobs, "one"), made(jobs, "two")

    @jobs.handler("late.*", retries=0)
    async def late(task: Task) -> None:
        seen.append((current_app.name, task.key))

    for app in (one, two):
        with app.app_context():
            jobs.add(early, key=f"early-{app.name}")
            jobs.add("late.one", key=f"late-{app.name}")
    for app in (one, two):
        asyncio.run(worked(app))
    assert sorted(seen) == [("one", "early-one"), ("one", "late-one"), ("two", "early-two"), ("two", "late-two")]


def test_the_command_line_has_a_group() -> None:
    """`flask redrive worker` and `flask redrive migrate`."""
    said = made(FlaskRedrive(), "one").test_cli_runner().invoke(args=["redrive", "--help"])
    assert "worker" in said.output
    assert "migrate" in said.output
