"""The story of the guide "Typed payloads"."""

from examples.typed import main


async def test_a_payment_that_does_not_fit_is_never_stored() -> None:
    """The one that fits is paid, the other is refused with its path."""
    lines = list[str]()
    await main(lines.append)
    assert lines == [
        "'pay': the payload does not fit Payment: cents: Input should be a valid integer, unable to parse string as an integer",
        "700 cents to DE1",
    ]
