"""The rules that call a person, and the messenger that does it."""

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from redrive.errors import SettingsError
from redrive.operator.alert_rules import (
    FAILING_SPAN,
    LINES_MAX,
    NEW_SPAN,
    RULES,
    LedgerFacts,
    Limits,
    Messenger,
    alarm_name,
    evaluate,
    failing_kinds,
    message,
)
from redrive.operator.alerts import QUIET, News
from redrive.operator.figures import Group
from redrive.operator.verdict import judge
from tests.kept import Kept
from tests.kept import kept as kept
from tests.kept import kept_in_items as kept_in_items
from tests.kept import store as store
from tests.operator.verdict.story import MAIL, SUNDAY

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIMITS = Limits(failed_share=0.05, oldest_due=timedelta(minutes=5), depth=100)


def facts(**given: object) -> LedgerFacts:
    """Of a ledger where all is well but for what is given."""
    return LedgerFacts(ledger="mail", now=NOW, **given)  # type: ignore[arg-type]


def group(amount: int, age: timedelta) -> Group:
    text = "password=hunter2 is wrong"
    return Group(ledger="t", id="c1", text=text, sample=text, amount=amount, first_seen=NOW - age, last_seen=NOW)


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        ({}, []),
        ({"done": 95, "failed": 5}, []),
        ({"done": 94, "failed": 6}, ["failed_share"]),
        ({"done": 0, "failed": 19}, []),
        ({"done": 0, "failed": 20}, ["failed_share"]),
        ({"oldest_due": timedelta(minutes=5)}, []),
        ({"oldest_due": timedelta(minutes=5, seconds=1)}, ["oldest_due"]),
        ({"waiting": 100}, []),
        ({"waiting": 101}, ["depth"]),
        ({"groups": [group(3, timedelta(minutes=1))]}, ["new_group"]),
        ({"groups": [group(0, timedelta(minutes=1))]}, []),
        ({"groups": [group(3, NEW_SPAN + timedelta(seconds=1))]}, []),
        ({"groups": [group(3, timedelta(days=9))], "known": {alarm_name("new_group", "mail", "c1")}}, ["new_group"]),
        ({"groups": [group(0, timedelta(days=9))], "known": {alarm_name("new_group", "mail", "c1")}}, []),
        ({"waiting": 101, "oldest_due": timedelta(hours=1)}, ["depth", "oldest_due"]),
    ],
)
def test_when_a_rule_holds(given: dict[str, object], rules: list[str]):
    """Over its limit, not at it; a group while it is new, and then until it is gone."""
    assert sorted(alarm.rule for alarm in evaluate(facts(**given), LIMITS)) == rules


def test_zero_switches_a_limit_off():
    """Nothing is too deep or too late then."""
    off = Limits(oldest_due=timedelta(0), depth=0)
    assert evaluate(facts(waiting=10**9, oldest_due=timedelta(days=9)), off) == []


def test_a_sentence_for_people():
    """Which ledger, how much, and the limit; secrets in an error are hidden."""
    [alarm] = evaluate(facts(waiting=12_345), LIMITS)
    assert alarm.text == "mail: 12,345 tasks wait (limit 100)"
    [alarm] = evaluate(facts(done=60, failed=40, things="events"), LIMITS)
    assert alarm.text == "mail: 40% of 100 events that ended in 5m failed (limit 5%)"
    [alarm] = evaluate(facts(groups=[group(1, timedelta(0))]), LIMITS)
    assert "hunter2" not in alarm.text
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_one_message_for_all_news():
    """However many there are."""
    title, body = message("shop", ["a", "b"], ["c"])
    assert (title, body.splitlines()) == ("shop: 2 new, 1 over", ["STARTED a", "STARTED b", "ENDED c"])
    _, body = message("shop", [str(number) for number in range(100)], [])
    assert len(body.splitlines()) == LINES_MAX + 1
    assert body.splitlines()[-1] == "and 80 more"


