"""Debian's Chromium, installed if it is missing. A browser that cannot be had fails the run."""

import os
import subprocess
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")
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
    if CHROMIUM.exists():
        return CHROMIUM
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    try:
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(
            [*apt, "install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BrowserError("the tests of the pages need Chromium: apt-get install chromium") from error
    if not CHROMIUM.exists():
        raise BrowserError(f"chromium was installed, but {CHROMIUM} is not there")
    return CHROMIUM


if __name__ == "__main__":  # before the tests, of which several processes would install it at once
    chromium()
