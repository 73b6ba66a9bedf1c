"""Why somebody acts: the one rule for the sentence that every act asks for."""

from typing import Annotated

from pydantic import AfterValidator, Field

REASON_CHARS_MAX = 500


def _says_something(reason: str) -> str:
    if not reason.strip() or "\0" in reason:
        raise ValueError("say why: it is kept with everything that changes")
    return reason.strip()


Reason = Annotated[
    str,
    Field(min_length=1, max_length=REASON_CHARS_MAX, description="Why; it is kept with everything that changes"),
    AfterValidator(_says_something),
]
"""A field of a body: said in a few words, without spaces around it."""
