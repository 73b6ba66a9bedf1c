"""Nobody gets in: every route, asked by everybody."""

import dataclasses

import pytest

from tests.web.walk import FOREIGN, THERE, faults, lines, walk


@pytest.mark.long_on("sqlite")
async def test_every_route_lets_in_only_who_may(url):
    """Every route x every scope and every kind of stranger x ids of nobody, of what is there and of somebody else's; a new route needs a line."""
    asked = await walk(url)
    assert len(asked) > 1000
    assert faults(asked) == []
    # The walk can fail: a stranger who comes in, a route without a line, and a line without a route.
    stranger = next(one for one in asked if one.who == "nobody" and one.status == 401)
    assert faults([*asked, dataclasses.replace(stranger, status=200)])
    assert "has no line" in faults([*asked, dataclasses.replace(stranger, path="/new")])[0]
    some = min(lines())
    assert faults([one for one in asked if (one.method, one.path) != some])
    # So can that of things that belong to somebody: one that is shown, one that is told apart from nothing, and one that was changed.
    foreign = next(one for one in asked if one.ids == FOREIGN and one.status == 404)
    for told in (dataclasses.replace(foreign, status=200), dataclasses.replace(foreign, said="it is not yours")):
        assert "somebody else has it" in faults([*asked, told])[0]
    assert any(one.ids == THERE and one.status == 204 for one in asked)
    assert asked.harmed == []
    asked.harmed.append("an event of somebody else was changed")
    assert faults(asked)
