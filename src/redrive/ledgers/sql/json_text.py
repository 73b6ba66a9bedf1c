"""JSON in a text column: what comes back is what went in.

SQLite takes a column that is declared JSON for a number where it can: `12345678901234567890123` came back as a float and `1.0` as `1`.
"""

import json
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator


class JsonText(TypeDecorator[Any]):
    """JSON as text; what is not JSON is read as the text it is. JSON that Python cannot hold raises, as from a JSON column."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:  # noqa: ARG002
        return json.dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        if not isinstance(value, str | bytes):
            return value
        try:
            return json.loads(value)
        except (json.JSONDecodeError, UnicodeDecodeError):
            return value
