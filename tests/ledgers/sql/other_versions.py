"""Code of other versions than this: older ones from the history, and the next one."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import redrive
from redrive.ledgers.sql.migrate import ENGINE, heads

ROOT = Path(__file__).parents[3]
BEFORE = "bd384e4279cda4971caa5d8d3ebf7c611a26a13c"
"""The last commit before the tables say who may work with them: its code refuses newer tables when it starts, but works on."""
LAST = "28c17ee580e5c696b131eb98447dc2eb3e424452"
LAST_VERSION = "redrive_0004"
"""The last commit whose tables are of that version: what a process that was not upgraded yet runs beside this code."""


def code_of(commit: str, folder: Path) -> Path:
    """The code of a commit, from the history."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise AssertionError(
            f"the history has no commit {commit}, whose code is to run here: fetch all of it, not only the newest commits"
        )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def make_next(folder: Path, *, works_with: str) -> Path:
    """This code and one migration more, as the next version will have it."""
    source = folder / "src"
    shutil.copytree(
        Path(redrive.__file__).parent, source / "redrive", ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    newest = heads()[ENGINE]
    number = int(newest.rpartition("_")[2]) + 1
    migration = source / "redrive/ledgers/sql/migrations/versions" / f"redrive_{number:04}_notes.py"
    migration.write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nfrom redrive.ledgers.sql.works_with import record\n"
        f"revision, down_revision, branch_labels = 'redrive_{number:04}', {newest!r}, None\n"
        "def upgrade():\n"
        "    op.add_column('redrive_task', sa.Column('note', sa.Text(), nullable=False, server_default=sa.text(\"'none'\")))\n"
        "    op.create_index('redrive_task_note_idx', 'redrive_task', ['note'])\n"
        f"    record(op, 'engine', revision, {works_with!r})\n"
    )
    return source