class Post(BaseHTTPRequestHandler):
    """Takes what is posted, or refuses it, or does not answer."""

    taken: list[dict[str, str]] = []
    status = 200
    hold = threading.Event()
    hang = False
    away = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Post.away and self.path == "/away":
            self.send_response(503)
            self.end_headers()
            return
        if Post.hang:
            Post.hold.wait(10)
        Post.taken.append(json.loads(body))
        self.send_response(Post.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine that takes messages, as apprise writes its address."""
    Post.taken, Post.status, Post.hang, Post.away = [], 200, False, False
    Post.hold.clear()
    server = HTTPServer(("127.0.0.1", 0), Post)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"json://127.0.0.1:{server.server_port}/"
    Post.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_message_is_sent(address: str):
    """To every address."""
    assert await Messenger([address, address]).send("shop: 1 new", "STARTED mail: 7 tasks wait")
    assert [one["message"] for one in Post.taken] == ["STARTED mail: 7 tasks wait"] * 2
    assert Post.taken[0]["title"] == "shop: 1 new"


async def test_addresses_are_never_logged(address: str, monkeypatch: pytest.MonkeyPatch):
    """They hold secrets: however much an application logs, and whether the message was taken or not."""
    written = io.StringIO()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers, logging.StreamHandler(written)])
    monkeypatch.setattr(root, "level", logging.DEBUG)
    for logger in (logging.getLogger("urllib3.connectionpool"), logging.getLogger("apprise")):
        logger.manager._clear_cache()  # type: ignore[attr-defined]
    for Post.status in (200, 500):
        await Messenger([f"{address}hunter2"]).send("t", "b")
    logging.getLogger("observe").debug("this is heard")
    assert "this is heard" in written.getvalue()
    assert len(Post.taken) == 2
    assert "hunter2" not in written.getvalue()


async def test_a_refused_message_is_not_sent(address: str):
    """Whoever asks hears of it, and may try again."""
    messenger = Messenger([address])
    Post.status = 500
    assert not await messenger.send("t", "b")
    Post.status = 200
    assert await messenger.send("t", "b")


async def test_a_slow_address_holds_nobody_up(address: str):
    """It is given up in time; while it hangs nothing more is sent there, and the loop goes on."""
    messenger = Messenger([address], within=timedelta(seconds=0.2))
    Post.hang = True
    async with asyncio.timeout(60):
        assert not await messenger.send("t", "b")
        assert not await messenger.send("t", "b")
    Post.hold.set()
    messenger._addresses[0]._thread.join()  # type: ignore[union-attr]


async def test_an_address_that_is_away_does_not_have_others_told_twice(address: str):
    """The message is told where it was taken; who was away gets it later, once, and holds nobody up meanwhile."""
    messenger = Messenger([address, f"{address}away"])
    Post.away = True
    assert await messenger.send("t", "first")
    assert await messenger.send("t", "second")
    assert messenger.owing == 1
    await _caught_up(messenger)
    assert messenger.owing == 1
    assert [one["message"] for one in Post.taken] == ["first", "second"]
    Post.away = False
    await _caught_up(messenger)
    await _caught_up(messenger)
    assert messenger.owing == 0
    assert [one["message"] for one in Post.taken] == ["first", "second", "first", "second"]


async def _caught_up(messenger: Messenger) -> None:
    messenger.catch_up()
    for one in messenger._addresses:
        if one._thread is not None:
            await asyncio.to_thread(one._thread.join)


def test_an_address_that_apprise_does_not_know_is_named_by_its_number():
    """And not shown: it holds a secret."""
    with pytest.raises(SettingsError, match=r"ALERT_URLS.*number 2") as caught:
        Messenger(["json://127.0.0.1/", "nonsense-with-hunter2"])
    assert "hunter2" not in str(caught.value)


WRONG = {"a": ("depth", "too many wait")}


async def test_what_is_wrong_is_news_until_it_was_told(kept: Kept):
    """Its start until somebody said so, its end when nothing was wrong for a while; then it is forgotten."""
    alerts, clock = kept.alerts, kept.clock
    for _ in range(2):
        news = await alerts.note(WRONG)
        assert ([one.name for one in news.started], list(news.ended)) == (["a"], [])
    await alerts.told(["a"], [])
    assert (await alerts.note({"a": ("depth", "even more wait")})).started == []
    [active] = await alerts.active()
    assert (active.rule, active.text, active.told_at) == ("depth", "even more wait", clock.now())
    assert await alerts.note({}, complete=False) == News(started=[], ended=[])
    assert await alerts.active() == [active]
    assert (await alerts.note({})).ended == []
    assert (await alerts.active(), await alerts.known()) == ([], {"a"})
    clock.advance(QUIET)
    assert [one.name for one in (await alerts.note({})).ended] == ["a"]
    await alerts.told([], ["a"])
    assert await alerts.known() == frozenset()


async def test_what_starts_again_soon_has_not_ended(kept: Kept):
    """It is one alert, and nothing is told of it again; what nobody heard of ends in silence."""
    alerts, clock = kept.alerts, kept.clock
    await alerts.note(WRONG)
    await alerts.told(["a"], [])
    for _ in range(3):
        assert await alerts.note({}) == News(started=[], ended=[])
        clock.advance(QUIET / 2)
        assert await alerts.note(WRONG) == News(started=[], ended=[])
    await alerts.note({**WRONG, "b": ("depth", "untold")})
    assert [one.name for one in await alerts.active()] == ["a", "b"]
    await alerts.note(WRONG)
    clock.advance(QUIET)
    assert await alerts.note(WRONG) == News(started=[], ended=[])
    assert await alerts.known() == {"a"}


async def test_two_who_note_the_same_at_once_make_one_alert(kept: Kept):
    """Each hears what there is to tell, and whoever tells it last tells nothing that was forgotten."""
    found = {name: ("rule", f"{name} is wrong") for name in ("a", "b", "c")}
    for news in await asyncio.gather(*(kept.alerts.note(found) for _ in range(3))):
        assert [one.name for one in news.started] == ["a", "b", "c"]
    await asyncio.gather(*(kept.alerts.told(["a", "b"], ["c"]) for _ in range(2)))
    assert [one.name for one in (await kept.alerts.note(found)).started] == ["c"]
    assert len(await kept.alerts.active()) == 3


async def test_there_are_never_more_than_anybody_can_act_on(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    """What is wrong with everything has one cause."""
    for module in ("sql", "aws"):
        monkeypatch.setattr(f"redrive.operator.{module}.alerts.ACTIVE_MAX", 2)
    found = {f"{number} {'x' * 2000}": ("rule", "wrong") for number in range(5)}
    assert len((await kept.alerts.note(found)).started) == 2
    assert len(await kept.alerts.active()) == 2


def test_a_kind_is_told_of_when_it_goes_on_failing():
    """After five minutes, in the sentence of the first page; what a retry mends tells nobody."""
    [alarm] = failing_kinds(judge(SUNDAY))
    assert (alarm.rule, alarm.name) == ("failing", f"failing redrive_task {MAIL.id}")
    assert alarm.text.startswith("redrive_task: mail.send has been failing since 21:35:40: 100% of 812 tries")
    young = replace(MAIL, since=SUNDAY.now - FAILING_SPAN + timedelta(seconds=1))
    assert failing_kinds(judge(replace(SUNDAY, causes=[young]))) == []
