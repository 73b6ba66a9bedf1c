"""Objects of a bucket of S3, for what is too large for an item: put, read, delete, and listed in the order of their names."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from redrive.errors import LedgerAwayError
from redrive.ledgers.aws.asking import PATIENCE, ask_again, judge_code, refused_call

PREFIX = "payloads/"
NAMES_MAX = 1000
"""How many names one call tells."""
REMEDY = "check the bucket and the rights of this process"
MISSING = frozenset({"NoSuchKey", "404"})


class _MissingError(Exception):
    """There is no such object."""


class Objects:
    """The objects of one bucket under a prefix of their own. Each is written once, so what is asked again changes nothing."""

    def __init__(self, client: Any, bucket: str, *, patience: timedelta = PATIENCE) -> None:
        self.bucket = bucket
        self._client = client
        self._patience = patience.total_seconds()

    async def put(self, name: str, text: str) -> None:
        """Keep a text."""
        await self._call("put_object", Key=f"{PREFIX}{name}", Body=text.encode(), ContentType="application/json")

    async def get(self, name: str) -> str | None:
        """The text of an object; None if there is none."""

        async def ask() -> str:
            answer = await self._client.get_object(Bucket=self.bucket, Key=f"{PREFIX}{name}")
            async with answer["Body"] as stream:
                text: bytes = await stream.read()
            return text.decode()

        try:
            return await ask_again(ask, _judge, "S3", self._patience)
        except _MissingError:
            return None

    async def delete(self, name: str) -> None:
        """Forget an object; one that is gone already is no error."""
        await self._call("delete_object", Key=f"{PREFIX}{name}")

    async def names(self, after: str) -> list[str]:
        """The names behind this one, in their order, up to `NAMES_MAX`."""
        start = {"StartAfter": f"{PREFIX}{after}"} if after else {}
        found = await self._call("list_objects_v2", Prefix=PREFIX, MaxKeys=NAMES_MAX, **start)
        return [one["Key"].removeprefix(PREFIX) for one in found.get("Contents", [])]

    async def _call(self, call: str, **asked: Any) -> Mapping[str, Any]:
        async def ask() -> Mapping[str, Any]:
            answer: Mapping[str, Any] = await getattr(self._client, call)(Bucket=self.bucket, **asked)
            return answer

        return await ask_again(ask, _judge, "S3", self._patience)


def _judge(response: Mapping[str, Any], *, uncertain: bool) -> bool:
    judged = judge_code(response, uncertain=uncertain)
    if judged is not None:
        return judged
    if response["Error"]["Code"] in MISSING:
        raise _MissingError
    # The bucket is somebody's to mend, and no event is to blame: whoever asks waits, and nothing is charged.
    raise LedgerAwayError(str(refused_call("S3", response, REMEDY)))
