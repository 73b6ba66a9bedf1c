"""DynamoDB and SQS for tests, as processes of their own on loopback: moto behind its wrapper, and MiniStack."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAMS = {
    "moto": ["-m", "tests.ledgers.aws.moto_server", "{port}"],
    "ministack": ["-m", "ministack"],
}
PATIENCE_SECONDS = 60
AWS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What a client needs to be let in: both take any name."""


@contextmanager
def aws_server(kind: str) -> Iterator[str]:
    """A server of this kind; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [part.format(port=port) for part in PROGRAMS[kind]]
    surroundings = {**os.environ, **AWS, "GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "LOG_LEVEL": "ERROR"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", *program],
        env=surroundings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_answer(url, process)
        yield url
    finally:
        process.kill()
        process.wait()


def _await_answer(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Return when the server listens, whatever it answers."""
    for _ in range(PATIENCE_SECONDS * 20):
        if process.poll() is not None:
            raise AssertionError(f"the server of {url} ended with {process.returncode}")
        try:
            urllib.request.urlopen(f"{url}/calls", timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nobody answers at {url}")
