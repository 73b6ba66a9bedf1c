"""An answer that is known whole leaves in one write.

The server writes the head of an answer and then its body, and each write is a call of the system, which costs as much as all that is done
for a small request. Here the head waits for the body, where its length is known; what is sent piece by piece leaves piece by piece. And a header
that many answers have is checked and spelled once.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

from redrive.http.envelope import SECURITY_HEADERS

LINES_MAX = 256
_LINES: dict[tuple[bytes, bytes], bytes] = {}
"""Headers of these names as they are sent: most answers have the same."""
_SAME = frozenset({b"content-type", *(name.lower().encode() for name in SECURITY_HEADERS)})
_SPECIAL = frozenset({b"connection", b"transfer-encoding"})
_EMPTY = (204, 304)


class OneWrite(RequestResponseCycle):
    """A request and its answer. `take_over` makes one of what the server has made."""

    _head: bytes | None = None
    """It waits for the body."""

    @property
    def has_whole_body(self) -> bool:
        """For whoever would else let a clock run while the body comes."""
        return not self.more_body

    @classmethod
    def take_over(cls, cycle: RequestResponseCycle) -> None:
        """Answer in this way. The server names the class of its answers itself, and ours has no attributes of its own to begin with."""
        cycle.__class__ = cls

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if not self.response_started:
            if message["type"] == "http.response.start" and self._hold(message):
                return
        elif self._head is not None:
            head, self._head = self._head, None
            if self._is_whole(message):
                self.transport.write(head + message["body"])
                self._complete()
                return
            if not self.disconnected:
                self.transport.write(head)
        await super().send(message)

    def _hold(self, message: Any) -> bool:
        """Whether the head can wait, and does: all that the server does for it is done but for the write."""
        status, length = message["status"], None
        if status in _EMPTY or self.scope["method"] == "HEAD" or not self.keep_alive or self.access_log:
            return False
        if self.disconnected or self.flow.write_paused:
            return False
        lines = [STATUS_LINE[status]]
        for pair in (*self.default_headers, *message.get("headers", ())):
            line = _LINES.get(pair)
            if line is None:
                name, value = pair
                if name == b"content-length":
                    length = int(value)
                line = _line(name, value)
                if line is None:
                    return False
            lines.append(line)
        if length is None:
            return False
        lines.append(b"\r\n")
        self.response_started = True
        self.waiting_for_100_continue = self.chunked_encoding = False
        self.expected_content_length = length
        self._head = b"".join(lines)
        return True

    def _is_whole(self, message: Any) -> bool:
        return (
            message["type"] == "http.response.body"
            and not message.get("more_body", False)
            and len(message.get("body", b"")) == self.expected_content_length > 0
            and not self.flow.write_paused
            and not self.disconnected
        )

    def _complete(self) -> None:
        self.expected_content_length = 0
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:  # the server has been told to end meanwhile
            self.transport.close()
        self.on_response()


def _line(name: bytes, value: bytes) -> bytes | None:
    """A header as it is sent. None where it changes how the rest is sent, and where it is none: the server refuses it."""
    small = name.lower()
    if small in _SPECIAL or HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        return None
    line = b"%s: %s\r\n" % (small, value)
    if small in _SAME and len(_LINES) < LINES_MAX:
        _LINES[name, value] = line
    return line
