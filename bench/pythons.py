"""The tests on every Python that redrive claims, and on later ones that are installed here. `make pythons` runs it.

Each gets an environment of its own below `build/`, with the locked packages that fit it; on 3.12 and later that is Django 6. What is not
installed is said, and is no success. PYTHONS names interpreters that are not on the PATH, TESTS what to run instead of everything.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from bench.venv import BUILD, ROOT

CLAIMED = ("3.11", "3.12")
"""As the classifiers say: those on which all tests have passed."""
NEXT = ("3.13", "3.14")
"""Run where installed; no classifier until all tests have passed. On 3.13, which says where SQLite's connections are left open, 8,028 of 8,030 did."""
LOCK = ROOT / "requirements.lock"
SERVERS = (("-W", "ignore", "-m", "bench.servers"), ("tests/browser/chromium.py",))
"""What installs the servers and the browser of the tests, as `make test` does before them."""


def version_of(python: str) -> str:
    """`3.12`."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def installed(named: str, search_path: str | None = None) -> dict[str, str]:
    """Where each version is: what was named, then what is on the PATH, then the Python that runs this."""
    found = {version_of(python): python for python in shlex.split(named)}
    for version in (*CLAIMED, *NEXT):
        if version not in found and (python := shutil.which(f"python{version}", path=search_path)):
            found[version] = python
    found.setdefault("{}.{}".format(*sys.version_info[:2]), sys.executable)
    return found


def environment(version: str, python: str) -> Path:
    """The interpreter of an environment with all that tests need."""
    folder = BUILD / f"python-{version}"
    made, stamp = folder / "bin" / "python", folder / "lock.sha256"
    pins = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == pins:
        return made
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "pip>=25"], check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", LOCK], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT, "-e", ROOT / "client"], check=True)
    stamp.write_text(pins)
    return made


def main() -> int:
    """Run the tests on each; 1 if one fails or is not here."""
    found = installed(os.environ.get("PYTHONS", ""))
    tests = shlex.split(os.environ.get("TESTS", "tests --numprocesses 3 --dist worksteal"))
    said = {}
    for version in (*CLAIMED, *NEXT):
        if version not in found:
            said[version] = "NOT RUN: not installed here" if version in CLAIMED else "not installed here"
            continue
        python = environment(version, found[version])
        for needed in SERVERS:
            subprocess.run([python, *needed], cwd=ROOT, check=True)
        ended = subprocess.run([python, "-m", "pytest", "-q", *tests], cwd=ROOT, check=False).returncode
        said[version] = "passed" if ended == 0 else f"FAILED with {ended}"
    print("\n".join(f"Python {version}: {one}" for version, one in said.items()))
    return 0 if all(said[version] == "passed" for version in {*CLAIMED, *found} & said.keys()) else 1


if __name__ == "__main__":
    sys.exit(main())
