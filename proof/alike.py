"""The same on every ledger: the conformance suite over all homes that there are, and how many of its tests held in each."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

from proof.scenario import NOT_TRIED, Found, scenario
from tests.forks import ROOT

SUITE = "tests/ledgers/test_conformance.py"
SHORT = "test_late or test_one_claim_twice"
RUNS: dict[str, tuple[Mapping[str, str], str]] = {
    "SQLite, PostgreSQL, PGMQ, DynamoDB, and adopted tables of foreign shape": ({"REDRIVE_TEST_WIDE": "1"}, ""),
    "the same of PostgreSQL behind PgBouncer": ({"REDRIVE_TEST_WIDE": "1", "REDRIVE_TEST_POOLER": "1"}, "postgres"),
    "the same of PostgreSQL by the portable claim": (
        {"REDRIVE_TEST_WIDE": "1", "REDRIVE_TEST_PORTABLE": "1"},
        "postgres",
    ),
}
"""What surrounds the suite, and which of its homes are meant."""
NOT_TRIED.append("DynamoDB and SQS of AWS itself: moto stands in for them.")


@scenario("every ledger keeps the same promises")
def alike(short: bool) -> Iterator[Found]:
    """Every test of the suite in every home; a home in which none ran would be a fault as well."""
    for what, (environment, only) in RUNS.items():
        if short and only:
            continue
        held, failed, said = _run(environment, only, SHORT if short else "")
        if failed:
            print("\n".join(said[-40:]))
        by_home = ", ".join(f"{home} {amount:,}" for home, amount in sorted(held.items()))
        yield Found(
            tried=f"{what}: {held.total() + failed.total():,} tests in {len(held + failed)} homes",
            figure=f"{failed.total()} failed; held: {by_home}",
            holds=bool(held) and not failed,
        )


def _run(environment: Mapping[str, str], *chosen: str) -> tuple[Counter[str], Counter[str], list[str]]:
    """How many tests held and failed in each home, and what pytest said."""
    which = " and ".join(f"({one})" for one in chosen if one)
    with tempfile.TemporaryDirectory(prefix="redrive-proof-") as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "2", f"--junitxml={report}",
            *(["-k", which] if which else []), SUITE,
        ]  # fmt: skip
        ran = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        held: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for case in ET.parse(report).iter("testcase") if report.exists() else ():
            home = case.get("name", "").partition("[")[2].rstrip("]").split("-")
            named = "-".join(home[:2]) if home[0] in ("sqlite", "postgres", "aws") else "-".join(home[-2:])
            wrong = any(child.tag in ("failure", "error") for child in case)
            (failed if wrong else held)[named] += 1
    if ran.returncode and not failed:
        failed["the run itself"] += 1
    return held, failed, ran.stdout.splitlines()
