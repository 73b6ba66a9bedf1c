"""How things are, judged on what the store knows now."""

from fastapi import Request

from redrive.core.states import State
from redrive.operator.verdict import Facts, HeldFacts, LedgerNow, Verdict, judge
from redrive.operator.verdict.facts import StoreNow
from redrive.web.api.common import app_of, lanes_of


async def verdict_of(request: Request, ledger: str | None) -> Verdict:
    """The verdict on one ledger, or on all."""
    app, lanes = app_of(request), lanes_of(request, ledger)
    now = await app.store.present()
    states = await app.store.figures.states()
    ledgers = []
    for lane in lanes:
        counted = states.get(lane.name)
        amounts = await (await lane.census()).amounts_now(counted) if counted else dict.fromkeys(State, 0)
        ledgers.append(
            LedgerNow(ledger=lane.name, amounts=amounts, oldest_due=await (await lane.ledger()).oldest_due())
        )
    held = [HeldFacts(gate=one) for lane in lanes for one in await (await lane.gate_reader(limited=True)).holding()]
    return judge(
        Facts(now=now, store=StoreNow(), ledgers=ledgers, held=held, workers=await app.store.roster.seen(), kinds_note="Kinds are not counted yet.")
    )  # fmt: skip
