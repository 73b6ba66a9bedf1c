"""A shop in FastAPI: an order and its invoice are stored together, and this process sends it: `uvicorn examples.fastapi_shop:web`.

`docs/guides/fastapi.md` walks through it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from redrive import Redrive, Task
from redrive.fastapi import Adder, adder_in, lifespan


def build(file: str, send: Callable[[int], None] = print) -> FastAPI:
    """The web application over a SQLite file; `send` gets the number of each order whose invoice is sent."""
    app = Redrive(f"sqlite:///{file}")
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def around(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    web = FastAPI(lifespan=lifespan(app, work=True, around=around))

    @app.handler(retries=3, wait=0)
    async def send_invoice(task: Task[int]) -> None:
        if task.failures == 0:
            raise ConnectionError("mail server down")
        send(task.payload)

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with sessions() as session:
            yield session

    @web.post("/orders/{number}")
    async def order(
        number: int,
        session: Annotated[AsyncSession, Depends(get_session)],
        add: Annotated[Adder, Depends(adder_in(app, get_session))],
    ) -> dict[str, bool]:
        await session.execute(text("CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY)"))
        await session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        await add(send_invoice, number, key=f"invoice-{number}")
        if number == 13:
            return {"taken": False}  # the session ends without a commit: neither is there
        await session.commit()
        return {"taken": True}

    return web


web = build("shop.db")
