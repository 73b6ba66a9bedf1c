"""In which order the mutants of a module are tried: drawn, so that the first of them are a fair sample of all. And what was tried of it."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

SEED = 1


def drawn(keys: Iterable[str]) -> list[str]:
    """The same order for the same mutants, whoever asks."""
    ordered = sorted(keys)
    random.Random(SEED).shuffle(ordered)
    return ordered


@dataclass(frozen=True, slots=True)
class Told:
    """What mutmut tells of a broken module: its mutants, and what each function was before it was broken."""

    keys: tuple[str, ...]
    functions: Mapping[str, str]

    def of(self, key: str) -> str:
        """A hash of the function that a mutant is one of."""
        return self.functions[key.partition("__mutmut_")[0].rpartition(".")[2]]

    def tried(self, lines: Iterable[dict[str, str]]) -> list[dict[str, str]]:
        """What became of its mutants, the last time that each was tried; one that found no processor tells nothing."""
        keys = set(self.keys)
        ended = {one["key"]: one for one in lines if one["key"] in keys and one["of"] == self.of(one["key"])}
        return [ended[key] for key in drawn(ended) if ended[key]["end"] != "starved"]


def told_of(broken: Path) -> Told:
    """Of a broken module; nothing of one that is not there."""
    meta = broken.with_suffix(".py.meta")
    told = json.loads(meta.read_text()) if meta.exists() else {"exit_code_by_key": {}, "hash_by_function_name": {}}
    return Told(tuple(told["exit_code_by_key"]), told["hash_by_function_name"])
