"""The scenarios of `python -m proof`: what they found is written down by a program alone."""

import warnings
from pathlib import Path

import pytest

from proof.scenario import Found, Scenario, chance

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of where PostgreSQL's package looks for a folder
    from proof import __main__ as campaign

RAN = Scenario(name="ran", promise="a promise", run=lambda _short: iter(()))
LEFT = Scenario(name="left", promise="another promise", run=lambda _short: iter(()))
HEAD = "| promise | how it was tried | what was found | holds | on |"


def test_what_was_not_run_now_stays_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that ran has its new lines alone, all others the ones that they had; and the short form writes none."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(f"{HEAD}\n| a promise | old | old | yes | then |\n| another promise | old | old | yes | then |\n")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN, LEFT])
    found = [Found(tried="new", figure="0 lost", holds=True), Found(tried="newer", figure="1 lost", holds=False)]
    campaign._write([(RAN, found)], short=True)
    assert "| a promise | old |" in docs.read_text()
    campaign._write([(RAN, found)], short=False)
    lines = [line.rsplit("|", 2)[0].strip() for line in docs.read_text().splitlines() if line.startswith("| a")]
    assert lines == [
        "| another promise | old | old | yes",
        "| a promise | new | 0 lost | yes",
        "| a promise | newer | 1 lost | **no**",
    ]
    assert "A real power cut." in docs.read_text()


def test_a_database_that_was_left_out_keeps_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found on the other one is still what was found there."""
    docs = tmp_path / "docs" / "proof.md"
    docs.parent.mkdir()
    docs.write_text(f"{HEAD}\n| a promise | postgres: old | 0 | yes | then |\n| a promise | sqlite: old | 0 | yes | then |\n")
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "SCENARIOS", [RAN])
    monkeypatch.setattr(campaign, "STORES", ("sqlite",))
    campaign._write([(RAN, [Found(tried="sqlite: new", figure="1", holds=True)])], short=False)
    lines = [line.split(" | ")[1] for line in docs.read_text().splitlines() if line.startswith("| a promise")]
    assert lines == ["postgres: old", "sqlite: new"]


def test_every_scenario_has_a_name_and_a_promise_of_its_own() -> None:
    """Lines are kept by their promise, and scenarios are asked for by their names."""
    names, promises = zip(*((one.name, one.promise) for one in campaign.SCENARIOS), strict=True)
    assert len(set(names)) == len(names)
    assert len(set(promises)) == len(promises)
    assert not [(one, other) for one in promises for other in promises if one != other and other.startswith(f"{one} |")]


def test_chance_can_be_replayed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the number that was printed."""
    first = chance().random()
    monkeypatch.setenv("PROOF_SEED", capsys.readouterr().out.split("PROOF_SEED=")[1].strip())
    assert chance().random() == first
