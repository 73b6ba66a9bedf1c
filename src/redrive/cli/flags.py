"""`redrive flags`: apply scheduled changes of flags without a service, as cron and the like do."""

import asyncio
import signal

import typer

from redrive.cli.opened import choose_app, require_file
from redrive.cli.options import AppOption, DatabaseOption, JsonOption
from redrive.cli.output import print_json
from redrive.errors import needs_extra
from redrive.running import tuned_runner
from redrive.settings import load_settings
from redrive.wiring import attach_systems, observe_with_logs, set_up_logs

flags = typer.Typer(help="Feature flags: apply scheduled changes.", no_args_is_help=True, rich_markup_mode="rich")


@flags.callback()
def about() -> None:
    """Feature flags: apply scheduled changes."""


@flags.command()
def process(
    database: DatabaseOption = None,
    app: AppOption = None,
    json: JsonOption = False,  # noqa: ARG001 - as every command has it; this one prints nothing else anyway
) -> None:
    """Apply every schedule that is due, print what was done as JSON, and end.

    For cron, once a minute: a change may then be up to a minute late. Several may run at once. Beside `redrive serve`, which
    applies schedules by itself, it is not needed.

    Example: [cyan]redrive flags process --database postgresql://shop@db/shop[/]
    """
    with needs_extra("`redrive flags process`", "service"):
        from redrive.systems.flags import Flags, Processed
    settings = load_settings()
    set_up_logs(settings)
    chosen = choose_app(database, app, [Flags.name])
    require_file(chosen.store)
    attach_systems(chosen, [Flags.name])
    observe_with_logs(chosen)
    system = chosen.systems[Flags.name]
    assert isinstance(system, Flags)

    async def work() -> Processed:
        run = asyncio.create_task(system.process(settings.worker()))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, run.cancel)
        try:
            return await run
        finally:
            await chosen.close()

    with tuned_runner() as runner:
        try:
            done = runner.run(work())
        except asyncio.CancelledError:
            # Told to stop: what was under way has gone back to waiting, and the next run takes it up.
            raise typer.Exit(128 + signal.SIGTERM) from None
    print_json(done.as_json())
