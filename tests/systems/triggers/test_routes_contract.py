"""The description of the API and the API agree: whatever is sent, no 5xx and no answer that is not described."""

import os
import warnings
from collections import Counter
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from redrive.systems.triggers.shapes import ENDPOINT, EVENT

from .conftest import settings as trigger_settings
from .serving import Serving

EXAMPLES = int(os.environ.get("REDRIVE_TEST_ROUNDS") or 6)
OPERATIONS = 23
OVERSIGHT = "/api/triggers/"
OVERSIGHT_OPERATIONS = 4
CHECKS: list[Any] = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


@pytest.mark.long_on("sqlite")
def test_every_answer_is_described(url: str, store: str) -> None:
    """Fitting and unfitting requests to every operation, owners' and operators', with ids that are there and that are not."""
    with Serving(url, trigger_settings(rate_limit_per_minute=1_000_000)) as serving:
        schema = schemathesis.openapi.from_url(f"{serving.base_url}/openapi.json")
        session = requests.Session()
        session.headers["X-API-Key"] = serving.key("admin")
        tested, said = 0, Counter[int]()
        examples = EXAMPLES if store == "sqlite" else max(EXAMPLES // 2, 1)  # each call goes to a server there
        with session:
            there = _things(serving.base_url, session)
            for found in schema.get_all_operations():
                operation = found.ok()
                if operation.path.startswith(("/v1/", OVERSIGHT)):
                    _try(operation, session, there, said, examples)
                    tested += 1
        assert tested == OPERATIONS + OVERSIGHT_OPERATIONS
        # It must have come in and been refused, in many ways, or it shows nothing.
        assert {200, 201, 204, 400, 404} <= set(said), said
        assert said[200] + said[201] > tested


def _things(base_url: str, session: requests.Session) -> dict[str, str]:
    """Ids that are there."""
    event = session.post(f"{base_url}/v1/events", json={"event_type": "a", "payload": 1}, timeout=150).json()
    endpoint = session.post(f"{base_url}/v1/endpoints", json={"url": "http://127.0.0.1:1/"}, timeout=150).json()
    key = session.post(f"{base_url}/v1/keys", json={"user": "x", "scopes": ["viewer"]}, timeout=150).json()
    return {"event_id": event["event_id"], "endpoint_id": endpoint["endpoint_id"], "key_id": key["key_id"]}


def _try(operation: Any, session: requests.Session, there: dict[str, str], said: Counter[int], examples: int) -> None:
    modes = [operation.as_strategy(generation_mode=mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]
    place = st.sampled_from(["as it is", "there"])

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=st.one_of(modes), place=place)
    def send(case: Any, place: str) -> None:
        if place == "there" and case.meta.generation.mode is GenerationMode.POSITIVE:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = there[name]
        said[case.call_and_validate(session=session, checks=CHECKS, timeout=150).status_code] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hypothesis asks for a narrower schema where it has none to give
        send()


@pytest.mark.parametrize("store", ["sqlite"])
async def test_the_description_is_complete(house: Any) -> None:
    """Every operation has a summary, the refusals of all routes, and examples for what is sent and what is answered."""
    async with house.client() as client:
        described = (await client.get("/openapi.json")).json()
    shapes = described["components"]["schemas"]
    operations = [
        (f"{method} {path}", operation)
        for path, methods in described["paths"].items() if path.startswith("/v1/")
        for method, operation in methods.items()
    ]  # fmt: skip
    assert len(operations) == OPERATIONS
    for name, operation in operations:
        assert operation["summary"], name
        assert operation["description"], name
        assert operation["security"] == [{"APIKeyHeader": []}], name
        assert {"401", "403", "429", "503"} <= set(operation["responses"]), name
        assert "422" not in operation["responses"], name
        if "{" in name:
            assert "404" in operation["responses"], name
        for code, answer in operation["responses"].items():
            if code == "204":
                assert "content" not in answer, name
            else:
                shared = described["components"]["responses"].get(answer.get("$ref", "").rsplit("/", 1)[-1], answer)
                [(kind, content)] = shared["content"].items()
                assert (kind, "$ref" in content["schema"]) == ("application/json", True), (name, code)
    assert "examples" in shapes["EventIn"]["properties"]["payload"]
    assert (
        shapes["EventStatusOut"]["properties"]["event_id"]["examples"][0],
        shapes["EndpointOut"]["properties"]["endpoint_id"]["examples"][0],
    ) == (EVENT, ENDPOINT)
