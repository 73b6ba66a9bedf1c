"""Whether writes go through, as a process proves it for itself."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from redrive import Redrive, chores
from redrive.chores import WriteProof
from redrive.core.durations import seconds


async def test_a_write_that_goes_through_is_a_proof(url: str) -> None:
    """With how long it took; before anybody has tried, nothing is said."""
    async with Redrive(url, durable=False) as app:
        proof = WriteProof(app.store, "w1")
        assert (proof.age, proof.is_stale, proof.sentence(), proof.now().trouble) == (None, False, None, None)
        await proof.prove()
        await proof.prove()
        assert proof.once().trouble is None
        assert proof.now().write_took is not None
        assert not proof.is_stale


async def test_a_store_that_takes_no_writes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that hangs is given up; after a while it is a trouble in a sentence, and for who looks once at once."""

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    store: Any = SimpleNamespace(turns=SimpleNamespace(take=hang), trouble=lambda: None)
    monkeypatch.setattr(chores, "PROVE_WITHIN", seconds(0.001))
    proof = WriteProof(store, "w1")
    with pytest.raises(TimeoutError):
        await proof.prove()
    assert not proof.is_stale
    monkeypatch.setattr(chores, "PROOF_MAX_AGE", seconds(0))
    said = proof.sentence()
    assert said is not None
    assert said.startswith("no write has gone through for ")
