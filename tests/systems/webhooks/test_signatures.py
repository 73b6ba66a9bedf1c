"""Signatures by themselves: what fits, what is too old, and nonsense."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.systems.webhooks.signatures import SignatureError, make_verifier

from .conftest import (
    GITHUB_SECRET,
    STANDARD_SECRET,
)


def test_githubs_own_example_fits():
    """The secret, body and signature that GitHub's documentation gives to try an implementation with."""
    headers = {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    make_verifier("github", [GITHUB_SECRET])(b"Hello, World!", headers, datetime.now(UTC))


@given(st.sampled_from(["github", "stripe", "standard"]), st.binary(max_size=50), st.data())
def test_no_nonsense_raises_anything_else(scheme: str, body: bytes, data: st.DataObject):
    """Whatever is in headers and body, a verifier returns for a good signature and raises `SignatureError` for all else."""
    names = ["X-Hub-Signature-256", "Stripe-Signature", "webhook-id", "webhook-timestamp", "webhook-signature"]
    headers = data.draw(st.dictionaries(st.sampled_from(names), st.text(st.characters(codec="latin-1"), max_size=60)))
    secret = STANDARD_SECRET if scheme == "standard" else "a-secret"
    with pytest.raises(SignatureError):
        make_verifier(scheme, [secret])(body, headers, datetime.now(UTC))
