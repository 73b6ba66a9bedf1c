"""A client of AWS whose answers and questions get lost on the way."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ConnectionClosedError

Cut = Callable[[int, str], str | None]
"""From the number of a call and its name: is it cut `before` it has an effect, `after`, or not at all? Or is whoever made it
killed, `killed before` or `killed after`?"""


Place = tuple[str, str, int]
"""A call: what was being done, which call it was, and how many of these were made before it."""


class CutPlaces:
    """Cuts the calls at these places, each once. One that was cut is asked again, and is at the same place then."""

    def __init__(self, cuts: Mapping[Place, str]) -> None:
        self.left = dict(cuts)
        """What is still to be cut."""
        self.places: list[Place] = []
        """The calls that were made."""
        self.doing = ""
        self._made: Counter[tuple[str, str]] = Counter()

    def __call__(self, _: int, call: str) -> str | None:
        place = (self.doing, call, self._made[self.doing, call])
        where = self.left.pop(place, None)
        if where is None:
            self._made[self.doing, call] += 1
            self.places.append(place)
        return where


class KilledError(Exception):
    """The process is no more."""


class CuttingClient:
    """Passes calls on, and cuts those that it is told to. It counts all."""

    def __init__(self, client: Any, cut: Cut = lambda number, call: None) -> None:
        self._client = client
        self._cut = cut
        self.calls: Counter[str] = Counter()
        self.cuts = 0
        self.killed = False

    def __getattr__(self, call: str) -> Any:
        async def asked(**request: Any) -> Any:
            where = "killed before" if self.killed else self._cut(self.calls.total(), call)
            self.calls[call] += 1
            if where == "killed before":
                self.killed = True
                raise KilledError
            if where == "before":
                self.cuts += 1
                raise ConnectionClosedError(endpoint_url="http://cut.before")
            answer = await getattr(self._client, call)(**request)
            if where == "after":
                self.cuts += 1
                raise ConnectionClosedError(endpoint_url="http://cut.after")
            if where == "killed after":
                self.killed = True
                raise KilledError
            return answer

        return asked
