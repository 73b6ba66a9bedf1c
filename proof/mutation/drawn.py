"""In which order the mutants of a module are tried: drawn, so that the first of them are a fair sample of all."""

import random
from collections.abc import Iterable, Mapping

SEED = 1


def drawn(keys: Iterable[str]) -> list[str]:
    """The same order for the same mutants, whoever asks."""
    ordered = sorted(keys)
    random.Random(SEED).shuffle(ordered)
    return ordered


def tried_of(keys: Iterable[str], ended: Mapping[str, dict[str, str]]) -> list[dict[str, str]]:
    """What became of the first ones in that order, up to the first that has not ended. One that found no processor tells nothing."""
    told = []
    for key in drawn(keys):
        if key not in ended:
            break
        if ended[key]["end"] != "starved":
            told.append(ended[key])
    return told
