"""The story of the guide "Results"."""

from examples.results import main


async def test_a_sum_is_waited_for() -> None:
    """The one that can be made has a result, the other an error."""
    lines = list[str]()
    await main(lines.append)
    assert lines == ["{'total': 6}", "task 'sum-8' is dead: ValueError: nothing to add up"]
