"""Environments of their own, for peers and for the site, so that the project's stays free of them. Made on the first run, made anew when pins change."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
HERE = Path(__file__).resolve().parent


def peers_python() -> Path:
    """The interpreter that has the pinned peers installed."""
    return python_with(HERE / "requirements.txt", BUILD / "bench-venv")


def python_with(requirements: Path, folder: Path) -> Path:
    """The interpreter that has these pinned packages installed."""
    python = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    pins = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == pins:
        return python
    if folder.exists():
        shutil.rmtree(folder)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], check=True, env=environment)
    stamp.write_text(pins)
    return python
