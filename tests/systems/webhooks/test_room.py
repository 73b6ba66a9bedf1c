"""The room of the queue: when it is counted, and when what was counted before will do."""

from typing import Any

import pytest

from redrive import Filter, PermanentError, Task
from redrive.systems.webhooks import Webhooks
from redrive.testing import drain

from .conftest import Make, execute

pytestmark = pytest.mark.parametrize("store", ["sqlite"], indirect=True)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What each count of any queue came to."""
    from redrive.systems.webhooks.room import Room

    counts: list[int] = []
    due = Room.due

    def note(room: Room, connection: Any, counted_max: int) -> int:
        counts.append(due(room, connection, counted_max))
        return counts[-1]

    monkeypatch.setattr(Room, "due", note)
    return counts


async def take(webhooks: Webhooks, *keys: str) -> list[bool]:
    return [await webhooks.accept("a", {}, idempotency_key=key) is not None for key in keys]


async def test_a_queue_with_room_is_not_counted_again(make: Make, counted: list[int]):
    """What this process stores itself is known, and leaves no doubt for long."""
    _, webhooks = make(queue_maxsize=1000)
    assert await take(webhooks, *(f"k{number}" for number in range(20))) == [True] * 20
    assert counted == [0]


async def test_it_is_counted_where_it_may_be_full(make: Make, counted: list[int]):
    """The last place is found and given away, and not one more."""
    _, webhooks = make(queue_maxsize=5)
    assert await take(webhooks, *(f"k{number}" for number in range(8))) == [True] * 6 + [False] * 2
    assert counted[-1] == 6


async def test_what_another_process_stores_is_seen(make: Make, counted: list[int]):
    """Somebody else has written to the file: nobody knows what, so it is counted."""
    (_, ours), (_, theirs) = make(queue_maxsize=200), make(queue_maxsize=200)
    assert await take(ours, "k0", "k1") == [True, True]
    assert await take(theirs, *(f"t{number}" for number in range(3))) == [True] * 3
    assert counted == [0, 2]
    assert await take(ours, "k2", "k3") == [True, True]
    assert counted == [0, 2, 5]


async def test_what_comes_back_in_this_process_takes_its_place(make: Make, counted: list[int]):
    """Dead webhooks that are redriven fill the queue, as new ones do."""
    app, webhooks = make(queue_maxsize=5)

    @webhooks.handler("a")
    async def fail(task: Task) -> None:
        raise PermanentError("never")

    assert await take(webhooks, *(f"k{number}" for number in range(4))) == [True] * 4
    await drain(app)
    await webhooks.lane.redrive(Filter(), actor="ada", reason="mended")
    assert await take(webhooks, "n0", "n1", "n2") == [True, True, False]
    assert counted[-1] == 6


async def test_rows_that_somebody_inserts_are_seen(make: Make):
    """By SQL of their own, past us, on a connection of this process."""
    app, webhooks = make(queue_maxsize=5)
    assert await take(webhooks, "k0") == [True]
    for number in range(5):
        await execute(
            app,
            "INSERT INTO events (id, idempotency_key, event_type, payload, status, attempts, created_at, updated_at)"
            f" VALUES ('{number}', 'old-{number}', 'a', '{{}}', 'pending', 0, '2020-01-01T00:00:00Z', '2020-01-01T00:00:00Z')",
        )
    assert await take(webhooks, "k1") == [False]
