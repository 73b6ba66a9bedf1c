"""Unknown effects by the API and on their page: listed with all that is known, answered with who and why."""

from collections.abc import AsyncIterator

import pytest

from redrive import Context, Task
from redrive.core.states import State
from redrive.effects import CannotTell, Effect
from redrive.testing import VirtualClock, drain
from tests.web.standing import Standing, standing


@pytest.fixture
async def web(url: str, clock: VirtualClock) -> AsyncIterator[Standing]:
    """A service that stands still, with two payments that a person must answer."""

    async def was_paid(_task: Task) -> CannotTell:
        return CannotTell("the bank is <b>closed</b>")

    async with standing(url, clock) as made:

        @made.app.handler("pay", effect=Effect(was_paid))
        async def pay(_task: Task, context: Context) -> None:
            async with context.effect():
                await context.progress(0.5, "half <b>way</b>")
                raise TimeoutError("no answer")

        for key in ("a", "b"):
            await made.app.add("pay", key=key)
        await drain(made.app, clock=clock)
        yield made


async def test_a_person_answers(web: Standing) -> None:
    """Listed, shown with its task, answered once; what nobody is asked about is left alone."""
    listed = await web.get("/api/effects")
    assert [(one["task"]["key"], one["needs_person"]) for one in listed["effects"]] == [("a", True), ("b", True)]
    first = await web.get("/api/effects", limit=1)
    rest = await web.get("/api/effects", limit=1, cursor=first["cursor"])
    assert [one["task"]["key"] for one in rest["effects"]] == ["b"]
    shown = await web.get("/api/tasks/redrive_task/a")
    assert (shown["effect"]["state"], shown["effect"]["probes"]) == ("person", 1)
    assert (shown["progress"]["share"], shown["progress"]["words"]) == (0.5, "half <b>way</b>")
    body = {"ids": ["a"], "answer": "happened", "reason": "it is in the books"}
    assert (await web.post("/api/effects/answer", body))["changed"] == 1
    again = await web.post("/api/effects/answer", body)
    assert (again["changed"], [*again["refused"].values()]) == (0, ["no person is asked whether its effect happened"])
    task = await web.app.tasks.get("a")
    assert task is not None
    assert task.state is State.DONE
    asked = await web.post("/api/tasks/cancel-running", {"ids": ["b"], "reason": "x"})
    assert (asked["changed"], [*asked["refused"].values()]) == (0, ["it does not run now"])


async def test_the_page_shows_what_is_known_and_what_may_be_answered(web: Standing) -> None:
    """Escaped, with a button for each answer for whoever may act; and the task's own page says the same."""
    entered = await web.local.post("/login", data={"key": web.secrets["operator"], "next": "/effects"})
    assert entered.status_code == 200
    page = (await web.local.get("/effects")).text
    assert page.count('data-act="happened"') == 2
    assert "the bank is &lt;b&gt;closed&lt;/b&gt;" in page
    assert "TimeoutError: no answer" in page
    task = (await web.local.get("/tasks/redrive_task/a")).text
    assert all(f'data-act="{name}"' in task for name in ("happened", "not-happened", "close"))
    assert 'data-act="redrive"' not in task
    assert "half &lt;b&gt;way&lt;/b&gt;" in task
    assert "Nobody knows whether its effect happened" in task
