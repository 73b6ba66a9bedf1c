"""The scenarios of `python -m proof`: what they found is written down by a program alone."""

import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from proof.scenario import Found, Scenario, chance, sized
from tests.http.test_outgoing import HOSTILE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of where PostgreSQL's package looks for a folder
    from proof import __main__ as campaign
    from proof.nobody import try_hostile_targets
    from proof.odd_messages import amqp_messages_alone, sqs_bodies_alone
    from proof.odd_requests import SETTINGS, try_odd_requests
    from proof.odd_rows import ODD_ROWS, try_odd_rows
    from proof.service import queued, serving
    from proof.simulation import Lived

RAN = Scenario(name="ran", promise="a promise", run=lambda _short: iter(()))
LEFT = Scenario(name="left", promise="another promise", run=lambda _short: iter(()))
HEAD = "| promise | how it was tried | what was found | holds | on |"


def test_what_was_not_run_now_stays_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that ran has its new lines alone, all others the ones that they had."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(f"{HEAD}\n| a promise | old | old | yes | then |\n| another promise | old | old | yes | then |\n")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN, LEFT])
    found = [Found(tried="new", figure="0 lost", holds=True), Found(tried="newer", figure="1 lost", holds=False)]
    campaign._publish(RAN, found)
    lines = [line.rsplit("|", 2)[0].strip() for line in docs.read_text().splitlines() if line.startswith("| a")]
    assert lines == [
        "| another promise | old | old | yes",
        "| a promise | new | 0 lost | yes",
        "| a promise | newer | 1 lost | **no**",
    ]
    assert "A real power cut." in docs.read_text()
    assert "have not come to their end" not in docs.read_text()


def test_what_never_ran_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario without a line is a promise that nothing was found out about."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(f"{HEAD}\n")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN, LEFT])
    campaign._publish(RAN, [Found(tried="new", figure="0 lost", holds=True)])
    assert docs.read_text().endswith("at any size worth a line: left.\n")


@pytest.mark.parametrize(("short", "published"), [("short", "old"), ("", "new")])
def test_the_short_form_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str, published: str
) -> None:
    """What it found is in a file of its own; the full form is published after each scenario."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(f"{HEAD}\n| a promise | old | old | yes | then |\n")
    found = Found(tried="new", figure="0 lost", holds=True)
    later: list[str] = []

    def look(_short: bool) -> Iterator[Found]:
        later.append(docs.read_text())
        return iter([found])

    first = Scenario(name="first", promise="a promise", run=lambda _short: iter([found]))
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [first, Scenario(name="second", promise="more", run=look)])
    monkeypatch.setenv("PROOF", short)
    assert campaign.main([]) == 0
    assert f"| a promise | {published} |" in later[0]
    assert len(json.loads((tmp_path / "build" / "proof.json").read_text())["found"]) == 2


def test_a_database_that_was_left_out_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found on the other one is still what was found there."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(
        f"{HEAD}\n| a promise | postgres: old | 0 | yes | then |\n| a promise | sqlite: old | 0 | yes | then |\n"
    )
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN])
    monkeypatch.setattr(campaign, "STORES", ("sqlite",))
    campaign._publish(RAN, [Found(tried="sqlite: new", figure="1", holds=True)])
    lines = [line.split(" | ")[1] for line in docs.read_text().splitlines() if line.startswith("| a promise")]
    assert lines == ["postgres: old", "sqlite: new"]


def test_a_share_puts_no_line_out_of_its_place_that_tells_of_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it holds; where less did not hold, both lines stand, until as much holds again."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(
        f"{HEAD}\n| a promise | 1,000 tasks, 5 kills | 0 | yes | then |\n| a promise | 7 gates | 0 | yes | then |\n"
    )
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN])
    monkeypatch.setenv("PROOF_SHARE", "0.1")

    def published(tried: str, *, holds: bool = True) -> list[str]:
        campaign._publish(RAN, [Found(tried=tried, figure="1", holds=holds)])
        lines = [line for line in docs.read_text().splitlines() if line.startswith("| a promise")]
        return [" | ".join(line.split(" | ")[1:4]) for line in lines]

    assert published("100 tasks, 5 kills") == ["1,000 tasks, 5 kills | 0 | yes", "7 gates | 0 | yes"]
    assert published("900 tasks, 6 kills", holds=False) == [
        "1,000 tasks, 5 kills | 0 | yes", "7 gates | 0 | yes", "900 tasks, 6 kills | 1 | **no**",
    ]  # fmt: skip
    assert published("1,000 tasks, 6 kills") == ["7 gates | 0 | yes", "1,000 tasks, 6 kills | 1 | yes"]
    monkeypatch.delenv("PROOF_SHARE")
    assert published("8 gates") == ["8 gates | 1 | yes"]


def test_every_scenario_has_a_name_and_a_promise_of_its_own() -> None:
    """Lines are kept by their promise, and scenarios are asked for by their names."""
    names, promises = zip(*((one.name, one.promise) for one in campaign.SCENARIOS), strict=True)
    assert len(set(names)) == len(names)
    assert len(set(promises)) == len(promises)
    assert not [(one, other) for one in promises for other in promises if one != other and other.startswith(f"{one} |")]


def test_a_share_of_each_size_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time is short: the lines say the size that was tried."""
    assert sized(500) == 500
    monkeypatch.setenv("PROOF_SHARE", "0.1")
    assert [sized(500), sized(3)] == [50, 1]


