"""A lane: one ledger together with the handlers that work it off. An application has one for each table.

`lane.py` is what can be asked and done there, `gates.py` the part of it that is about gates, and `adding.py` what happens to a task
before it is stored.
"""

from redrive.core.task import Added, Attempt, NewTask
from redrive.lane.adding import AddOptions, make_task
from redrive.lane.lane import Lane
from redrive.operator.acts import Acted
from redrive.ports import Actor, Page

__all__ = ["Acted", "Actor", "AddOptions", "Added", "Attempt", "Lane", "NewTask", "Page", "make_task"]
