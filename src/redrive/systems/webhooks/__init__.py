"""An inbox for incoming webhooks: accept fast, process later, never process the same one twice, keep what failed in sight.

    app = Redrive("sqlite:///shop.db")
    webhooks = Webhooks(app)

    @webhooks.handler("order.*")
    async def order(task): ...

`system` puts it together, `intake` takes webhooks in, `routes` are its HTTP routes, `sources` and `signatures` are for real senders.
"""

from redrive.systems.webhooks.intake import Receipt
from redrive.systems.webhooks.settings import WebhookSettings
from redrive.systems.webhooks.sources import Source
from redrive.systems.webhooks.system import Webhooks

__all__ = ["Receipt", "Source", "WebhookSettings", "Webhooks"]
