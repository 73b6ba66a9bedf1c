"""The guide to testing a ledger of one's own: what it says is run as it stands there."""

import subprocess
import sys
from pathlib import Path

from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent.parent
SOME = "settled_again or whole_life or cancel or disjoint"
"""A few promises: all of them run over our own tables, in `tests/ledgers/test_conformance.py`."""


def test_the_promises_run_over_the_table_of_the_guide(tmp_path):
    """Promises pass there or say why they were left out, with pytest as it is installed; and a ledger that loses settlements is found out."""
    conftest, module = blocks(ROOT / "docs" / "guides" / "test-a-ledger.md", "python")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_emails.py").write_text(module)
    forgets = "    async with table_home(url, EMAILS, insert=insert_email) as home:\n"
    breaks = forgets + "        home.ledger.settle = lambda settlements, **how: _nothing()\n"
    assert forgets in module
    (tmp_path / "test_broken.py").write_text(
        module.replace(forgets, breaks) + "\n\nasync def _nothing():\n    return []\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    fine, broken = (
        subprocess.run(
            [*command, tmp_path / name, "-k", some], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        for name, some in (("test_emails.py", SOME), ("test_broken.py", "settled_again"))
    )
    assert fine.returncode == 0, fine.stdout[-3000:]
    assert " passed" in fine.stdout
    assert " skipped" in fine.stdout
    assert broken.returncode == 1, broken.stdout[-3000:]
    assert "test_a_settled_claim_cannot_be_settled_again" in broken.stdout
