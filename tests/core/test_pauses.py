"""Pauses of kinds, by their names."""

import pytest

from redrive.core.pauses import pausing, without_paused
from redrive.core.task import NewTask
from redrive.errors import UsageError


@pytest.mark.parametrize(
    ("names", "kind", "held_by"),
    [
        ([], "mail", None),
        (["kind:mail"], "mail", "kind:mail"),
        (["kind:mail"], "mail.sent", None),
        (["kind:mail.*"], "mail.sent", "kind:mail.*"),
        (["kind:mail", "kind:*"], "mail", "kind:*"),
        (["kind:a.b", "kind:a.*"], "a.b", "kind:a.*"),
        (["mail", "bank:mail"], "mail", None),
        (["kind:m[a]il"], "mail", None),
        (["kind:!*", "kind:*"], "!a", "kind:*"),
        (["kind:a", "kind:a*"], "a", "kind:a*"),
        (["kind:a*", "kind:*a"], "aa", "kind:*a"),
    ],
)
def test_which_pause_holds_a_kind(names: list[str], kind: str, held_by: str | None) -> None:
    """Its own, one with a star that fits, or that of the whole ledger, the widest first; a gate of the same name is none."""
    assert pausing(names, kind) == held_by
    assert without_paused([kind, "other"], names) == [one for one in (kind, "other") if pausing(names, one) is None]


def test_no_gate_is_called_like_a_pause() -> None:
    """A task with such a gate is refused, with the remedy: its pause would stop a kind."""
    with pytest.raises(UsageError, match="pause of a kind: let the gate's name begin with another word"):
        NewTask(kind="mail", key="k", gate="kind:mail")
