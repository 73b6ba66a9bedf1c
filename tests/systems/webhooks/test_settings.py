"""The settings of the inbox: their defaults, and what is refused."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.preview import PUBLISHED
from redrive.errors import SettingsError
from redrive.settings import Settings, load, load_settings
from redrive.systems.webhooks import Webhooks, WebhookSettings
from redrive.wiring import attach_systems


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder and no variable of ours."""
    for name in (*Settings.model_fields, *WebhookSettings.model_fields):
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("clean")
def test_the_defaults_are_those_of_the_spec(monkeypatch: pytest.MonkeyPatch):
    """And give the policy that `redrive preview --policy webhooks` shows."""
    given = load(WebhookSettings)
    assert (given.worker_count, given.queue_maxsize, given.max_attempts) == (85, 1000, 5)
    assert (given.retry_base_delay, given.retry_max_delay) == (timedelta(seconds=5), timedelta(seconds=300))
    assert (given.retention_days, given.cleanup_interval_hours, given.webhook_max_bytes) == (30, 1, 1 << 20)
    app = Redrive("sqlite:///a.db")
    attach_systems(app, ["webhooks"])
    assert app.systems["webhooks"].policy == PUBLISHED["webhooks"]
    for name, text in (("RETRY_BASE_DELAY", "2m"), ("RETRY_MAX_DELAY", "600"), ("WEBHOOK_OPEN", "true")):
        monkeypatch.setenv(name, text)
    given = load(WebhookSettings)
    assert (given.retry_base_delay, given.retry_max_delay) == (timedelta(minutes=2), timedelta(minutes=10))
    assert given.webhook_open


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORKER_COUNT", "0"),
        ("QUEUE_MAXSIZE", "0"),
        ("MAX_ATTEMPTS", "0"),
        ("RETRY_BASE_DELAY", "soon"),
        ("WEBHOOK_MAX_BYTES", "16777217"),
        ("WEBHOOK_FORWARD_URL", "ftp://example.com/"),
        ("CLEANUP_INTERVAL_HOURS", "0"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str):
    """Before anything starts."""
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=name):
        Webhooks(Redrive("sqlite:///a.db"))


@pytest.mark.usefixtures("clean")
def test_a_path_is_a_database_too(monkeypatch: pytest.MonkeyPatch):
    """DB_PATH names a SQLite file; DATABASE_URL wins."""
    monkeypatch.setenv("DB_PATH", "data/hooks.db")
    assert load_settings().database_url == "sqlite:///data/hooks.db"
    monkeypatch.setenv("DB_PATH", "/data/hooks.db")
    assert load_settings().database_url == "sqlite:////data/hooks.db"
    monkeypatch.setenv("DATABASE_URL", "postgresql://a@b/c")
    assert load_settings().database_url == "postgresql://a@b/c"
