"""Wheel and sdist, tried as a stranger would: installed into an empty environment, where the tutorial is followed. `make dist` runs it.

Beside the wheel it leaves a bill of materials and the licences of all that its extras bring.
"""

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from bench.supply import audit, bill

ROOT = Path(__file__).resolve().parents[1]
WHEEL_BYTES_WANTED, WHEEL_BYTES_MAX = 1_000_000, 1_400_000
"""It is code and templates alone, and none of it can be left out without a second distribution; so it is held where it is."""
ALONE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PYTHONUNBUFFERED": "1"}
"""The environment of a stranger: no path to these sources."""
TUTORIAL = ROOT / "docs" / "tutorial.md"


def main() -> None:
    """Build both, look at the wheel's size, install it, add the tutorial's tasks and work them off."""
    folder = ROOT / "dist"
    for old in folder.glob("redrive-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    [wheel] = folder.glob("redrive-*.whl")
    [sdist] = folder.glob("redrive-*.tar.gz")
    size = wheel.stat().st_size
    with tempfile.TemporaryDirectory(prefix="dist-") as empty:
        venv.create(f"{empty}/venv", with_pip=True)
        bin_ = Path(empty) / "venv" / "bin"
        subprocess.run(
            [bin_ / "pip", "install", "--quiet", "--disable-pip-version-check", wheel], env=ALONE, check=True
        )
        tried = follow(Path(empty), bin_)
        everything = [
            bin_ / "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
            f"{wheel}[all]",
        ]
        subprocess.run(everything, env=ALONE, check=True)
        bill(bin_ / "python", wheel)
    sys.stdout.write(f"{audit()}\n")
    sys.stdout.write(
        f"{wheel.name} ({size:,} bytes, wanted: {WHEEL_BYTES_WANTED:,}), {sdist.name} ({sdist.stat().st_size:,} bytes); the tutorial works: {tried}\n"
    )
    if size > WHEEL_BYTES_MAX:
        sys.exit(f"{wheel.name} has {size:,} bytes, more than {WHEEL_BYTES_MAX:,}")


def follow(folder: Path, bin_: Path) -> str:
    """Do what the tutorial says, as far as the first invoice that is sent; the line that says so."""
    written = re.search(r"```python\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert written is not None, "the tutorial has its program"
    (folder / "invoices.py").write_text(written[1])
    subprocess.run([bin_ / "python", "invoices.py"], cwd=folder, env=ALONE, check=True)
    listed = [bin_ / "redrive", "tasks", "list", "--database", "sqlite:///work.db"]
    subprocess.run(listed, cwd=folder, env=ALONE, check=True, stdout=subprocess.DEVNULL)
    command = [bin_ / "redrive", "worker", "invoices:app"]
    with subprocess.Popen(
        command, cwd=folder, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        assert worker.stdout is not None
        try:
            for line in worker.stdout:
                if line.startswith("sent invoice"):
                    return line.strip()
        finally:
            worker.terminate()
    sys.exit("the worker ended before it sent an invoice")


if __name__ == "__main__":
    main()
