"""The rules that say what kind of trouble a dead letter is: their order, their conditions, and what is refused when they are read."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.errors import SettingsError
from redrive.systems.relay.message import TRANSIENT
from redrive.systems.relay.rules import (
    NO_RULE,
    RULES_MAX,
    TEXT_CHARS_MAX,
    DeadLetterFacts,
    LetterClass,
    LetterVerdict,
    Rules,
    load_rules,
)

PAGE = (Path(__file__).parents[3] / "docs" / "systems" / "relay.md").read_text()
OWN = load_rules()
WORDS = ("", "timeout", "KeyError: 'id'", "card declined", "xyzzy")
REASONS = ("rejected", "expired", "maxlen", "delivery_limit", "published", "")

troubles = st.builds(
    DeadLetterFacts,
    queue=st.sampled_from(["orders", "orders.eu", "mail"]) | st.text(max_size=20),
    reason=st.sampled_from(REASONS) | st.text(max_size=5),
    error=st.sampled_from(WORDS) | st.text(),
    deaths=st.integers(0, 5),
    headers=st.dictionaries(
        st.sampled_from(["a", "b"]), st.none() | st.integers() | st.text() | st.binary() | st.lists(st.integers())
    ),
)
conditions = st.fixed_dictionaries(
    {},
    optional={
        "error": st.sampled_from(["time", "^$", "declined|Key", ".", ["time", "Key"]]),
        "reason": st.lists(st.sampled_from(REASONS[:-1]), min_size=1, max_size=5),
        "queue": st.sampled_from(["orders", "orders*", "*", ["mail", "o?ders"]]),
        "headers": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["", "^1", "x"])),
        "deaths_min": st.integers(0, 3),
    },
)


def made(*rules: dict[str, Any], **given: Any) -> Rules:
    """Rules with names by their place."""
    return Rules.model_validate(
        {
            "error_headers": (),
            "queue_headers": (),
            "rule": [{"name": f"r{at}", "class": "business"} | one for at, one in enumerate(rules)],
            **given,
        }
    )


def trouble(
    error: str = "", reason: str = "rejected", queue: str = "orders", deaths: int = 1, **headers: Any
) -> DeadLetterFacts:
    return DeadLetterFacts(queue=queue, reason=reason, error=error, deaths=deaths, headers=headers)


@settings(deadline=None)
@given(troubles)
def test_every_trouble_gets_one_verdict(one: DeadLetterFacts) -> None:
    """redrive's own rules have an answer to whatever there is, the same each time."""
    verdict = OWN.classify(one)
    assert verdict == OWN.classify(one)
    assert (verdict.rule == NO_RULE) <= (verdict.letter_class is LetterClass.UNKNOWN)
    assert verdict.rule in {rule.name for rule in OWN.rules} | {NO_RULE}


@settings(deadline=None)
@given(st.lists(conditions, max_size=6), troubles)
def test_the_first_rule_that_fits_decides(given_rules: list[dict[str, Any]], one: DeadLetterFacts) -> None:
    """Each rule asked by itself, in order: the verdict is that of the first; more rules behind it change nothing."""
    rules = made(*given_rules)
    alone = [at for at, rule in enumerate(given_rules) if made(rule).classify(one).rule != NO_RULE]
    expected = (
        LetterVerdict(LetterClass.BUSINESS, f"r{alone[0]}") if alone else LetterVerdict(LetterClass.UNKNOWN, NO_RULE)
    )
    assert rules.classify(one) == expected


@settings(deadline=None)
@given(conditions, troubles)
def test_a_rule_fits_if_all_its_conditions_do(condition: dict[str, Any], one: DeadLetterFacts) -> None:
    """Taken apart into rules of one condition each, all of them fit, or the whole does not."""
    parts = [made({name: value}) for name, value in condition.items()]
    whole = made(condition).classify(one).rule != NO_RULE
    assert whole == all(part.classify(one).rule != NO_RULE for part in parts)


