"""Which build of the user's code this process runs: each try and each sign of life carries it."""

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

VERSION = "REDRIVE_VERSION"
VERSION_CHARS_MAX = 80


@lru_cache
def build() -> str | None:
    """Which version of the user's code this process runs: what `REDRIVE_VERSION` says, else the commit of the working folder."""
    said: str | None = os.environ.get(VERSION, "").strip()
    if not said:
        with suppress(OSError):  # the folder is gone
            said = _commit(Path.cwd())
    return said[:VERSION_CHARS_MAX] if said else None


def _commit(folder: Path) -> str | None:
    """The commit that a folder was checked out at, as git writes it down; None where there is none."""
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError, UnicodeDecodeError):
            git = place / ".git"
            if git.is_file():  # a worktree points to its own
                git = place / git.read_text().removeprefix("gitdir:").strip()
            if not git.is_dir():
                continue
            head = (git / "HEAD").read_text().strip()
            if not head.startswith("ref:"):
                return head[:12]
            return _ref(git, head.removeprefix("ref:").strip())
    return None


def _ref(git: Path, name: str) -> str | None:
    common = git / "commondir"
    places = [git, git / common.read_text().strip()] if common.is_file() else [git]
    for place in places:
        if (place / name).is_file():
            return (place / name).read_text().strip()[:12]
        packed = place / "packed-refs"
        for line in packed.read_text().splitlines() if packed.is_file() else []:
            commit, _, named = line.partition(" ")
            if named == name:
                return commit[:12]
    return None
