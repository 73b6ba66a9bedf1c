"""Where a PostgreSQL is, from a URL as libpq, SQLAlchemy, asyncpg and managed services write it.

asyncpg reads most of libpq's parameters by itself; the rest is read here. Through a pooler that hands servers on after each
transaction, such as PgBouncer, nothing may be kept in a session: no named statements and no settings of our own. Whether
there is one is found out by asking (`connect.shares_servers`), or said by `?pooler=transaction` and `?pooler=none`. `?claim=portable` asks for
the statements of `portable.py`. `?search_path=` or `REDRIVE_SCHEMA` says which schema the tables are in.
"""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from redrive.errors import SettingsError

LISTEN_URL = "REDRIVE_LISTEN_URL"
SCHEMA = "REDRIVE_SCHEMA"
CONNECT_SECONDS = 10.0
NAME = "redrive"

_FORM = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?:(?P<user>[^:/?#@]*)(?::(?P<password>.*?))?@)?"
    r"(?P<hosts>[^/?#@]*)(?:/(?P<database>[^?#]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HOSTS = re.compile(r"(?:(?:\[[^\]]*\]|[^:,\[]*)(?::\d*)?(?:,(?!$)|$))*")
"""Names and addresses, each with a port or without."""
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")
_SHOWN = ("sslmode", "target_session_attrs")
"""What is worth seeing in a line that names the database."""
_FIRST_WILL_DO = ("any", "primary", "read-write")
"""What can be said of one host without a look at the others."""
_WITHOUT_EFFECT = frozenset(
    (
        "client_encoding", "fallback_application_name", "gssdelegation", "gssencmode", "keepalives", "keepalives_count",
        "keepalives_idle", "keepalives_interval", "load_balance_hosts", "requirepeer", "sslcompression", "sslsni",
        "tcp_user_timeout",
    )
)  # fmt: skip
"""Parameters of libpq that asyncpg has not got, and that can be left out."""
_NOT_CHECKED = ("channel_binding", "require_auth", "sslcertmode")
"""The same, but whoever sets them should know that they are not checked."""


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """One PostgreSQL, or several of which one is the primary."""

    dsn: str
    """As asyncpg reads it."""
    hosts: tuple[str, ...]
    """The same for each host by itself, where any of them will do that is what is looked for; else all in one."""
    shown: str
    """As people may see it: without password."""
    place: str
    """Hosts and ports alone."""
    timeout: float = CONNECT_SECONDS
    name: str = NAME
    """What the server calls our connections."""
    pooler: bool | None = None
    """Whether a pooler stands before it; None if nobody has said."""
    portable: bool = False
    """Whether only what any engine of this protocol has is to be used."""
    schema: str | None = None
    """Where redrive's tables are; None: wherever the role's own path leads."""
    path: str | None = None
    """The schemas that names are looked for in, as the server reads it."""
    tls: ssl.SSLContext | None = None
    notices: tuple[str, ...] = ()
    """What somebody who wrote this URL should know."""

    def arguments(self, role: str = "", *, pooled: bool, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What `asyncpg.connect` is called with. A pooler refuses settings, but for the few that it follows itself."""
        named = {"application_name": f"{self.name} {role}".strip(), "timezone": "UTC"}
        arguments: dict[str, Any] = {"dsn": self.dsn, "timeout": self.timeout}
        if self.tls is not None:
            arguments["ssl"] = self.tls
        if pooled:
            return arguments | {"statement_cache_size": 0, "server_settings": named}
        path = {} if self.path is None else {"search_path": self.path}
        return arguments | {"server_settings": named | path | dict(settings or {})}


def read_address(url: str) -> PostgresAddress:
    """The address behind a URL, or a `SettingsError` that says what is wrong with it."""
    found = _FORM.fullmatch(url.strip())
    if found is None or not _HOSTS.fullmatch(unquote(found["hosts"])):
        raise SettingsError(
            f"{_hidden(url)!r} is not a URL of PostgreSQL: write postgresql://user:password@host:5432/name, "
            "with %40 for an @ in the password"
        )
    asked = _asked(found["query"] or "")
    _check_files(asked)
    timeout = _number("connect_timeout", asked.pop("connect_timeout", None), CONNECT_SECONDS)
    pooler = _pooler(asked)
    portable = _portable(asked)
    path, schema = _path(asked)
    name = asked.pop("application_name", "") or NAME
    notices = tuple(
        f"{key}={asked[key]} of the database URL is not checked: the driver does not know it"
        for key in _NOT_CHECKED
        if asked.get(key, "disable") not in ("disable", "prefer", "allow")
    )
    # All of it as parameters: of what stands before the `?` the driver has its own opinion where both say something.
    before = {"host": found["hosts"], "user": found["user"], "password": found["password"], "dbname": found["database"]}
    asked |= {key: unquote(value) for key, value in before.items() if value}
    if "," in asked.get("host", ""):
        asked.setdefault("target_session_attrs", "primary")
    kept = {key: value for key, value in asked.items() if key not in _WITHOUT_EFFECT and key not in _NOT_CHECKED}
    tls = ssl.create_default_context() if kept.get("sslrootcert") == "system" else None  # as libpq: the name is checked
    if tls is not None:
        kept = {key: value for key, value in kept.items() if key not in ("sslrootcert", "sslmode")}
    return PostgresAddress(
        dsn=f"postgresql://?{urlencode(kept)}", hosts=_each_host(kept), shown=_shown(asked), place=f"{asked.get('host')}:{asked.get('port')}",
        timeout=timeout, name=name, pooler=pooler, portable=portable, schema=schema, path=path, tls=tls, notices=notices,
    )  # fmt: skip


def _each_host(kept: Mapping[str, str]) -> tuple[str, ...]:
    """The address of each host alone, unless the driver has to compare them."""
    hosts, ports = kept.get("host", "").split(","), kept.get("port", "").split(",")
    if len(hosts) == 1 or kept.get("target_session_attrs") not in _FIRST_WILL_DO or len(ports) not in (1, len(hosts)):
        return (f"postgresql://?{urlencode(kept)}",)
    ports = ports * len(hosts) if len(ports) == 1 else ports
    each = ({"host": host} | ({"port": port} if port else {}) for host, port in zip(hosts, ports, strict=True))
    return tuple(f"postgresql://?{urlencode({**kept, **one})}" for one in each)


def _shown(asked: Mapping[str, str]) -> str:
    """As people may see it: who, where, and what decides how it is spoken to."""
    login = quote(asked["user"], safe="") + "@" if "user" in asked else ""
    host = asked.get("host", "")
    is_folder = host.startswith("/")
    said = {key: asked[key] for key in (*(("host",) if is_folder else ()), "port", *_SHOWN) if key in asked}
    query = f"?{urlencode(said, safe='/,:')}" if said else ""
    return f"postgresql://{login}{'' if is_folder else host}/{asked.get('dbname', '')}{query}"


def listen_address(address: PostgresAddress, *, pooled: bool) -> PostgresAddress | None:
    """Where to listen for wake-ups: through a pooler nothing is heard, so there it needs a way of its own."""
    direct = os.environ.get(LISTEN_URL)
    if direct:
        there = read_address(direct)
        return there if there.path is not None else replace(there, schema=address.schema, path=address.path)
    return None if pooled else address


def _asked(query: str) -> dict[str, str]:
    """The parameters; of several hosts, as SQLAlchemy writes them, one list."""
    asked: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        asked[key] = f"{asked[key]},{value}" if key in ("host", "port") and key in asked else value
    if "ssl" in asked:  # asyncpg's word
        wanted = asked.pop("ssl")
        asked.setdefault("sslmode", "require" if wanted.lower() in ("1", "true", "on") else wanted)
    if "hostaddr" in asked:
        raise SettingsError("hostaddr in the database URL is not known: write the address as host")
    return asked


def _pooler(asked: dict[str, str]) -> bool | None:
    """What the URL says of a pooler, also in the words of others: `pgbouncer=true`, `statement_cache_size=0`."""
    caches = [asked.pop(key, None) for key in ("statement_cache_size", "prepared_statement_cache_size")]
    others = asked.pop("pgbouncer", "").lower() == "true" or "0" in caches
    match asked.pop("pooler", None):
        case None:
            return True if others else None
        case "transaction":
            return True
        case "none":
            return False
        case other:
            raise SettingsError(f"pooler={other} in the database URL is not known: it is transaction or none")


def _portable(asked: dict[str, str]) -> bool:
    match asked.pop("claim", "native"):
        case "native":
            return False
        case "portable":
            return True
        case other:
            raise SettingsError(f"claim={other} in the database URL is not known: it is native or portable")


def _path(asked: dict[str, str]) -> tuple[str | None, str | None]:
    """The search path that the URL or the environment asks for, and its first schema, in which tables are made."""
    path = asked.pop("search_path", None)
    if path is None:
        schema = os.environ.get(SCHEMA) or None
        return None if schema is None else _quoted(schema), schema
    first = re.match(r'\s*(?:"((?:[^"]|"")+)"|([^",\s]+))\s*(?:,|$)', path)
    if first is None:
        raise SettingsError(
            f"search_path={path} in the database URL cannot be read: write search_path=shop or search_path=shop,public"
        )
    schema = first[1].replace('""', '"') if first[1] else first[2].lower()
    return path, None if schema == "$user" else schema


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_files(asked: Mapping[str, str]) -> None:
    for key in _FILES:
        path = asked.get(key)
        if path and path != "system" and not os.access(Path(path).expanduser(), os.R_OK):
            raise SettingsError(f"{key} of the database URL cannot be read: {path}")


def _number(key: str, value: str | None, otherwise: float) -> float:
    if value is None:
        return otherwise
    try:
        seconds = float(value)
    except ValueError:
        raise SettingsError(f"{key}={value} in the database URL must be a number of seconds") from None
    return seconds if 0 < seconds < 3600 else otherwise  # libpq takes 0 for "for ever"


def _hidden(url: str) -> str:
    """What may be shown of a URL that nobody can read: a password may stand anywhere before an @, and among the parameters."""
    return re.sub(r"//.*@", "//…@", url, flags=re.DOTALL).partition("?")[0]
