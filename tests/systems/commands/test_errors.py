"""The errors of the bus: the tree that is drawn is the tree that there is."""

import inspect
import re

import pytest

from redrive.systems.commands import errors

NAME = re.compile(r"\b[A-Z]\w*Error\b")


def drawn() -> set[tuple[str, str]]:
    """Parents and children as the docstring draws them: what stands further right hangs on what stands above it."""
    pairs, above = set(), dict[int, str]()
    for line in inspect.getdoc(errors).split("\n\nThe last three")[0].splitlines()[2:]:
        for found in NAME.finditer(re.split(r"  +(?=[a-z])", line)[0]):
            above = {column: name for column, name in above.items() if column < found.start()}
            if above:
                pairs.add((above[max(above)], found[0]))
            above[found.start()] = found[0]
    return pairs


def test_the_drawn_tree_is_the_tree() -> None:
    """Every error of the module hangs where the drawing has it, and the drawing has no other."""
    ours = [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]
    bases = {
        (base.__name__, one.__name__)
        for one in ours
        for base in one.__bases__
        if issubclass(one, Exception) and issubclass(base, Exception)
    }
    classes = {"TransientError", "PermanentError", "BusinessError"}
    assert drawn() == bases | {("TaskError", name) for name in classes}
    assert all(getattr(errors, name).__base__.__name__ == "TaskError" for name in classes)


@pytest.mark.parametrize("name", ["code", "message", "details"])
def test_an_error_whose_properties_raise_is_still_kept(name: str) -> None:
    """A command whose error cannot be asked for its code, message or details is kept with what can be read of it."""

    def refuse(self: object) -> None:
        raise RuntimeError("no")

    asked = property(refuse, lambda self, value: None)
    error = type("OddError", (errors.PermanentCommandError,), {name: asked})("FULL", "the disk is full")
    assert errors.trouble_of(error) == errors.CommandTrouble("PERMANENT", "OddError", "[FULL] the disk is full")
