"""Histograms: which bucket counts what, and what can be read from the buckets."""

import pytest

from redrive.core.histograms import RAN, RAN_SECONDS, TOOK, TOOK_SECONDS, TRIES, percentile, took_bucket, tries_bucket


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0, "took_00"),
        (0.0099, "took_00"),
        (0.01, "took_01"),
        (1.0, "took_05"),
        (299_999, "took_15"),
        (300_000, "took_16"),
    ],
)
def test_a_bucket_begins_with_its_bound(seconds, bucket):
    """What took exactly a bound is counted above it; the last bucket has no end."""
    assert took_bucket(seconds) == bucket


@pytest.mark.parametrize(
    ("tries", "bucket"), [(0, "tries_1"), (1, "tries_1"), (2, "tries_2"), (5, "tries_5"), (6, "tries_more")]
)
def test_tries_are_counted_one_by_one_up_to_five(tries, bucket):
    """All above share a bucket."""
    assert tries_bucket(tries) == bucket
    assert TRIES == ("tries_1", "tries_2", "tries_3", "tries_4", "tries_5", "tries_more")


def test_there_is_one_bucket_more_than_bounds():
    """For what is longer than the last."""
    assert (TOOK[0], TOOK[-1], len(TOOK)) == ("took_00", "took_16", len(TOOK_SECONDS) + 1)
    assert (RAN[0], RAN[-1], len(RAN)) == ("ran_00", "ran_13", len(RAN_SECONDS) + 1)


@pytest.mark.parametrize(
    ("amounts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 1.0),
        ([4, 0, 0], 1.0, 2.0),
        ([4, 0, 0], 0.0, 0.0),
        ([2, 2, 0], 0.75, 6.0),
        ([2, 2, 0], 0.5, 2.0),
        ([0, 2, 2], 0.0, 2.0),
        ([1, 1, 2], 1.0, 10.0),
        ([0, 0, 3], 0.1, 10.0),
        ([1, 0, 0], 2.0, 10.0),
    ],
)
def test_a_percentile_is_interpolated_within_its_bucket(amounts, share, expected):
    """Between bounds of two and ten seconds; what has no upper bound counts as its lower one, and no tasks have none."""
    assert percentile(amounts, share, (2.0, 10.0)) == expected


@pytest.mark.parametrize(("amounts", "share", "expected"), [([1, 1, 2, 0], 0.75, 20.0), ([1, 0, 0, 0], 2.0, 30.0)])
def test_all_buckets_before_are_counted(amounts, share, expected):
    """Not only the last one before; and more than all is the last bound."""
    assert percentile(amounts, share, (2.0, 10.0, 30.0)) == expected