@pytest.mark.parametrize(
    ("rule", "fitting", "others"),
    [
        ({"error": "timed out"}, [trouble("Timed OUT")], [trouble("time"), trouble()]),
        ({"error": "(?-i)Timed"}, [trouble("Timed out")], [trouble("timed out")]),
        ({"error": ["refused", "^re(set)?$"]}, [trouble("was REFUSED"), trouble("Reset"), trouble("re")], [trouble("a reset")]),
        ({"error": "é.\ufffd?€$"}, [trouble("É\udcff€")], [trouble("e€")]),
        ({"error": "^$"}, [trouble()], [trouble("x")]),
        ({"reason": "expired"}, [trouble(reason="expired")], [trouble(), trouble(reason="expired ")]),
        ({"reason": ["maxlen", "expired"]}, [trouble(reason="maxlen")], [trouble()]),
        ({"queue": "orders.*"}, [trouble(queue="orders.eu")], [trouble(queue="orders"), trouble(queue="x.orders.eu")]),
        ({"deaths_min": 2}, [trouble(deaths=2)], [trouble(deaths=1)]),
        ({"headers": {"h": "^4"}}, [trouble(h=404), trouble(h="4"), trouble(h=b"4")], [trouble(h="14"), trouble()]),
        ({"headers": {"h": ["^4", "x$"]}}, [trouble(h=404), trouble(h="aX")], [trouble(h="x4"), trouble()]),
        ({"headers": {"h": ""}}, [trouble(h=""), trouble(h=None)], [trouble()]),
        ({}, [trouble(), trouble(reason="")], []),
    ],
)  # fmt: skip
def test_conditions(rule: dict[str, Any], fitting: list[DeadLetterFacts], others: list[DeadLetterFacts]) -> None:
    """What each condition means."""
    rules = made(rule)
    assert [rules.classify(one).rule for one in fitting] == ["r0"] * len(fitting)
    assert [rules.classify(one).rule for one in others] == [NO_RULE] * len(others)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (trouble(), "transient"),
        (trouble(reason="expired"), "transient"),
        (trouble(reason="maxlen"), "transient"),
        (trouble(reason="delivery_limit"), "technical"),
        (trouble(reason="delivery_limit", error="timeout"), "technical"),
        (trouble(reason="published"), "unknown"),
        (trouble("requests.exceptions.ConnectTimeout: bank"), "transient"),
        (trouble("ConnectionRefusedError: [Errno 111] Connection refused"), "transient"),
        (trouble("HTTP 503"), "transient"),
        (trouble("upstream said: status=429"), "transient"),
        (trouble("ERROR 40P01: deadlock detected"), "transient"),
        (trouble("could not serialize access due to concurrent update"), "transient"),
        (trouble("KeyError: 'customer'"), "technical"),
        (trouble("java.lang.NullPointerException"), "technical"),
        (trouble("json.decoder.JSONDecodeError: Expecting value"), "technical"),
        (trouble('column "a" of relation "b" does not exist'), "technical"),
        (trouble("ValidationError: amount must be positive"), "business"),
        (trouble("order 17 not found"), "business"),
        (trouble("status: 422"), "business"),
        (trouble("insufficient funds"), "business"),
        (trouble("order 503 was odd"), "unknown"),
        (trouble("xyzzy"), "unknown"),
    ],
)
def test_own_rules(one: DeadLetterFacts, expected: str) -> None:
    """What redrive's own rules make of usual errors."""
    assert OWN.classify(one).letter_class == expected


