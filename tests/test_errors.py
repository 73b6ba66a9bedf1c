"""The errors are the two trees that are drawn above them."""

import re

from redrive import errors


def drawn() -> dict[str, set[str]]:
    """Each class of the drawing with its bases: the one that it hangs under, and those that it also is."""
    found: dict[str, set[str]] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        named = re.match(r"    ([│ ├└─]*)([A-Z]\w+Error|NotHappened)( \(also (\w+)\))?(?=\s)", line)
        if named is None:
            continue
        depth = len(named[1]) // 4
        above[depth] = named[2]
        found[named[2]] = {above[depth - 1] if depth else "Exception"} | ({named[4]} if named[4] else set())
    return found


def test_the_drawn_trees_are_the_real_ones():
    """Every class of the module is drawn, under its base, with what it also is."""
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert drawn() == {one.__name__: {base.__name__ for base in one.__bases__} for one in classes}


def test_what_a_handler_raises_is_not_caught_with_what_redrive_raises():
    """`except RedriveError` around a call of redrive does not swallow what a handler says of its task."""
    assert not issubclass(errors.TaskError, errors.RedriveError)
    assert issubclass(errors.UsageError, errors.RedriveError)


def test_every_error_says_what_it_means():
    """Each class has a docstring of its own."""
    for name in drawn():
        assert getattr(errors, name).__doc__
