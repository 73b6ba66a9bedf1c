"""Which build of the user's code this process runs: each try and each sign of life carries it."""

import os
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

VERSION = "REDRIVE_VERSION"
VERSION_CHARS_MAX = 80
NOT_THEIRS = ("", "__main__", "redrive")
_package: list[str] = []
"""Where the application's own code is, once that is known."""


@lru_cache
def build() -> str | None:
    """Which version of the user's code this process runs; None where nobody can tell.

    What `REDRIVE_VERSION` says, else the commit of the working folder, else the version of the distribution that the code of the application
    was installed with: see `built_of`.
    """
    said: str | None = os.environ.get(VERSION, "").strip()
    if not said:
        with suppress(OSError):  # the folder is gone
            said = _commit(Path.cwd())
    said = said or _installed()
    return said[:VERSION_CHARS_MAX] if said else None


def built_of(module: str) -> None:
    """Say in which module a handler is: the package of the first one that is not ours is that of the application."""
    package = module.partition(".")[0]
    if not _package and package not in NOT_THEIRS:
        _package.append(package)
        build.cache_clear()


def _installed() -> str | None:
    """The version of the distribution that has the package; None for one that was not installed, or that several share."""
    for package in _package:
        owners = set(packages_distributions().get(package, ()))
        if len(owners) == 1:
            with suppress(PackageNotFoundError):
                return version(owners.pop())
    return None


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
