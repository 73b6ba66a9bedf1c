"""All parts of the bench, one after the other: `python -m bench.every`, or some of them: `python -m bench.every limits gates`.

A part whose bounds do not hold does not end the rest. At the end it says how long each took, and which did not hold.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.venv import ROOT

PARTS = (
    "peers",
    "limits",
    "processes",
    "growth",
    "gates",
    "commands",
    "relay",
    "webhooks",
    "triggers",
    "aws",
    "operator",
)
LIMIT_SECONDS = 3600
"""What no part takes."""


def main(argv: Sequence[str]) -> int:
    chosen = argv or PARTS
    if unknown := [name for name in chosen if name not in PARTS]:
        print(f"unknown: {', '.join(unknown)}; known are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    console, told, failed = Console(), Table("part", "minutes", "holds"), list[str]()
    for name in chosen:
        console.rule(name)
        module, began = "bench" if name == "peers" else f"bench.{name}", time.monotonic()
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", module], cwd=ROOT)
        try:
            ended = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # through every `finally`, so no server stays behind
            ended = process.wait() or 1
        if ended:
            failed.append(name)
        told.add_row(name, f"{(time.monotonic() - began) / 60:.1f}", "no" if ended else "yes")
    console.print(told)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
