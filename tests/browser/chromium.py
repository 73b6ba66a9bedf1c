"""Debian's Chromium, installed if it is missing. A browser that cannot be had fails the run.

Its shell without windows comes first: the same pages cost half as much where nobody draws tabs and buttons around them.
`REDRIVE_TEST_CHROMIUM` names a browser of yours.
"""

import os
import subprocess
from pathlib import Path

PACKAGES = ("chromium-headless-shell", "chromium")
PATIENCE = ("-o", "Acquire::http::Timeout=10", "-o", "Acquire::Retries=0")
"""Where nothing can be had, this is soon known."""
ELSEWHERE = "redrive.test"
"""A name of this machine that is no loopback name: who asks for it must log in."""
ARGUMENTS = [
    # Its sandbox does not start for root nor in most containers; all it is shown here is our own.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    # Debian turns on what needs one.
    "--disable-gpu-rasterization",
    "--disable-gpu-compositing",
    "--in-process-gpu",
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
]


class BrowserError(Exception):
    """There is no browser, and none could be installed."""


def chromium() -> Path:
    """The browser's path."""
    if given := os.environ.get("REDRIVE_TEST_CHROMIUM"):
        return Path(given)
    for package in PACKAGES:
        if (program := _program(package)).exists():
            return program
    raise BrowserError("the tests of the pages need Chromium: apt-get install chromium-headless-shell")


def install() -> None:
    """Have the first of them that can be had."""
    if "REDRIVE_TEST_CHROMIUM" in os.environ:
        return
    for package in PACKAGES:
        if _program(package).exists() or _installed(package) or (_apt("update") and _installed(package)):
            return
    chromium()


def _installed(package: str) -> bool:
    return _apt("install", "--no-install-recommends", package, "fonts-dejavu-core")


def _program(package: str) -> Path:
    return Path("/usr/bin") / package


def _apt(*given: str) -> bool:
    """Whether it could be done."""
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    command = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "--yes", *PATIENCE, *given]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":  # before the tests, of which several processes would install it at once
    install()
