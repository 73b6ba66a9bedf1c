"""The story of the guide "Adopt a table that you already have"."""

from examples.adopted import main


async def test_rows_of_a_foreign_table_are_retried_and_end_in_its_own_words() -> None:
    """The migration adds two columns and three indexes; then each row ends as sent or failed, with its count and its error."""
    lines = list[str]()
    await main(lines.append)
    assert lines == [
        "ALTER TABLE emails ADD COLUMN lease_until TEXT",
        "ALTER TABLE emails ADD COLUMN claim_id TEXT",
        "CREATE INDEX emails_first_idx ON emails",
        "CREATE INDEX emails_retry_idx ON emails",
        "CREATE INDEX emails_lease_idx ON emails",
        "ada: sent, 0 failed tries, None",
        "bob: sent, 1 failed tries, ConnectionError: no server for bob",
        "nobody: failed, 3 failed tries, ConnectionError: no server for nobody",
    ]
