"""The environment is read in one place, and what cannot be used says so by name."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.core.durations import parse_duration
from redrive.errors import SettingsError
from redrive.settings import Settings, load, load_settings
from redrive.wiring import KNOWN_SYSTEMS

ROOT = Path(__file__).parents[1]
SECTIONS = (Settings, *(section for known in KNOWN_SYSTEMS.values() for section in known.settings))


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variable of ours, and no `.env` but the test's own."""
    for name in [name for section in SECTIONS for name in section.model_fields]:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_serve_on_loopback_from_a_sqlite_file():
    """Without any setting there is a service on this machine alone."""
    settings = load_settings()
    assert (settings.database_url, settings.http_host, settings.http_port) == (
        "sqlite:///redrive.db",
        "127.0.0.1",
        8086,
    )
    assert settings.retention == timedelta(days=30)


def test_example_lists_every_setting_with_its_default():
    """`.env.example` and the settings cannot drift apart."""
    written = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    fields = {name: field for section in SECTIONS for name, field in section.model_fields.items()}
    assert set(written) == {name.upper() for name in fields}
    for section in SECTIONS:
        for name, field in section.model_fields.items():
            text = written[name.upper()]
            if isinstance(field.default, timedelta):
                assert parse_duration(text) == field.default
            elif isinstance(field.default, tuple):
                assert text == ",".join(field.default)
            elif isinstance(field.default, bool):
                assert text == str(field.default).lower()
            elif field.default is not None:
                assert text == str(field.default)


def test_example_is_read_as_it_stands(clean: Path):
    """Copied without a change, even with every line switched on, it changes nothing."""
    (clean / ".env").write_text(re.sub(r"^#([A-Z_]+=)", r"\1", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
    for section in SECTIONS:
        assert load(section) == section(_env_file=None)


@pytest.mark.parametrize(
    ("text", "span"), [("90", 90), ("2.5", 2.5), ("1500ms", 1.5), ("5s", 5), ("2m", 120), (" 1h ", 3600)]
)
def test_durations_take_seconds_or_a_unit(text: str, span: float, monkeypatch: pytest.MonkeyPatch):
    """Every span may be written either way."""
    monkeypatch.setenv("WORKER_LEASE", text)
    assert load_settings().worker_lease == timedelta(seconds=span)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HTTP_PORT", "65536"),
        ("HTTP_PORT", "http"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
        ("WORKER_CONCURRENCY", "0"),
        ("WORKER_CONCURRENCY", "10001"),
        ("WORKER_BATCH", "many"),
        ("WORKER_LEASE", "999ms"),
        ("WORKER_LEASE", "5 parsecs"),
        ("WORKER_GRACE", "-1"),
        ("WORKER_POLL", "1ms"),
        ("RETENTION_DAYS", "-1"),
        ("RETENTION_DAYS", "367"),
        ("REDRIVE_ADMIN_KEY", "short-secret"),
        ("REDRIVE_ADMIN_KEY", "a long secret with spaces"),
        ("REDRIVE_ADMIN_KEY", "ein-langer-schlüssel"),
    ],
)
def test_a_wrong_value_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch):
    """The error names the variable and where to change it."""
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=rf"{name}\b.* cannot be used: .*change it in the environment or in \.env"):
        load_settings()


def test_a_wrong_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    """Neither a wrong admin key nor the password of a URL leaves by an error or a repr."""
    monkeypatch.setenv("REDRIVE_ADMIN_KEY", "short-secret")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "short-secret" not in str(caught.value)
    monkeypatch.setenv("REDRIVE_ADMIN_KEY", "a-long-enough-secret")
    assert "a-long-enough-secret" not in repr(load_settings())


def test_all_wrong_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch):
    """Nobody has to mend one setting to hear of the next."""
    monkeypatch.setenv("HTTP_PORT", "-1")
    monkeypatch.setenv("WORKER_BATCH", "0")
    with pytest.raises(SettingsError, match=r"HTTP_PORT.*WORKER_BATCH"):
        load_settings()


def test_environment_goes_before_the_file(clean: Path, monkeypatch: pytest.MonkeyPatch):
    """`.env` is read, and a variable of the environment beats it."""
    (clean / ".env").write_text("HTTP_PORT=9001\nSERVICE_NAME=shop\nSOMETHING_ELSE=1\n")
    monkeypatch.setenv("HTTP_PORT", "9002")
    settings = load_settings()
    assert (settings.http_port, settings.service_name) == (9002, "shop")


def test_an_unreadable_file_is_named(clean: Path):
    """A `.env` that is no text is a clear error."""
    (clean / ".env").write_bytes(b"HTTP_PORT=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        load_settings()


def test_options_go_before_the_environment(monkeypatch: pytest.MonkeyPatch):
    """What a command is given beats the environment; the rest comes from there."""
    monkeypatch.setenv("WORKER_CONCURRENCY", "7")
    monkeypatch.setenv("RETENTION_DAYS", "0")
    worker = load_settings().worker(lease=timedelta(seconds=5))
    assert (worker.concurrency, worker.lease, worker.retention) == (7, timedelta(seconds=5), {})
