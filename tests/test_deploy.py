"""The files for Prometheus and Grafana ask for metrics and labels that the service really has."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from redrive import Redrive
from redrive.core.outcome import Cancelled, Done, Failed, LeaseExpired, Snoozed
from redrive.core.states import State
from redrive.observe.metrics import MetricsObserver
from redrive.running import Service
from redrive.settings import Settings
from redrive.systems.triggers import Triggers, TriggerSettings

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "redrive-alerts.yml"
BOARD = DEPLOY / "grafana" / "redrive.json"
NAMED = "redrive_|events_|trigger_events|retry_attempts|time_to_delivery"
"""How names of metrics begin."""
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exposed(registry: CollectorRegistry) -> dict[str, set[str]]:
    """Every series that a scrape can show, with its labels."""
    found: dict[str, set[str]] = {}
    collectors = {id(one): one for one in registry._collector_to_names}.values()
    for collector in collectors:
        labels = set(getattr(collector, "_labelnames", ()))
        for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
            for ending in ENDINGS.get(family.type, ("",)):
                found[family.name + ending] = labels | ({"le"} if ending == "_bucket" else set())
    return found


@pytest.fixture
def metrics(tmp_path: Path) -> dict[str, set[str]]:
    """What a service exposes."""
    app = Redrive(f"sqlite:///{tmp_path / 'test.db'}")
    Triggers(app, TriggerSettings(_env_file=None))
    service = Service(app, Settings(_env_file=None))
    assert isinstance(service.metrics, MetricsObserver)
    return exposed(service.metrics.registry)


def expressions() -> list[tuple[str, str]]:
    """All that the files ask for, with where it stands."""
    rules = yaml.safe_load(RULES.read_text())
    asked = [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]
    board = json.loads(BOARD.read_text())
    asked += [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel["targets"]]
    asked += [(one["name"], one["query"]["query"]) for one in board["templating"]["list"] if one["type"] == "query"]
    return asked


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_expression_asks_for_what_is_there(metrics: dict[str, set[str]], where: str, expression: str):
    """Names, labels in braces and labels that are summed by."""
    names = re.findall(rf"\b(?:{NAMED})[a-z_]*", expression)
    assert names, where
    labels: set[str] = set()
    for name in names:
        assert name in metrics, f"{where}: {name} is not exposed; there are {sorted(metrics)}"
        labels |= metrics[name]
    for name, inside in re.findall(rf"\b((?:{NAMED})[a-z_]*)\{{([^}}]*)\}}", expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", inside):
            assert label in metrics[name], f"{where}: {name} has no label {label}"
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {one.strip() for one in grouped.split(",")} <= labels, where


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_word_that_is_asked_for_exists(where: str, expression: str):
    """States and outcomes are spelled as the code spells them."""
    outcomes = {"done", "failed", "snoozed", "cancelled", "lease_expired", "released"}
    for outcome in (Done, Failed, Snoozed, Cancelled, LeaseExpired):
        assert re.sub(r"(?<!^)(?=[A-Z])", "_", outcome.__name__).lower() in outcomes
    for label, known in (("state", set(State)), ("outcome", outcomes)):
        for said in re.findall(rf'{label}=~?"([^"]*)"', expression):
            assert set(said.split("|")) <= known, where


def test_every_rule_says_what_to_do():
    """A name, a severity, what is wrong and where to look."""
    rules: list[dict[str, Any]] = [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 6
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert label in ("ledger", "kind")


def test_the_scrape_configuration_names_the_rules():
    """And the port that the service listens on by default."""
    configured = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert configured["rule_files"] == [RULES.name]
    [job] = configured["scrape_configs"]
    default = Settings(_env_file=None)
    assert job["static_configs"][0]["targets"] == [f"{default.http_host}:{default.http_port}"]


def test_the_board_has_panels_that_do_not_overlap():
    """Each on its own place, each with a title."""
    panels = json.loads(BOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        assert panel["title"]
        taken |= cells


def test_no_share_is_of_tries():
    """What failed once and was then done has not failed: shares are of tasks, and of events, that ended."""
    for where, expression in expressions():
        if " / " in expression:
            assert 'outcome=~"done|failed' not in expression, where
            assert "lease_expired" not in expression, where


# --- containers and hosts ---------------------------------------------------------------------------------------------

ROOT = DEPLOY.parent


def test_a_container_is_not_root_and_says_whether_it_is_well() -> None:
    """The image drops root, keeps its state in one folder, and has a health check that asks the real route."""
    told = (ROOT / "Dockerfile").read_text()
    assert "USER 10001" in told
    assert "VOLUME /data" in told
    assert "DATABASE_URL=sqlite:////data/" in told
    assert "8086/health" in told
    extras = re.search(r"'\.\[(.*?)\]'", told)
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= set(known)
    # In the other order pip looks for redrive itself in an index.
    assert f"'.[{extras[1]}]' ./service" in told
    copied = re.findall(r"^COPY (?!--)(.*) \./", told, re.MULTILINE)
    sent = (ROOT / ".dockerignore").read_text()
    assert all(f"!{name}\n" in sent for names in copied for name in names.split())


def test_compose_makes_the_tables_before_anybody_works() -> None:
    """Service and workers start when the migration is done; nothing of redrive may write to its own file system."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for name in ("serve", "worker"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The pods of the YAML for Kubernetes."""
    made = yaml.safe_load_all((DEPLOY / "kubernetes" / "redrive.yaml").read_text())
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in made if "template" in one["spec"]]


@pytest.mark.parametrize(("name", "pod"), pods())
def test_a_pod_has_no_more_rights_than_it_needs(name: str, pod: dict[str, Any]) -> None:
    """Not root, nothing writable, no token of the cluster; what stays up has probes of routes that are there."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    if name != "redrive-migrate":
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_autoscaler_asks_for_a_metric_that_is_there(metrics: dict[str, set[str]]) -> None:
    """Its query and its metric are what the service exposes."""
    told = (DEPLOY / "kubernetes" / "redrive.yaml").read_text()
    [scaler] = [one for one in yaml.safe_load_all(told) if one["kind"] == "HorizontalPodAutoscaler"]
    [metric] = scaler["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    assert f"max({name}{{ledger=" in told
    assert "ledger" in metrics[name]


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_is_what_systemd_takes(unit: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` is silent where it is installed: it exits with 0 for wrong values too, and only says so."""
    told = unit.read_text()
    assert "DynamicUser=yes" in told
    assert "ProtectSystem=strict" in told
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    copied = tmp_path / unit.name
    copied.write_text(
        told.replace("/opt/redrive/bin/redrive", "/bin/true").replace("/etc/redrive.env", "-/etc/redrive.env")
    )
    ran = subprocess.run([analyze, "verify", str(copied)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
