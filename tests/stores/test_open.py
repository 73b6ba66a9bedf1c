"""From a URL to a store, and what a store over items refuses."""

from datetime import timedelta

import pytest

from redrive import Redrive
from redrive.core.table import LedgerTable
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import SettingsError, UsageError
from redrive.stores.aws import read_url
from redrive.stores.open import open_store
from redrive.stores.port import NO_TASKS
from redrive.stores.sql import SqlStore

QUEUE = "https://sqs.eu-west-1.amazonaws.com/1/deliveries"
URL = f"dynamodb://events?queue={QUEUE}&region=eu-west-1"


def test_a_url_names_a_store():
    """What it begins with chooses: a database, or a table of DynamoDB."""
    assert isinstance(open_store("sqlite:///any.db"), SqlStore)
    store = open_store(URL)
    assert (store.url, store.file, store.keeps_tasks) == ("dynamodb://events", None, False)


def test_all_that_a_url_of_items_says_is_read():
    """Table, queue, dead letters, bucket, region, where AWS is, and how long a message is worked on."""
    places, region, endpoint, lease = read_url(
        f"{URL}&dlq={QUEUE}-dead&bucket=payloads&endpoint=http://127.0.0.1:4566&lease=7.5"
    )
    assert places == ("events", QUEUE, f"{QUEUE}-dead", "payloads")
    assert (region, endpoint, lease) == ("eu-west-1", "http://127.0.0.1:4566", timedelta(seconds=7.5))
    assert read_url(URL)[-1] == WorkerSettings().lease


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://events",
        f"dynamodb://?queue={QUEUE}",
        f"{URL}&colour=red",
        f"{URL}&lease=long",
        f"dynamodb://a/b?queue={QUEUE}",
    ],
)
def test_a_url_of_items_that_lacks_something_says_how_it_is_written(url: str):
    """Also one that says what nobody knows, so that a slip of the pen is not just ignored."""
    with pytest.raises(SettingsError, match="write dynamodb://TABLE"):
        open_store(url)


@pytest.mark.parametrize("name", ["tasks", "handler", "add", "add_many", "add_sync", "database"])
def test_an_application_on_items_has_no_tasks_of_its_own(name: str):
    """It says so in one sentence, and what to do."""
    with pytest.raises(UsageError) as refused:
        getattr(Redrive(URL), name)
    assert str(refused.value) == NO_TASKS


def test_an_application_on_items_adopts_no_tables():
    """There are none."""
    with pytest.raises(UsageError, match="only deliveries of triggers"):
        Redrive(URL).adopt(LedgerTable("orders"))


def test_what_nobody_has_is_no_attribute():
    """The sentence is for what other stores have."""
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = Redrive(URL).colour  # type: ignore[attr-defined]
