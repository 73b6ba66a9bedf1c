"""The story of the guide "Code without an event loop"."""

from examples.plain import main


def test_an_order_and_its_invoice_are_both_there_or_neither() -> None:
    """The refused order leaves no invoice behind; the others are sent."""
    lines = list[str]()
    main(lines.append)
    assert lines[0] == "we do not sell that"
    assert sorted(lines[1:]) == ["invoice of order 7", "the day is closed"]
