"""`redrive relay classify`, and what `redrive relay dead-letters` says to those who start it wrongly."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.systems.relay.settings import DeadLetterSettings

from .said import Said

RULES = """
[[rule]]
name = "vip"
class = "technical"
queue = "orders.*"
headers = { tenant = "^vip$" }
deaths_min = 2
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DeadLetterSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((), "transient (rule rejected-without-a-word)\n"),
        (("--error", "card declined"), "business (rule refused-by-the-business)\n"),
        (("--reason", "delivery_limit"), "technical (rule delivered-too-often)\n"),
        (("--error", "xyzzy"), "unknown (rule none)\n"),
    ],
)
def test_classify(arguments: tuple[str, ...], answer: str, redrive: Callable[..., Said]) -> None:
    """The class and the rule are on stdout; nothing else is needed, neither broker nor database."""
    said = redrive("relay", "classify", *arguments)
    assert (said.code, said.out, said.err) == (0, answer, "")


def test_classify_by_own_rules(folder: Path, redrive: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file takes the place of redrive's rules, by option or by setting; each option is one of its conditions."""
    (folder / "rules.toml").write_text(RULES)
    vip = ("--queue", "orders.eu", "--header", "tenant=vip", "--deaths", "2", "--json")
    found = redrive("relay", "classify", "--rules", "rules.toml", *vip).json
    assert found == {"class": "technical", "rule": "vip"}
    monkeypatch.setenv("DEAD_LETTER_RULES", "rules.toml")
    assert redrive("relay", "classify", *vip).json == found
    assert redrive("relay", "classify", *vip[:-1], "--queue", "mail", "--json").json["class"] == "unknown"


@pytest.mark.parametrize("command", ["classify", "dead-letters"])
def test_rules_that_cannot_be_used(command: str, folder: Path, redrive: Callable[..., Said]) -> None:
    """One line that names the file, the rule and the remedy; exit code 2."""
    (folder / "rules.toml").write_text(RULES + "error = ['a', '(?=a)']\n")
    said = redrive("relay", command, "--rules", "rules.toml")
    assert (said.code, said.out) == (2, "")
    assert all(word in said.err for word in ("rules.toml", "rule 'vip'", "look-around"))
    assert redrive("relay", command, "--rules", "nowhere.toml").code == 2


WITHOUT_RE2 = """
import sys
sys.modules["re2"] = None
from redrive.cli import app
for command in ("classify", "dead-letters"):
    try:
        app(["relay", command])
    except SystemExit as ended:
        print(ended.code)
"""


def test_a_missing_extra_is_named(folder: Path) -> None:
    """Without RE2 there are no rules, but a line that says what to install."""
    said = subprocess.run([sys.executable, "-c", WITHOUT_RE2], capture_output=True, text=True, cwd=folder, check=True)
    assert said.stdout == "1\n1\n"
    assert said.stderr.count("pip install 'redrive[rabbitmq]'") == 2
    assert "Traceback" not in said.stderr


def test_settings_and_options_that_cannot_be_used(redrive: Callable[..., Said]) -> None:
    """A name that AMQP does not know, and a header without a value."""
    said = redrive("relay", "dead-letters", "--exchange", "x" * 256)
    assert said.code == 2
    assert "DEAD_LETTER_EXCHANGE" in said.err
    assert redrive("relay", "classify", "--header", "tenant").code == 2


@pytest.mark.parametrize("command", ["run", "dead-letters", "classify"])
def test_help_has_an_example(command: str, redrive: Callable[..., Said]) -> None:
    """Whoever asks for help sees a line to copy."""
    said = redrive("relay", command, "--help")
    assert f"Example: redrive relay {command}" in said.out
