"""What becomes of claims that were lost inside an effect, or while its probe was asked. What follows is decided in `core.effect`."""

from collections.abc import Sequence

from redrive.core.decide import Settlement
from redrive.core.effect import after_loss
from redrive.engine.handlers import Handlers
from redrive.ports import Ledger


async def settle_losses(ledger: Ledger, handlers: Handlers, lost: Sequence[Settlement]) -> list[Settlement]:
    """The settlements of claims that were lost, as they are where effects were entered."""
    effects = {
        one.claim.task.id: handler.effect
        for one in lost
        if (handler := handlers.find(one.claim.task.kind)) is not None and handler.effect is not None
    }
    if not effects or ledger.effects is None:
        return list(lost)
    ledger.effects.in_use = True
    marks = await ledger.effects.of(list(effects))
    settled = []
    for one in lost:
        mark, effect = marks.get(one.claim.task.id), effects.get(one.claim.task.id)
        settled.append(one if mark is None or effect is None else after_loss(one, mark, effect))
    return settled
