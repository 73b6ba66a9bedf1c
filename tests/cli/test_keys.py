"""`redrive keys`: made, listed, revoked, and shown once."""

import re
from collections.abc import Callable
from pathlib import Path

from redrive.access.keys import Scope

from .said import Said

Run = Callable[..., Said]


def test_keys_create_list_revoke(stored: Run):
    """A key is shown once, listed without its text, and revoked by its id."""
    made = stored(
        "keys", "create", "--user", "ada", "--scope", "operator", "--scope", "events:read", "--expires", "30d", "--json"
    ).json
    assert made["key"].startswith("rdk_")
    [listed] = stored("keys", "list", "--json").json["keys"]
    assert listed == {name: value for name, value in made.items() if name != "key"}
    assert listed["scopes"] == ["operator", "events:read"]
    assert "valid" in stored("keys", "list").out
    assert stored("keys", "revoke", made["key_id"]).code == 0
    assert "revoked" in stored("keys", "list").out
    assert stored("keys", "revoke", "nobody").code == 1


def test_key_for_people_is_alone_on_stdout(stored: Run):
    """`KEY=$(redrive keys create …)` works."""
    said = stored("keys", "create", "--user", "ada", "--scope", "viewer")
    assert re.fullmatch(r"rdk_[\w-]+\n", said.out)


def test_unknown_scope_lists_what_there_is(redrive: Run, folder: Path):
    """And nothing is made for it, not even a file."""
    said = redrive("keys", "create", "--user", "ada", "--scope", "root")
    assert said.code == 2
    assert ", ".join(Scope) in said.err
    assert list(folder.iterdir()) == []
