"""What can be sent at all: everything else is refused before the bus sees it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import PayloadError, UsageError
from redrive.systems.commands import (
    NewCommand,
)
from redrive.systems.commands.values import json_text
from tests.systems.commands.conftest import DOMAIN, TYPE


def new(command_id: str, **given) -> NewCommand:
    return NewCommand(**({"domain": DOMAIN, "command_type": TYPE, "command_id": command_id, "data": {}} | given))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"domain": "Payments"}, "lowercase letters"),
        ({"domain": "p" * 38}, "1 to 37"),
        ({"domain": "a-b"}, "lowercase letters"),
        ({"domain": ""}, "lowercase letters"),
        ({"command_type": ""}, "command_type must be"),
        ({"command_type": "Debit*"}, "without"),
        ({"command_type": None}, "command_type must be"),
        ({"command_id": "x" * 151}, "command_id must be"),
        ({"command_id": None}, "command_id must be"),
        ({"command_id": "a\0b"}, "no database stores"),
        ({"correlation_id": ""}, "correlation_id must be"),
        ({"reply_to": "Replies; DROP"}, "name of a queue"),
        ({"reply_to": "shipping__commands"}, "one for commands"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"max_attempts": True}, "max_attempts must be"),
        ({"data": {"x": object()}}, "not JSON"),
        ({"data": "a\0b"}, "NUL"),
        ({"data": "x" * 1_100_000}, "bytes"),
    ],
)
def test_bad_commands_are_refused_before_anything_is_sent(wrong: dict, said: str) -> None:
    """The error says what is wrong and what would do."""
    with pytest.raises((UsageError, PayloadError), match=said):
        new(**({"command_id": "c-1"} | wrong))


@given(st.text(max_size=30))
def test_only_a_real_nul_is_refused(text: str) -> None:
    r"""A text that merely spells `\u0000` is data like any other."""
    spelled = text.replace("\0", "") + "\\u0000"
    assert json_text(spelled.encode("utf-8", "ignore").decode())
    with pytest.raises(PayloadError):
        json_text(text.encode("utf-8", "ignore").decode() + "\0")
