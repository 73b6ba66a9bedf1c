"""Importing this lets all clients of AWS be made of one session, which is loaded once: an eighth of a second for each otherwise.

So it is in a process of tests, and in those that are forked from one that has imported this. Nor need each call say anew which Python asks.
"""

import aiobotocore.session
from botocore.useragent import UserAgentString

SESSION = aiobotocore.session.get_session()
for _service in ("dynamodb", "sqs"):
    for _model in ("service-2", "endpoint-rule-set-1"):
        SESSION.get_component("data_loader").load_service_model(_service, _model)
aiobotocore.session.get_session = lambda *_: SESSION  # type: ignore[assignment]
UserAgentString.to_string = lambda _: "redrive-tests"  # type: ignore[method-assign]
