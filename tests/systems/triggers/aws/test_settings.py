"""The settings of triggers on AWS: one of them chooses it, and what is half set says what is missing."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from redrive.errors import SettingsError
from redrive.settings import load
from redrive.systems.triggers.aws.settings import AwsSettings

TABLE = "EVENTS_TABLE_NAME"
QUEUE = "DELIVERY_QUEUE_URL"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/deliveries"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours, and no `.env`."""
    for name in AwsSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)


def set_all(monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)


def test_without_a_table_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the surroundings name a region and an endpoint, as every function and container on AWS has them."""
    set_all(monkeypatch, AWS_REGION="eu-west-1", AWS_ENDPOINT_URL="http://127.0.0.1:4566")
    settings = load(AwsSettings)
    assert (settings.chosen, settings.store_url) == (False, None)
    assert settings.metrics_namespace == "Triggers"


def test_the_store_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that an application must know stands in one URL."""
    set_all(monkeypatch, EVENTS_TABLE_NAME="events", DELIVERY_QUEUE_URL=URL, DELIVERY_DLQ_URL=URL + "-dead")
    set_all(monkeypatch, AWS_REGION="eu-west-1", AWS_ENDPOINT_URL="http://127.0.0.1:4566", PAYLOAD_BUCKET="payloads")
    store = urlsplit(load(AwsSettings).store_url or "")
    assert (store.scheme, store.netloc) == ("dynamodb", "events")
    assert parse_qs(store.query) == {
        "queue": [URL],
        "dlq": [URL + "-dead"],
        "bucket": ["payloads"],
        "region": ["eu-west-1"],
        "endpoint": ["http://127.0.0.1:4566"],
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({TABLE: "events"}, rf"{QUEUE} is missing: {TABLE} is set.*QueueUrl"),
        ({QUEUE: URL}, rf"{QUEUE}=.*{TABLE} is not set.*set it too, or leave this out"),
        ({"DELIVERY_DLQ_URL": URL}, rf"DELIVERY_DLQ_URL=.*{TABLE} is not set"),
        ({"DASHBOARD_NAME": "mine"}, rf"DASHBOARD_NAME=.*{TABLE} is not set"),
        ({"METRICS_NAMESPACE": "Mine"}, rf"METRICS_NAMESPACE=.*{TABLE} is not set"),
        ({TABLE: "no table", QUEUE: URL}, rf"{TABLE}='no table' cannot be used"),
        ({TABLE: "events", QUEUE: "deliveries"}, rf"{QUEUE}=.*must be the URL of a queue, such as"),
        ({TABLE: "events", QUEUE: URL + ".fifo"}, rf"{QUEUE}=.*FIFO queue: use a standard one"),
        ({TABLE: "events", QUEUE: URL, "METRICS_NAMESPACE": "AWS/Mine"}, "METRICS_NAMESPACE=.*choose another one"),
        ({TABLE: "events", QUEUE: URL, "DASHBOARD_NAME": "my board"}, "DASHBOARD_NAME=.*cannot be used"),
        ({TABLE: "events", QUEUE: URL, "AWS_REGION": "Ireland"}, "AWS_REGION='Ireland' cannot be used"),
        ({TABLE: "events", QUEUE: URL, "AWS_ENDPOINT_URL": "localhost"}, "AWS_ENDPOINT_URL=.*http://"),
        ({TABLE: "events", QUEUE: URL, "PAYLOAD_BUCKET": "my bucket"}, "PAYLOAD_BUCKET='my bucket' cannot be used"),
        ({"PAYLOAD_BUCKET": "payloads"}, rf"PAYLOAD_BUCKET=.*{TABLE} is not set"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the settings, or wrong ones: the sentence has the variable and the remedy."""
    set_all(monkeypatch, **given)
    with pytest.raises(SettingsError, match=said):
        load(AwsSettings)
