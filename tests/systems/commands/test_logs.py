"""What is logged about commands."""

from structlog.testing import capture_logs

from redrive.observe.logs import LogObserver
from tests.systems.commands.conftest import BAD, Bench


async def test_lines_name_the_command_as_its_sender_does(bench: Bench) -> None:
    """Whatever a line tells of a command, it has the ids that its sender gave it."""
    bench.app.observers.append(LogObserver())
    bench.raises = [ConnectionError("reset"), BAD]
    with capture_logs() as lines:
        await bench.send(correlation_id="order-7")
        await bench.work()
        bench.advance(seconds=60)
        await bench.work()
        await bench.send("c-2")
        await bench.work()
    told = [line for line in lines if "task_id" in line]
    assert [line["event"] for line in told if line["event"] != "attempt_started"] == [
        "retry_scheduled",
        "task_dead",
        "task_done",
    ]
    assert {(line["command_id"], line["correlation_id"]) for line in told} == {("c-1", "order-7"), ("c-2", None)}
    assert all(line["system"] == "commands" for line in told)
