"""The peers' own venv, so that the project's stays free of them. Made on the first run, made anew when pins change."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"


def peers_python() -> Path:
    """The interpreter that has the pinned peers installed."""
    folder = BUILD / "bench-venv"
    python = folder / "bin" / "python"
    stamp = folder / "requirements.sha256"
    pins = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == pins:
        return python
    if folder.exists():
        shutil.rmtree(folder)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", REQUIREMENTS], check=True, env=environment)
    stamp.write_text(pins)
    return python
