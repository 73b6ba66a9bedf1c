"""Routes that are answered before the framework looks at a request, and the envelope around all of them."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from redrive import Redrive
from redrive.errors import LedgerAwayError
from redrive.http.direct import send_json
from redrive.http.envelope import SECURITY_HEADERS
from redrive.http.errors import ApiError
from redrive.observe.traces import current_trace
from redrive.running import Service
from redrive.settings import Settings
from redrive.system import System
from redrive.web.app import make_web


class Plain(System):
    """A system with one plain route, which raises what it is told to."""

    name = "plain"

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self.asked = 0
        self.trace: str | None = None
        self.error: Exception | None = None
        self.headers: Sequence[tuple[bytes, bytes]] = ()

    def routes(self) -> Sequence[Any]:
        """See `System.routes`."""
        system = self

        class Answer:
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                system.asked += 1
                system.trace = current_trace()
                if system.error is not None:
                    raise system.error
                await send_json(send, 202, {"said": "ä"}, system.headers)

        return [Route("/plain", Answer(), methods=["POST"], include_in_schema=False)]


@pytest.fixture
def plain(app: Redrive) -> Plain:
    return Plain(app)


@pytest.fixture
def ask(app: Redrive, plain: Plain) -> Callable[..., Any]:
    async def asked(path: str = "/plain", method: str = "POST", root: str = "", **options: Any) -> httpx.Response:
        web = make_web(Service(app, Settings(_env_file=None)))
        transport = httpx.ASGITransport(web, root_path=root, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, root + path, **options)

    return asked


async def test_it_is_answered_in_the_envelope(ask: Callable[..., Any]) -> None:
    """With all that every answer has: JSON in UTF-8, its length, the security headers, and the caller's id."""
    answer = await ask(headers={"X-Request-ID": "mine-7"})
    assert (answer.status_code, answer.json()) == (202, {"said": "ä"})
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine-7"
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS


async def test_the_framework_is_not_asked(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A path without parameters is not looked for among all routes."""

    def matches(*_: Any) -> Any:
        raise AssertionError("the routes were walked")

    monkeypatch.setattr(Route, "matches", matches)
    assert (await ask()).status_code == 202


async def test_a_trace_goes_on_through_it(
    ask: Callable[..., Any], plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an SDK takes spans the framework makes one of the request, and what is added in it belongs to the caller's trace."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    caller = "0af7651916cd43dd8448eb211c80319c"
    assert (await ask(headers={"traceparent": f"00-{caller}-b7ad6b7169203331-01"})).status_code == 202
    assert plain.trace is not None
    assert plain.trace.split("-")[1] == caller


async def test_what_a_response_says_itself_stays(ask: Callable[..., Any], plain: Plain) -> None:
    """Once: its own header instead of ours. The id of the request is ours in any case."""
    plain.headers = ((b"Cache-Control", b"max-age=5"), (b"X-Request-ID", b"theirs"))
    answer = await ask(headers={"X-Request-ID": "mine-7"})
    assert answer.headers.get_list("cache-control") == ["max-age=5"]
    assert answer.headers.get_list("x-request-id") == ["mine-7"]
    assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("given", ["", "two words", "x" * 101, "é"])
async def test_an_odd_id_is_replaced(ask: Callable[..., Any], given: str) -> None:
    """What is not a harmless word is not repeated."""
    answer = await ask(headers={"X-Request-ID": given.encode()})
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(429, "queue_full", "later", headers={"Retry-After": "5"}), 429, "queue_full"),
        (LedgerAwayError("gone"), 503, "store_away"),
        (ZeroDivisionError("password=hunter2"), 500, "internal_error"),
    ],
)
async def test_refusals_have_the_one_form(
    ask: Callable[..., Any], plain: Plain, error: Exception, status: int, code: str
) -> None:
    """What a plain route raises is answered as what any other raises; a bug tells nothing of itself."""
    plain.error = error
    answer = await ask()
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "message", "details", "timestamp", "request_id"}
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
    assert "hunter2" not in answer.text
    if isinstance(error, ApiError):
        assert answer.headers["retry-after"] == "5"


async def test_it_may_be_mounted(ask: Callable[..., Any], plain: Plain) -> None:
    """Under a path of somebody else's."""
    assert (await ask(root="/ops")).status_code == 202
    assert plain.asked == 1


async def test_other_methods_and_paths_are_the_frameworks(ask: Callable[..., Any], plain: Plain) -> None:
    """Neither reaches the route."""
    assert (await ask(method="PUT")).status_code == 405
    assert (await ask(path="/plain/more")).status_code == 404
    assert plain.asked == 0
