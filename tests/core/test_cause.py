"""Which errors are one cause, and which are not."""

import re

import pytest

from redrive.core.cause import CAUSE_CHARS_MAX, UNKNOWN, cause_of


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("E: GET https://bank.example/pay?id=7 failed", "E: GET <url> failed"),
        ("E: no account a.b+c@mail.example.com", "E: no account <email>"),
        ("E: 6c0b9c36-8d3c-4f6e-9f0e-0d5a4a0c7a11 is gone", "E: <id> is gone"),
        ("E: since 2026-01-02T03:04:05.678Z and 2026-01-02 03:04+01:00", "E: since <time> and <time>"),
        ("E: 10.0.0.1:5432 and 10.0.0.2", "E: <address> and <address>"),
        ("E: 'a b' \"c\" `d`", "E: <text> <text> <text>"),
        ("E: at 0xDEADBEEF in commit 0a1b2c3d", "E: at <id> in commit <id>"),
        ("E: deadbeef and 7 of 2.5", "E: deadbeef and <number> of <number>"),
        ("  E:\t two\n\nlines  ", "E: two lines"),
    ],
)
def test_what_varies_is_left_out(error, text):
    """Addresses, ids, times, names in quotes and numbers stand as what they are, and white space once."""
    assert cause_of(error).text == text


@pytest.mark.parametrize("error", [None, "", " \n"])
def test_no_error_is_a_cause_too(error):
    """It says that none was recorded."""
    assert cause_of(error).text == UNKNOWN == "no error was recorded"


def test_a_cause_has_a_short_id_and_a_short_text():
    """The id is the same in every process and every version: links and marks hold it."""
    cause = cause_of("E: x", kind="mail", at="shop.py:7 in pay")
    assert cause.id == "89cba2c8a38089be"
    assert re.fullmatch("[0-9a-f]{16}", cause_of("\udcff").id)
    assert cause_of("x" * 5000).text == "x" * CAUSE_CHARS_MAX
    # What is looked at is longer than what is shown, so a text that shrinks fills it.
    assert cause_of("1" * 1000 + "x" * 500).text == "<number>" + "x" * 200


def test_a_line_tells_more_than_a_message():
    """With a line, errors of one class from there are one cause whatever they say; another line, class or kind is another."""
    cause = cause_of("E: x", kind="mail", at="shop.py:7 in pay").id
    assert cause == cause_of("E: something else", kind="mail", at="shop.py:7 in pay").id
    others = [
        cause_of("F: x", kind="mail", at="shop.py:7 in pay"),
        cause_of("E: x", kind="mail", at="shop.py:8 in pay"),
        cause_of("E: x", kind="sms", at="shop.py:7 in pay"),
        cause_of("E: x", at="shop.py:7 in pay"),
        cause_of("E: x", kind="mail"),
        cause_of("E: y", kind="mail"),
        cause_of("E: x"),
    ]
    assert len({cause, *(other.id for other in others)}) == 8


def test_a_message_alone_is_no_class():
    """Some systems store the message alone: from one line it is one cause, whatever it says before a colon."""
    one, other = (cause_of(error, at="shop.py:7 in pay").id for error in ("no luck: 7", "out of luck: 8"))
    assert one == other != cause_of("luck: 7", at="shop.py:7 in pay").id
