"""`redrive workers`: who works, who is lost and what it held."""

from tests.cli.test_tasks import Run, dead_tasks


def test_who_has_worked(stored: Run, url: str):
    """Each worker with its state, and what it holds; where nobody ever was, how to start one."""
    assert stored("workers", "--json").json == []
    assert "redrive worker" in stored("workers").err
    dead_tasks(url, 1)
    [said] = stored("workers", "--json").json
    assert (said["state"], said["held"]) == ("stopped", 0)
    assert said["tries_a_minute"] >= 1
    assert (said["clock_drift_ms"] is None) == url.startswith("sqlite")
    shown = stored("workers").out
    assert "oldest held" in shown
    assert said["name"] in shown
    assert "stopped" in shown
