"""`redrive policy try`: a policy from a file, beside what happened."""

from pathlib import Path

import pytest

from tests.cli.test_tasks import Run, dead_tasks

TOML = 'attempts = 4\nname = "slower"\n[backoff]\nkind = "fixed"\nwait = "1m"\n[jitter]\nkind = "none"\n'


def test_a_policy_is_tried(stored: Run, url: str, folder: Path):
    """The table says both sides and what cannot be known; JSON says the same."""
    (folder / "slower.toml").write_text(TOML)
    (folder / "flags.json").write_text('{"policy": "flags"}')
    assert "nothing was tried" in stored("policy", "try", "slower.toml").err
    dead_tasks(url, 2)
    said = stored("policy", "try", "slower.toml", "--since", "1d", "--json").json
    assert (said["tasks"], said["policy"]["attempts"], said["happened"]["deaths"]) == (2, 4, 2)
    assert said["would"]["tries"] >= said["happened"]["tries"]
    assert sum(one["would"] for one in said["per_minute"]) == said["would"]["tries"]
    assert said["cannot_be_known"]
    shown = stored("policy", "try", "flags.json").out
    assert "would have" in shown
    assert "What cannot be known" in shown


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.toml", "x", "is not TOML"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "[]", "valid dictionary"),
        ("a.toml", "", "either a policy or a backoff"),
        ("a.toml", TOML + "more = 1\n", "jitter.more"),
        ("a.toml", 'key = "k"\n' + TOML, "belongs to a preview"),
        ("a.toml", "#" * 70_000, "larger than"),
    ],
)
def test_what_is_no_policy_is_refused(redrive: Run, folder: Path, name: str, text: str, complaint: str):
    """With one sentence that names the file."""
    (folder / name).write_text(text)
    said = redrive("policy", "try", name)
    assert (said.code, said.out) == (2, "")
    assert name in said.err
    assert complaint in said.err
    assert "cannot be read" in redrive("policy", "try", "missing.toml").err
