"""Importing this lets all clients of AWS be made of one session, which is loaded once: an eighth of a second for each otherwise.

So it is in a process of tests, and in those that are forked from one that has imported this. Nor need each call say anew which Python asks,
or be signed: whoever answers here looks for the service and the region in a signature, and at nothing else. And a server that takes
long on a busy machine is not away.
"""

from typing import Any

import aiobotocore.session
from botocore.auth import SigV4Auth
from botocore.exceptions import NoCredentialsError
from botocore.useragent import UserAgentString

from redrive.ledgers.aws import open as opening

READ_SECONDS = opening.READ_SECONDS
"""How long an answer is waited for outside of tests."""
opening.CONNECT_SECONDS = opening.READ_SECONDS = opening.POLL_SECONDS = 120
SESSION = aiobotocore.session.get_session()
for _service in ("dynamodb", "sqs"):
    for _model in ("service-2", "endpoint-rule-set-1"):
        SESSION.get_component("data_loader").load_service_model(_service, _model)
aiobotocore.session.get_session = lambda *_: SESSION  # type: ignore[assignment]
UserAgentString.to_string = lambda _: "redrive-tests"  # type: ignore[method-assign]


def add_auth(self: Any, request: Any) -> None:
    """A seventh of the time of a call went into signatures that nobody reads."""
    if self.credentials is None:
        raise NoCredentialsError
    del request.headers["Authorization"]
    scope = f"{self.credentials.access_key}/20300101/{self._region_name}/{self._service_name}/aws4_request"
    request.headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"


SigV4Auth.add_auth = add_auth  # type: ignore[method-assign]
