"""For FastAPI: a dependency that adds tasks within the session of the request.

    adding = adder_in(app, get_session)

    @web.post("/orders")
    async def order(session: Annotated[AsyncSession, Depends(get_session)], add: Annotated[Adder, Depends(adding)]):
        session.add(Order(...))
        await add("send_invoice", {"order": 7})
        await session.commit()

The lifespan is that of `redrive.asgi`.
"""

from collections.abc import Callable
from typing import Any

from redrive.app import Redrive
from redrive.asgi import Adder, lifespan
from redrive.errors import needs_extra
from redrive.lane import Lane

with needs_extra("redrive.fastapi", "service"):
    from fastapi import Depends

__all__ = ["Adder", "adder_in", "lifespan"]


def adder_in(app: Redrive | Lane, session: Callable[..., Any]) -> Callable[..., Adder]:
    """A dependency: an `Adder` in the session that another dependency gives. FastAPI makes one session for all of a request."""

    def adder(session: Any = Depends(session)) -> Adder:
        return Adder(app, session)

    return adder
