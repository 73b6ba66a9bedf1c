"""What makes one act of many commits: the name that its lines in the audit share."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from redrive.core.durations import format_duration
from redrive.ports import Actor, WholeAct


def as_one_act(actor: Actor, what: str, asked: Mapping[str, Any] | None = None) -> Actor:
    """The actor of an act over several commits; one that is part of an act already stays as it is.

    `what` says what is done to what, `asked` is the filter that names its tasks, None where they are named one by one. An act that was frozen
    at an instant (`until`) and stopped before its end goes on as the same act when it is asked for again.
    """
    if actor.whole is not None:
        return actor
    said = None if asked is None else {name: _said(one) for name, one in asked.items() if one is not None}
    name = uuid4().hex
    if said is not None and "until" in said:
        frozen = json.dumps([what, actor.name, actor.reason, said], sort_keys=True)
        name = hashlib.sha256(frozen.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return replace(actor, whole=WholeAct(id=name, asked=said))


def _said(value: Any) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return format_duration(value)
    return str(value)
