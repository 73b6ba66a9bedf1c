"""Wheels and sdists, tried as a stranger would: installed into an empty environment, where the tutorial is followed. `make dist` runs it.

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
PARTS = (ROOT, ROOT / "service")
"""The folders of the two distributions: `redrive`, and `redrive-service`, which its extras bring."""
CLIENT = ROOT / "client"
"""`redrive-client`: for who calls the service and has nothing else of redrive."""
WHEEL_BYTES_MAX = 1_000_000
"""Of what everybody installs: `redrive`."""
ALONE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PYTHONUNBUFFERED": "1"}
"""The environment of a stranger: no path to these sources."""
CALL = "from redrive_client import Client; Client('http://127.0.0.1:9', key='k').status('7')"
TUTORIAL = ROOT / "docs" / "tutorial.md"


def build(part: Path, folder: Path, target: str) -> Path:
    """The `wheel` or the `sdist` of a distribution, made in this folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    said = subprocess.run(command, cwd=part, check=True, capture_output=True, text=True).stderr
    return folder / Path(said.strip().splitlines()[-1]).name


def main() -> None:
    """Build all, look at the wheel's size, follow the tutorial with it alone, then serve with all that its extras bring."""
    folder = ROOT / "dist"
    for old in folder.glob("redrive*"):
        old.unlink()
    archives = [build(part, folder, "sdist") for part in (*PARTS, CLIENT)]
    wheels = [build(part, folder, "wheel") for part in (*PARTS, CLIENT)]
    size = wheels[0].stat().st_size
    with tempfile.TemporaryDirectory(prefix="dist-") as empty:
        venv.create(f"{empty}/venv", with_pip=True)
        bin_ = Path(empty) / "venv" / "bin"
        # What is not published yet is found here.
        install = [bin_ / "pip", "install", "--quiet", "--disable-pip-version-check", "--find-links", folder]
        subprocess.run([*install, wheels[0]], env=ALONE, check=True)
        tried = follow(Path(empty), bin_)
        refused = subprocess.run([bin_ / "redrive", "serve"], cwd=empty, env=ALONE, capture_output=True, text=True)
        assert "pip install 'redrive[service]'" in refused.stderr, refused.stderr
        subprocess.run([*install, "--no-compile", f"{wheels[0]}[all]"], env=ALONE, check=True)
        served = serve(Path(empty), bin_)
        bill(bin_ / "python", wheels[0])
    with tempfile.TemporaryDirectory(prefix="dist-client-") as empty:
        called = call(Path(empty), wheels[-1])
    sys.stdout.write(f"{audit()}\n")
    for made in (*wheels, *archives):
        sys.stdout.write(f"{made.name}: {made.stat().st_size:,} bytes\n")
    sys.stdout.write(
        f"the tutorial works with {wheels[0].name} alone: {tried}\nwith redrive[all] it serves: {served}\n{called}\n"
    )
    if size >= WHEEL_BYTES_MAX:
        sys.exit(f"{wheels[0].name} has {size:,} bytes, not less than {WHEEL_BYTES_MAX:,}")


def call(folder: Path, wheel: Path) -> str:
    """Install the client alone and have it call where nobody listens; what came with it."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", wheel], env=ALONE, check=True)
    said = subprocess.run([python, "-c", CALL], env=ALONE, capture_output=True, text=True)
    assert "httpx.ConnectError" in said.stderr, said.stderr
    listed = subprocess.run([*pip, "list", "--format", "freeze"], env=ALONE, capture_output=True, text=True, check=True)
    names = sorted(line.partition("==")[0] for line in listed.stdout.splitlines())
    assert not {"redrive", "redrive-service"} & set(names), names
    return f"{wheel.name} calls with these alone: {', '.join(names)}"


def serve(folder: Path, bin_: Path) -> str:
    """Serve the tutorial's application with systems until it says so; the line that names them."""
    command = [
        bin_ / "redrive",
        "serve",
        "--app",
        "invoices:app",
        "--systems",
        "flags,triggers,webhooks",
        "--port",
        "0",
    ]
    environment = ALONE | {"LOG_FORMAT": "pretty"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as service:
        assert service.stderr is not None
        try:
            for line in service.stderr:
                if line.strip().startswith("systems "):
                    return " ".join(line.split())
        finally:
            service.terminate()
    sys.exit("the service ended before it said what it serves")


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
