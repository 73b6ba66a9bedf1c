"""What `/openapi.json` says of refusals: every status that a route may answer with, each in the one form of errors.

Routes describe what they refuse themselves. What all of them may answer, because of the connection, the key, the body or the store, is
added here, so that no route can forget it.
"""

from collections.abc import Iterable
from typing import Any

from redrive.http.errors import ErrorAnswer, ErrorStyle

ANY = {
    400: "The request cannot be read, or what it asks for cannot be used",
    408: "The request came too slowly",
    431: "The headers are larger than 64 KiB",
    500: "A fault of the service; its log has more under the request id",
    503: "The store cannot be reached now, or there are too many connections: try again",
}
GUARDED = {
    401: "No valid key",
    403: "The key lacks the scope, or a session its token",
    429: "Too many wrong keys; see `Retry-After`",
}
NAMED = {404: "There is no such thing"}
WITH_BODY = {413: "The body is too large"}
INVALID = "The request is not valid"
METHODS = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})
_FORM = "ErrorAnswer"


def describe_refusals(described: dict[str, Any], styles: Iterable[ErrorStyle]) -> dict[str, Any]:
    """The description with all refusals named; the framework's own form of a 422 is gone."""
    known = list(styles)
    answers: dict[str, Any] = {}
    for path, operations in described["paths"].items():
        style = next((one for one in known if f"{path}/".startswith(f"{one.prefix}/")), None)
        for method, operation in operations.items():
            if method in METHODS:
                _complete(operation, answers, invalid=422 if style is None else style.invalid_status)
    components = described.setdefault("components", {})
    schema = ErrorAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update(schema.pop("$defs", {}) | {_FORM: schema})
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["responses"] = answers
    return described


def _complete(operation: dict[str, Any], answers: dict[str, Any], *, invalid: int) -> None:
    responses = operation["responses"]
    framework = responses.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if framework.get("$ref", "").endswith("/HTTPValidationError"):
        del responses["422"]
        responses.setdefault(str(invalid), _shared(answers, invalid, INVALID))
    meanings = dict(ANY)
    if "security" in operation:
        meanings |= GUARDED
    if "requestBody" in operation:
        meanings |= WITH_BODY
    if any(one["in"] == "path" or one["name"] == "ledger" for one in operation.get("parameters", ())):
        meanings |= NAMED
    for status, meaning in meanings.items():
        responses.setdefault(str(status), _shared(answers, status, meaning))


def _shared(answers: dict[str, Any], status: int, meaning: str) -> dict[str, str]:
    """A response that many operations have, written once."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_FORM}"}}}
    name = f"Refused{status}" if meaning != INVALID else f"Invalid{status}"
    answers[name] = {"description": meaning, "content": content}
    return {"$ref": f"#/components/responses/{name}"}
