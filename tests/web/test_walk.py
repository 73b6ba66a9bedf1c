"""Nobody gets in: every route, asked by everybody."""

import dataclasses

import pytest

from tests.web.walk import faults, lines, walk


@pytest.mark.long_on("sqlite")
async def test_every_route_lets_in_only_who_may(url):
    """Every route x every scope and every kind of stranger; a route that is new fails this until it has a line."""
    asked = await walk(url)
    assert len(asked) > 1000
    assert faults(asked) == []
    # The walk can fail: a stranger who comes in, a route without a line, and a line without a route.
    stranger = next(one for one in asked if one.who == "nobody" and one.status == 401)
    assert faults([*asked, dataclasses.replace(stranger, status=200)])
    assert "has no line" in faults([*asked, dataclasses.replace(stranger, path="/new")])[0]
    some = min(lines())
    assert faults([one for one in asked if (one.method, one.path) != some])
