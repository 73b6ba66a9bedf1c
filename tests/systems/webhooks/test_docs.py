"""The page about the inbox says only what is true: its application, its sources and its commands work as written."""

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from redrive import State
from redrive.cli import app as cli
from redrive.cli.app_path import load_app
from redrive.settings import Settings
from redrive.systems.webhooks import WebhookSettings
from redrive.systems.webhooks.shapes import WebhookActIn, WebhookIn
from redrive.systems.webhooks.sources import DEFAULTS, load_sources
from redrive.testing import drain

from .conftest import client_of, encoded, github_headers, stripe_headers, webhook

PAGE = (Path(__file__).parents[3] / "docs" / "systems" / "webhooks.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks in one language; the empty one is the shell's."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [code for written_in, code in found if written_in == language]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The folder of the page: its application and its sources."""
    for name in (*Settings.model_fields, *WebhookSettings.model_fields):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTP_TRUST_LOOPBACK", "true")  # as `make run` has it
    [code, _gates], [sources] = blocks("python"), blocks("toml")
    (tmp_path / "shop_of_the_page.py").write_text(code)
    (tmp_path / "redrive.toml").write_text(sources)
    for name in re.findall(r"\w+_SECRET\w*", sources):
        monkeypatch.setenv(name, "whsec_" + "QUJD" * 8)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield load_app("shop_of_the_page:app")
    sys.modules.pop("shop_of_the_page")


async def test_the_application_of_the_page_works(shop: Any, capsys: pytest.CaptureFixture[str]):
    """Its handlers take what the page says, and its sources let in what GitHub and Stripe send."""
    push = encoded({"order": 1})
    paid = encoded({"id": "evt_1", "type": "invoice.paid"})
    secret = "whsec_" + "QUJD" * 8
    async with client_of(shop) as client:
        assert (await client.post("/webhooks", json=webhook("a", "order.paid", order=7))).status_code == 202
        assert (await client.post("/webhooks", json=webhook("b", "order.paid"))).status_code == 202
        signed = github_headers(push, secret)
        assert (await client.post("/webhooks/in/github", content=push, headers=signed)).status_code == 202
        signed = stripe_headers(paid, secret)
        assert (await client.post("/webhooks/in/stripe", content=paid, headers=signed)).status_code == 202
    await drain(shop)
    webhooks = shop.systems["webhooks"]
    states = {key: (await webhooks.lane.get(key)).state for key in ("a", "b", "stripe:evt_1")}
    assert states == {"a": State.DONE, "b": State.DEAD, "stripe:evt_1": State.DONE}
    said = capsys.readouterr().out
    assert "order.paid 7" in said
    assert "try 1 of 5 for stripe:evt_1" in said
    await shop.close()


def test_the_command_for_dead_letters_works(shop: Any):
    """As it stands on the page."""

    async def die() -> None:
        await shop.systems["webhooks"].accept("order.paid", {}, idempotency_key="dead")
        await drain(shop)
        await shop.close()

    asyncio.run(die())
    [line] = [line for code in blocks("") for line in code.splitlines() if line.startswith("redrive tasks redrive")]
    arguments = shlex.split(line.replace("shop:app", "shop_of_the_page:app"))[1:]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    listed = CliRunner().invoke(cli, ["tasks", "list", "--app", "shop_of_the_page:app", "--lane", "events", "--json"])
    assert [task["state"] for task in json.loads(listed.stdout)["tasks"]] == ["waiting"]


def test_the_table_of_schemes_is_the_real_one(shop: Any):
    """The defaults that the page names are those of the code."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| `([^`]+)` \| `([^`]+)` \|$", PAGE, re.MULTILINE)
    assert {scheme: (identity, event_type) for scheme, identity, event_type in rows} == DEFAULTS
    assert set(load_sources(Path("redrive.toml"))) == {"github", "stripe", "shop"}


def test_the_settings_of_the_page_are_there():
    """Every variable that it names is one that is read."""
    named = set(re.findall(r"^\| (`[A-Z_`, or]+)", PAGE, re.MULTILINE))
    variables = {name for row in named for name in re.findall(r"[A-Z_]{5,}", row)}
    known = {name.upper() for section in (Settings, WebhookSettings) for name in section.model_fields}
    assert variables <= known
    assert {name.upper() for name in WebhookSettings.model_fields} <= variables


def test_the_bodies_of_the_page_fit():
    """What the page sends with curl is a webhook, or an act on some."""
    [given, *acts] = re.findall(r"-d '(\{.*\})'", PAGE)
    WebhookIn.model_validate(json.loads(given))
    assert len([WebhookActIn.model_validate(json.loads(act)) for act in acts]) == 2
