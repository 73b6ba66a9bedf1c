"""`redrive worker`: run an application's handlers until told to stop."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated

import typer
from rich.markup import escape

from redrive.app import Redrive
from redrive.cli.app_path import load_app
from redrive.cli.listen import listen, require_extra, serve_beside, url_of
from redrive.cli.options import duration_option
from redrive.cli.output import say
from redrive.cli.processes import SecondPress, Supervisor
from redrive.core.durations import format_duration
from redrive.core.failure import redact
from redrive.engine.worker_settings import WorkerSettings
from redrive.errors import UsageError
from redrive.running import Running, tuned_runner
from redrive.settings import Settings, load_settings
from redrive.wiring import attach_systems, observe_with_logs, set_up_logs, store_url

LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
THREAD_PATIENCE_SECONDS = 0.5
"""How long idle threads get to end by themselves before the process ends without them."""


def worker(
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:APP",
            help="Where the application is, such as [cyan]shop.tasks:app[/]; without it the systems of REDRIVE_SYSTEMS are run.",
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="How many handlers run at once.", min=1, max=10_000)] = None,
    lease: Annotated[
        timedelta | None, duration_option("--lease", "How long a claim holds without a sign of life.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="How many tasks one statement takes.", min=1, max=5_000)] = None,
    grace: Annotated[timedelta | None, duration_option("--grace", "How long handlers may go on when stopping.")] = None,
    processes: Annotated[int, typer.Option(help="How many processes to run, for more cores.", min=1, max=256)] = 1,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="Serve /health, /ready and /metrics there; each process takes the next port.", min=0, max=65535
        ),
    ] = None,
    http_host: Annotated[str, typer.Option(help="Where to listen for them.")] = LOOPBACK,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Run the handlers of an application, and the systems that it has, until SIGTERM or Ctrl-C.

    Without an application it runs the systems that REDRIVE_SYSTEMS names; where EVENTS_TABLE_NAME is set, triggers on DynamoDB.

    The first signal stops gracefully: no new claims, up to [cyan]--grace[/] for what runs, the rest goes back to waiting. A
    second signal ends at once; what ran is then charged when its lease runs out.

    With [cyan]--http-port[/] monitoring can ask whether it is well and what it has done; on this machine alone, unless
    [cyan]--http-host[/] says otherwise. Nothing else is served there.

    Example: [cyan]redrive worker shop.tasks:app --concurrency 50 --processes 2[/]
    """
    configured = load_settings()
    settings = configured.worker(concurrency=concurrency, lease=lease, batch=batch, grace=grace)
    if processes > 1:
        if http_port and http_port + processes - 1 > PORT_MAX:
            raise UsageError(f"{processes} processes need as many ports: --http-port {http_port} leaves too few")

        def command(number: int) -> list[str]:
            port = http_port and http_port + number
            return _child_command(app, settings) + ([] if port is None else _probes(port, http_host))

        raise typer.Exit(Supervisor(command, processes, settings.grace).run())
    set_up_logs(configured)
    if http_port is not None:
        require_extra("`redrive worker --http-port`")
    loaded = _make_app(configured) if app is None else load_app(app)
    observe_with_logs(loaded)
    with contextlib.ExitStack() as opened:
        listening = None
        if http_port is not None:
            listening = opened.enter_context(contextlib.closing(listen(http_host, http_port, "--http-port")))
        run_to_the_end(lambda: _work(loaded, configured, settings, listening, child=child))


def run_worker(app: Redrive, *, concurrency: int | None = None) -> None:
    """Run the handlers of an application until SIGTERM or Ctrl-C, as `redrive worker` does: for the command lines of frameworks."""
    configured = load_settings()
    set_up_logs(configured)
    observe_with_logs(app)
    settings = configured.worker(concurrency=concurrency, lease=None, batch=None, grace=None)
    run_to_the_end(lambda: _work(app, configured, settings, None, child=False))


def _make_app(settings: Settings) -> Redrive:
    """The application of the settings alone, with the systems that they name."""
    app = Redrive(store_url(settings))
    attach_systems(app, settings.redrive_systems)
    if not app.systems:
        raise UsageError(
            "there is nothing to run: name your application, such as shop.tasks:app, or set REDRIVE_SYSTEMS"
        )
    return app


def _child_command(app: str | None, settings: WorkerSettings) -> list[str]:
    return [
        sys.executable, "-m", "redrive", "worker", *([] if app is None else [app]), "--child",
        "--concurrency", str(settings.concurrency),
        "--lease", f"{settings.lease.total_seconds()}s",
        "--batch", str(settings.batch),
        "--grace", f"{settings.grace.total_seconds()}s",
    ]  # fmt: skip


def _probes(port: int, host: str) -> list[str]:
    return ["--http-port", str(port), "--http-host", host]


async def _work(
    app: Redrive, configured: Settings, settings: WorkerSettings, listening: socket.socket | None, *, child: bool
) -> None:
    running = Running(app, app.workers(settings), measured=listening is not None)
    stop_on_signals(running.stop)
    if child:
        stop_with_parent(running.stop)
    greeting = asyncio.create_task(_greet(running, settings, listening))
    try:
        if listening is None:
            await running.run()
        else:
            from redrive.web.probes import make_worker_probes

            probes = make_worker_probes(running, configured)
            await serve_beside(probes, configured, listening, running.run(), running.stop)
    finally:
        greeting.cancel()
        await app.close()


async def _greet(running: Running, settings: WorkerSettings, listening: socket.socket | None) -> None:
    if listening is not None:
        say(f"[dim]health and metrics are at {url_of(listening)}[/]")
    await running.opened.wait()
    say(
        f"[dim]working on {escape(redact(running.app.store.url))} with {settings.concurrency} slots, "
        f"lease {format_duration(settings.lease)}; Ctrl-C stops[/]"
    )


def stop_on_signals(stop: Callable[[], None]) -> None:
    """The first SIGTERM or SIGINT stops gracefully, the second ends the process at once."""
    loop = asyncio.get_running_loop()
    press = SecondPress()

    def on_signal(number: int) -> None:
        match press.count():
            case 1:
                say("[dim]stopping; a second signal ends at once[/]")
                stop()
            case 2:
                end_now(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def stop_with_parent(stop: Callable[[], None]) -> None:
    """Stop when the parent is gone: it holds the other end of our stdin."""
    loop = asyncio.get_running_loop()
    pipe = sys.stdin.fileno()

    def on_readable() -> None:
        if not os.read(pipe, 1024):
            loop.remove_reader(pipe)
            stop()

    loop.add_reader(pipe, on_readable)


def run_to_the_end(work: Callable[[], Awaitable[None]], *, answers: bool = False) -> None:
    """Run the work, and end the process even where handlers hang in threads that nothing can stop. `answers` as in `tuned_runner`."""

    async def main() -> bool:
        await work()
        return await _threads_ended()

    with tuned_runner(answers=answers) as runner:
        if not runner.run(main()):
            end_now(0)


async def _threads_ended() -> bool:
    """Whether all handler threads have ended; those that still run would keep the interpreter from exiting."""
    loop = asyncio.get_running_loop()
    try:
        # asyncio.run would wait for these without a limit.
        async with asyncio.timeout(THREAD_PATIENCE_SECONDS):
            await loop.shutdown_default_executor()
    except TimeoutError:
        end_now(0)
    ends = time.monotonic() + THREAD_PATIENCE_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, ends - time.monotonic()))
            if thread.is_alive():
                return False
    return True


def end_now(code: int) -> None:
    """End this process without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
