"""What a disk may hold after a power cut.

A write is durable once a sync of its file, begun after it, has returned. Until then any part of it may be there: none, all, or some of its
sectors, also without what was written before it. A file that was made or removed is so for certain once its folder was synced.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that the process did to a file: see `record.c`."""

    what: str
    number: int
    at: int
    bytes_: bytes
    path: str


def read(file: Path) -> Iterator[Done]:
    """All that was recorded, in order. A record that was cut off is the last."""
    data, at = file.read_bytes(), 0
    while (end := data.find(b"\n", at)) >= 0:
        what, number, offset, length, path = data[at:end].decode().split(" ", 4)
        at = end + 1 + int(length)
        if at > len(data):
            return
        yield Done(what, int(number), int(offset), data[end + 1 : at], path)


@dataclass(slots=True)
class _File:
    """The bytes that are durable, and what was done since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Done]] = field(default_factory=list)
    linked: bool = False
    """Whether the folder is sure to know it."""


class Disk:
    """Follows what was recorded. With `lies` a sync does nothing, as on a disk that says it has written and has not."""

    def __init__(self, folder: str, *, lies: bool = False) -> None:
        self._folder = folder
        self._lies = lies
        self._files: dict[str, _File] = {}
        self._removed: dict[str, tuple[int, _File]] = {}
        self._made: dict[str, int] = {}
        self._begun: dict[int, int] = {}
        self._steps = 0

    def follow(self, done: Done) -> None:
        """One step further."""
        self._steps += 1
        match done.what:
            case "create":
                self._files[done.path] = _File()
                self._made[done.path] = self._steps
            case "write" | "cut":
                self._files.setdefault(done.path, _File(linked=True)).pending.append((self._steps, done))
            case "remove":
                self._removed[done.path] = (self._steps, self._files.pop(done.path, _File()))
                self._made.pop(done.path, None)
            case "begin":
                self._begun[done.number] = self._steps
            case "end" if not self._lies:
                self._synced(done.path, self._begun.pop(done.number))

    def _synced(self, path: str, begun: int) -> None:
        if path == self._folder:
            for name in [name for name, step in self._made.items() if step < begun]:
                self._files[name].linked = True
                del self._made[name]
            for name in [name for name, (step, _) in self._removed.items() if step < begun]:
                del self._removed[name]
        elif (file := self._files.get(path)) is not None:
            for step, done in file.pending:
                if step < begun:
                    _apply(file.durable, done)
            file.pending = [(step, done) for step, done in file.pending if step > begun]

    def after_cut(self, rng: random.Random, kept: str) -> dict[str, bytes]:
        """The files by their names: with `none` of what is not durable, with `all` of it, or with `some`, torn and out of order."""
        found: dict[str, bytes] = {}
        if kept == "some":  # a removal that nobody has synced may not have happened
            for path, (_, file) in self._removed.items():
                if rng.random() < 0.5:
                    found[PurePath(path).name] = bytes(file.durable)
        for path, file in self._files.items():
            if not file.linked and (kept == "none" or (kept == "some" and rng.random() < 0.5)):
                continue
            content = bytearray(file.durable)
            for _, done in file.pending:
                if kept == "all":
                    _apply(content, done)
                elif kept == "some":
                    _apply_some(content, done, rng)
            found[PurePath(path).name] = bytes(content)
        return found


def _apply(content: bytearray, done: Done) -> None:
    if done.what == "cut":
        del content[done.at :]
    content.extend(bytes(max(0, done.at - len(content))))
    content[done.at : done.at + len(done.bytes_)] = done.bytes_


def _apply_some(content: bytearray, done: Done, rng: random.Random) -> None:
    """Nothing, all, or half of its sectors."""
    share = rng.choice((0.0, 0.5, 1.0))
    if done.what == "cut":
        if rng.random() < share:
            _apply(content, done)
        return
    first = 0
    while first < len(done.bytes_):
        last = min(len(done.bytes_), first + SECTOR - (done.at + first) % SECTOR)
        if rng.random() < share:
            _apply(content, Done("write", 0, done.at + first, done.bytes_[first:last], done.path))
        first = last