def test_own_rules_stand_in_the_docs() -> None:
    """The table of the page is the file: the same rules with the same classes in the same order."""
    written = re.findall(r"^\| \d \| `([a-z-]+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert written == [(rule.name, rule.letter_class.value) for rule in OWN.rules]


def test_the_example_of_the_docs_can_be_used(tmp_path: Path) -> None:
    """The file on the page is a good one, and does what is written beside it."""
    [example] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "rules.toml"
    file.write_text(example)
    rules = load_rules(str(file))
    assert rules.classify(trouble(queue="mail.out")).letter_class == "business"
    assert rules.classify(trouble("SQLSTATE 40001")).rule == "serialization"
    assert rules.classify(trouble("xyzzy")).letter_class == "unknown"


def test_a_file_that_names_no_headers_has_ours(tmp_path: Path) -> None:
    """Rules about errors must not be silent because a list was left out; an empty one is meant so."""
    file = tmp_path / "rules.toml"
    file.write_text(RULE)
    assert (load_rules(str(file)).error_headers, load_rules(str(file)).queue_headers) == (
        OWN.error_headers,
        OWN.queue_headers,
    )
    file.write_text("error_headers = []\n" + RULE)
    assert load_rules(str(file)).error_headers == ()


def test_the_retried_class_is_the_relays() -> None:
    """The word that the relay looks for is the one that is sent."""
    assert LetterClass.TRANSIENT.value == TRANSIENT


RULE = '[[rule]]\nname = "mine"\nclass = "business"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULE + "error = '('", ["rule 'mine': error", "'(' is not a regular expression", "missing )", "correct it"]),
        (RULE + "error = ['a', 'b[']", ["rule 'mine': error", "'b[' is not a regular expression", "missing ]"]),
        (RULE + "error = '(?=a)b'", ["rule 'mine'", "(?=", "look-around, back references", "not supported"]),
        (RULE + "error = '(a)\\1'", ["rule 'mine'", "\\1", "look-around, back references", "not supported"]),
        (RULE + "error = '(?x) a'", ["rule 'mine'", "(?x) and large repeats are not supported"]),
        (RULE + "error = 'a{1001}'", ["rule 'mine'", "{1001}", "large repeats are not supported"]),
        (RULE + "error = '\\pL{900}'", ["rule 'mine'", "too large", "large repeats are not supported"]),
        (RULE + "error = []", ["rule 'mine': error", "at least 1"]),
        (RULE + f"error = {['a'] * 51}", ["rule 'mine': error", "at most 50"]),
        (RULE + f"error = '{'a' * 2001}'", ["rule 'mine'", "2,001 characters"]),
        (RULE + "error = 5", ["rule 'mine': error", "in quotes"]),
        (RULE + "error = ['a', 5]", ["rule 'mine': error", "in quotes"]),
        (RULE + 'headers = { h = "[" }', ["rule 'mine': headers.h", "not a regular expression"]),
        (RULE + "queue = []", ["rule 'mine': queue"]),
        (RULE + 'reasons = "expired"', ["rule 'mine': reasons", "not permitted"]),
        ('[[rule]]\nname = "mine"\nclass = "fatal"', ["rule 'mine': class", "'transient', 'business'"]),
        ('[[rule]]\nclass = "business"', ["rule number 1: name"]),
        ('[[rule]]\nname = "two words"\nclass = "business"', ["rule 'two words': name"]),
        ("rule = [5]", ["rule number 1"]),
        ('[rule]\nname = "one"', ["rule"]),
        ("rules = []", ["rules", "not permitted"]),
        (RULE * 2, ["two rules have the name 'mine'", "another"]),
        ("".join(RULE.replace("mine", f"r{at}") for at in range(RULES_MAX + 1)), ["rule", "200"]),
        ("rule = [", ["not TOML"]),
        ("\udcff", ["not TOML"]),
    ],
)  # fmt: skip
def test_bad_rules_are_named(text: str, said: list[str], tmp_path: Path) -> None:
    """A file that cannot be used is refused with the name of the rule, what is wrong with it, and how to correct it."""
    file = tmp_path / "rules.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError) as refused:
        load_rules(str(file))
    assert [part for part in (str(file), *said) if part not in str(refused.value)] == []


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is named, with the setting that names it; so is a file that is too large."""
    with pytest.raises(SettingsError, match=r"nowhere\.toml.*DEAD_LETTER_RULES"):
        load_rules(str(tmp_path / "nowhere.toml"))
    large = tmp_path / "large.toml"
    large.write_text("#" * 1_048_577)
    with pytest.raises(SettingsError, match="larger than"):
        load_rules(str(large))


def test_a_long_error_does_not_take_long() -> None:
    """However long a text is, and whatever pattern was let in, a verdict is there in a moment: no text makes RE2 try again and again."""
    rules = made({"error": ["(x+)+y", "(x|xx)*$y", "x.*x.*x.*y", "(x?){1000}(x?){900}y"]}, {"error": "z$"})
    began = time.process_time()
    assert rules.classify(trouble("x" * 1_000_000 + "z")).rule == NO_RULE
    assert time.process_time() - began < 2
    assert rules.classify(trouble("x" * (TEXT_CHARS_MAX - 1) + "z")).rule == "r1"