def test_chance_can_be_replayed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the number that was printed."""
    first = chance().random()
    monkeypatch.setenv("PROOF_SEED", capsys.readouterr().out.split("PROOF_SEED=")[1].strip())
    assert chance().random() == first


def test_a_simulation_goes_on_where_it_was_ended_unless_the_code_is_another(tmp_path: Path) -> None:
    """Seeds count for the code that has lived through them alone."""
    kept = tmp_path / "build" / "simulated.json"
    lived = Lived.read(kept, "this code")
    assert lived.seeds == 0
    lived.seeds = 4_000
    lived.met["an outage"] += 7
    lived.broken.append("seed 3,999")
    lived.write(kept)
    assert Lived.read(kept, "this code") == lived
    assert Lived.read(kept, "other code") == Lived("other code")


def test_what_a_busy_machine_takes_is_no_delay_of_the_service(tmp_path: Path) -> None:
    """The time for which a process stood in the queue for a processor is known, where the system counts it."""
    (tmp_path / "schedstat").write_text("700 2500000000 3\n")
    assert queued(str(tmp_path / "schedstat")) == 2.5
    assert queued(str(tmp_path / "none")) == 0.0


# --- a little of what full runs do much of: the seed is always the same ---------------------------------------------------


@pytest.mark.filterwarnings("ignore:Did not recognize type")  # a point, which others may have and nobody here reads
async def test_bad_rows_hurt_only_themselves(url: str, store: str) -> None:
    """Two rounds of rows with something odd in most of them."""
    tried = await try_odd_rows(url, store, random.Random(7), 2 * ODD_ROWS - 10)
    assert tried.faults == []
    assert tried.rounds >= 2
    assert tried.mutations >= ODD_ROWS
    assert tried.others > 0


def test_bad_messages_are_refused_or_read() -> None:
    """Of SQS and of RabbitMQ, each read alone."""
    for alone in (sqs_bodies_alone, amqp_messages_alone):
        found = alone(random.Random(7), 1_000)
        assert found.holds, found.figure


def test_bad_requests_hurt_nobody() -> None:
    """A real service, asked by its own description and byte by byte: no 5xx, and it is there afterwards."""
    with serving(environment=SETTINGS) as served:
        by_description, by_bytes = try_odd_requests("sqlite", served, random.Random(7), 120)
    for found in (by_description, by_bytes):
        assert found.figure.startswith("0 answers of 5xx"), found.figure
        assert "0 of" in found.figure.rpartition("/health")[2]


async def test_nobody_is_sent_inside(url: str) -> None:
    """Some hostile addresses, each named, changed to, tested and delivered to: nobody connects."""
    wrong, connections = await try_hostile_targets(url, HOSTILE[::12])
    assert (wrong, connections) == ([], 0)
