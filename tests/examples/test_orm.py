"""The story of the guide "SQLAlchemy models"."""

from examples.orm import main


async def test_a_row_of_a_model_is_retried_and_its_own_columns_say_so() -> None:
    """The mail of the example fails once and is sent at the second try; the model's own columns tell it."""
    lines = list[str]()
    await main(lines.append)
    assert lines == [
        "ada@example.org: sent after 2 tries, the first failed with ConnectionError: mail server down",
    ]
