"""Power cuts on SQLite, small; `python -m proof power_cuts` is the same at every point of two thousand commits."""

import random

from proof.power.check import check, record
from proof.power.disk import Disk, Done

FOLDER, FILE = "/disk", "/disk/a"


def after(*steps: Done, kept: str, rng: random.Random | None = None, lies: bool = False) -> dict[str, bytes]:
    """What a cut leaves behind after these steps."""
    disk = Disk(FOLDER, lies=lies)
    for step in steps:
        disk.follow(step)
    return disk.after_cut(rng or random.Random(1), kept)


def test_a_power_cut_loses_nothing_that_was_acknowledged(rng: random.Random) -> None:
    """At any write or sync of a working process; and with syncs that do nothing the same check finds that all is lost."""
    recording = record(8, rng.getrandbits(32))
    found = check(recording, rng, points_max=15, continued_max=1)
    assert (found.bad.total(), found.first) == (0, "")
    assert found.images.total() == 45
    assert found.continued == 1
    lying = check(recording, rng, points_max=5, lies=True)
    assert (lying.bad["none"], lying.bad["all"]) == (5, 0)


def test_a_write_is_durable_after_a_sync_that_began_later() -> None:
    """What is written while a sync is under way may be lost, and a folder that was not synced may not know the file."""
    made, first, second = (
        Done("create", 0, 0, b"", FILE),
        Done("write", 0, 0, b"one", FILE),
        Done("write", 0, 3, b"two", FILE),
    )
    synced = [Done("begin", 1, 0, b"", FILE), second, Done("end", 1, 0, b"", FILE)]
    known = [Done("begin", 2, 0, b"", FOLDER), Done("end", 2, 0, b"", FOLDER)]
    assert after(made, first, *synced, *known, kept="none") == {"a": b"one"}
    assert after(made, first, *synced, kept="none") == {}
    assert after(made, first, *synced, kept="all") == {"a": b"onetwo"}
    assert after(made, first, *synced, *known, kept="none", lies=True) == {}


def test_a_write_is_torn_at_sectors_and_comes_out_of_order() -> None:
    """Of two writes the second may be there without the first, and half of one may be."""
    writes = [Done("write", 0, number * 1024, bytes([number + 1]) * 1024, FILE) for number in range(2)]
    images = {after(*writes, kept="some", rng=random.Random(seed)).get("a", b"") for seed in range(3000)}
    kinds = {tuple(image[at] if at < len(image) else 0 for at in range(0, 2048, 512)) for image in images}
    assert {(0, 0, 2, 2), (1, 0, 0, 0), (0, 1, 2, 0), (1, 1, 2, 2), (0, 0, 0, 0)} <= kinds
