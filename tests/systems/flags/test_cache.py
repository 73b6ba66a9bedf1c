"""Caches that forget in every process, keep while nothing changes, and are in no change's way."""

import asyncio
import time
from typing import Any

import pytest

from redrive.errors import LedgerAwayError
from redrive.systems.flags.cache import KEPT, FlagCache

from .conftest import MINUTE, Home

PATIENCE_SECONDS = 60


async def test_evaluation_from_the_database(home: Home) -> None:
    """Flags of one environment, with a user's overrides, as the database has them."""
    flags = home.flags
    await flags.put("on", enabled=True, rollout_percentage=100, actor="ada")
    await flags.put("off", rollout_percentage=100, actor="ada")
    await flags.put("none", enabled=True, rollout_percentage=0, actor="ada")
    await flags.put("on", enabled=False, environment="staging", actor="ada")
    await flags.put_override("on", "eve", "exclude", actor="ada", reason="abuse")
    await flags.put_override("none", "bob", "include", actor="ada")
    await flags.put_override("off", "bob", "include", actor="ada")
    assert await flags.all_enabled() == {"on": True, "off": False, "none": False}
    assert await flags.all_enabled(user_id="bob") == {"on": True, "off": False, "none": True}
    assert await flags.all_enabled(user_id="eve") == {"on": False, "off": False, "none": False}
    assert await flags.all_enabled(environment="staging") == {"on": False}
    assert await flags.is_enabled("on", user_id="ann")
    assert not await flags.is_enabled("on", environment="staging")
    assert not await flags.is_enabled("unknown", user_id="bob")
    assert await flags.delete_override("none", "bob", actor="ada")
    assert not await flags.delete_override("none", "bob", actor="ada")
    assert not await flags.is_enabled("none", user_id="bob")


async def eventually(asked: Any) -> None:
    """Wait until it is so: other processes are told, not asked."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not await asked():
        assert time.monotonic() < ends, "it never came"
        await asyncio.sleep(0.01)


async def test_every_process_forgets(home: Home, make_home: Any) -> None:
    """A change by hand, by a schedule, of an override or by deletion is seen by another process at once, not after minutes."""
    other = (await make_home()).flags
    await home.flags.put("promo", enabled=False, actor="ada")
    assert not await other.is_enabled("promo")
    await home.flags.put("promo", enabled=True, rollout_percentage=100, actor="ada")
    await eventually(lambda: other.is_enabled("promo"))

    assert await other.is_enabled("promo", user_id="eve")
    await home.flags.put_override("promo", "eve", "exclude", actor="ada")

    async def excluded() -> bool:
        return not await other.is_enabled("promo", user_id="eve")

    await eventually(excluded)

    await home.plan("promo", updates={"enabled": False})
    assert await other.is_enabled("promo")
    assert await home.flags.is_enabled("promo")
    home.clock.advance(MINUTE)
    await home.flags.process()
    assert not await home.flags.is_enabled("promo"), "the process that applied it forgets at once"

    async def off() -> bool:
        return not await other.is_enabled("promo")

    await eventually(off)
    await home.flags.put("promo", enabled=True, actor="ada")
    await eventually(lambda: other.is_enabled("promo"))
    await home.flags.delete("promo", actor="ada")
    await eventually(off)


async def test_evaluations_are_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes the database is asked once, and again after five minutes."""
    now = [0.0]
    reads: list[str] = []

    class Counting(FlagCache):
        def _read_flags(self, connection: Any) -> Any:
            reads.append("flags")
            return super()._read_flags(connection)

        def _read_overrides(self, connection: Any, user_id: str) -> Any:
            reads.append(user_id)
            return super()._read_overrides(connection, user_id)

    async def silent(self: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FlagCache, "_watch", silent)
    cache = Counting(home.app, now=lambda: now[0])
    try:
        for _ in range(3):
            await asyncio.gather(*(cache.flags() for _ in range(5)))
            await cache.overrides("bob")
        assert reads == ["flags", "bob"]
        now[0] = KEPT.total_seconds() - 1
        await cache.flags()
        assert reads == ["flags", "bob"]
        now[0] = KEPT.total_seconds()
        await cache.flags()
        await cache.overrides("bob")
        assert reads == ["flags", "bob"] * 2
    finally:
        await cache.close()


async def test_what_was_read_before_a_change_is_not_kept(home: Home) -> None:
    """A read that was under way when a flag changed may be older than the change: it answers, and is then forgotten."""
    await home.flags.put("promo", enabled=False, actor="ada")
    cache = home.flags._cache
    real = cache._read_flags

    def slow(connection: Any) -> Any:
        read = real(connection)
        cache.forget()  # the change commits now
        return read

    cache._read_flags = slow  # type: ignore[method-assign]
    await cache.flags()
    cache._read_flags = real  # type: ignore[method-assign]
    await home.app.database.write(
        lambda connection: connection.exec_driver_sql(
            "UPDATE feature_flags SET enabled = true, rollout_percentage = 100"
        )
    )
    assert await cache.is_enabled("promo"), "it was read again"


async def test_a_cache_that_cannot_be_told_fails_no_change(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """If announcing breaks, in the midst of the transaction, flags and schedules change all the same."""

    def broken(connection: Any, ledger: str, *, soon: bool) -> None:
        if ledger == "feature_flags":
            connection.exec_driver_sql("SELECT * FROM nowhere")

    monkeypatch.setattr(home.app.database, "announce", broken)
    made = await home.plan()
    await home.drain()
    assert (await home.schedule(made.id)).status == "applied"
    assert (await home.flags.get("promo")).enabled


async def test_a_watch_that_breaks_is_taken_up_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """While changes cannot be heard nothing that was kept is believed for longer than it may be; then it listens again."""
    monkeypatch.setattr("redrive.systems.flags.cache.AFTER_A_FAULT_SECONDS", 0.01)
    real, broken = home.app.database.waiter, []

    def waiter(name: str) -> Any:
        if len(broken) < 3:
            broken.append(name)
            raise LedgerAwayError("no ear")
        return real(name)

    monkeypatch.setattr(home.app.database, "waiter", waiter)
    await home.flags.put("promo", enabled=True, rollout_percentage=100, actor="ada")
    assert await home.flags.is_enabled("promo")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(broken) < 3:
            await asyncio.sleep(0.01)
    assert await home.flags.is_enabled("promo")


# --- outages ----------------------------------------------------------------------------------------------------------


class Outage:
    """A store that goes away and comes back, and a clock for the cache alone."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
        self.now, self.is_away, self.asked, self._real = 1000.0, False, 0, home.app.database.read
        self.cache = FlagCache(home.app, now=lambda: self.now, **given)
        monkeypatch.setattr(home.app.database, "read", self._read)

        async def silent(_cache: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(FlagCache, "_watch", silent)

    async def _read(self, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        if self.is_away:
            raise LedgerAwayError("the store is away")
        return await self._real(*arguments, **options)


async def prepared(home: Home) -> None:
    """A flag for all but one."""
    await home.flags.put("promo", enabled=True, rollout_percentage=100, actor="ada")
    await home.flags.put_override("promo", "eve", "exclude", actor="ada")


async def test_an_outage_is_answered_from_the_last_known_state(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it lasts, also after a change was announced; the store is asked about once a second, and believed again at once."""
    await prepared(home)
    outage = Outage(home, monkeypatch)
    cache = outage.cache
    try:
        assert await cache.is_enabled("promo", user_id="ann")
        assert not await cache.is_enabled("promo", user_id="eve")
        assert cache.age_seconds is None
        outage.is_away = True
        cache.forget()
        outage.now += 7200
        outage.asked = 0
        for _ in range(50):
            assert await cache.is_enabled("promo", user_id="ann")
            assert not await cache.is_enabled("promo", user_id="eve")
            assert await cache.all_enabled(user_id="eve") == {"promo": False}
            assert await cache.is_enabled("promo", user_id="nobody asked for him before")
        assert outage.asked == 1
        assert cache.age_seconds == 7200
        outage.is_away = False
        outage.now += 1
        await home.flags.put("promo", enabled=False, actor="ada")
        assert not await cache.is_enabled("promo", user_id="ann")
        assert cache.age_seconds is None
    finally:
        await cache.close()


async def test_an_outage_is_answered_for_as_long_as_the_setting_says(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After FLAG_OUTAGE_MAX the error comes through, or what the caller takes for right."""
    await prepared(home)
    outage = Outage(home, monkeypatch, outage_max=MINUTE)
    cache = outage.cache
    try:
        assert await cache.is_enabled("promo")
        outage.is_away = True
        outage.now += 3600  # it is old, and that the store is away is noticed now
        assert await cache.is_enabled("promo", default=False)
        outage.now += 59
        assert await cache.is_enabled("promo", default=False)
        outage.now += 1
        with pytest.raises(LedgerAwayError):
            await cache.is_enabled("promo")
        assert not await cache.is_enabled("promo", default=False)
        assert await cache.is_enabled("unknown", default=True)
        assert await cache.all_enabled(default={"promo": False}) == {"promo": False}
    finally:
        await cache.close()


async def test_without_a_last_known_state_the_default_answers(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts while the store is away knows nothing: it says so, or what the caller says."""
    await prepared(home)
    outage = Outage(home, monkeypatch)
    outage.is_away = True
    try:
        with pytest.raises(LedgerAwayError):
            await outage.cache.is_enabled("promo")
        assert await outage.cache.is_enabled("promo", default=True)
        assert outage.cache.age_seconds is None
        outage.is_away = False
        outage.now += 1
        assert not await outage.cache.is_enabled("promo", user_id="eve", default=True)
    finally:
        await outage.cache.close()


async def test_a_store_that_hangs_is_not_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a last known state waits for a moment at most, however long a connection takes to fail."""
    monkeypatch.setattr("redrive.systems.flags.cache.ANSWER_WITHIN_SECONDS", 0.01)
    await prepared(home)
    outage = Outage(home, monkeypatch)
    try:
        assert await outage.cache.is_enabled("promo")

        async def hangs(*arguments: Any, **options: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(home.app.database, "read", hangs)
        outage.cache.forget()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await outage.cache.is_enabled("promo", user_id="ann")
    finally:
        await outage.cache.close()
