"""Every form of a URL that people and managed services write."""

import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from asyncpg import connect_utils

from redrive.errors import SettingsError
from redrive.ledgers.open import open_database
from redrive.ledgers.postgres.address import LISTEN_URL, PostgresAddress, listen_address, read_address
from tests.servers import PostgresServer

PLAIN = "postgresql://shop:geheim@db.example:5433/orders"


def understood(address: PostgresAddress) -> tuple[list[Any], Any]:
    """What the driver makes of it: where it goes, and how."""
    arguments = address.arguments(pooled=False)
    return connect_utils._parse_connect_dsn_and_args(
        dsn=arguments["dsn"], ssl=arguments.get("ssl"), server_settings=arguments["server_settings"],
        **dict.fromkeys(
            ("host", "port", "user", "password", "passfile", "database", "service", "servicefile", "direct_tls",
             "target_session_attrs", "krbsrvname", "gsslib")
        ),
    )  # type: ignore[no-any-return]  # fmt: skip


@pytest.mark.parametrize(
    "url",
    [
        PLAIN,
        "postgres://shop:geheim@db.example:5433/orders",
        "postgresql+asyncpg://shop:geheim@db.example:5433/orders",
        "postgresql+psycopg://shop:geheim@db.example:5433/orders",
        "postgresql://db.example/orders?port=5433&user=shop&password=geheim",
        "postgresql://shop:geheim@/orders?host=db.example&port=5433",
        "postgresql://shop:geheim@db.example:5433/?dbname=orders",
        PLAIN + "?sslmode=require",
        PLAIN + "?sslmode=require&channel_binding=require",
        PLAIN + "?sslmode=verify-full&sslrootcert=system",
        PLAIN + "?ssl=require",
        PLAIN + "?connect_timeout=3&application_name=shop",
        PLAIN + "?keepalives=1&keepalives_idle=30&tcp_user_timeout=1000&gssencmode=disable&load_balance_hosts=random",
        PLAIN + "?options=-c%20search_path%3Dshop",
        PLAIN + "?pgbouncer=true",
        PLAIN + "?statement_cache_size=0&prepared_statement_cache_size=0",
        PLAIN + "?target_session_attrs=read-write",
    ],
)
def test_all_forms_name_the_same_database(url: str):
    """However it is written, the driver goes to the same place as the same user."""
    places, how = understood(read_address(url))
    assert places == [("db.example", 5433)]
    assert (how.user, how.password, how.database) == ("shop", "geheim", "orders")
    assert {"connect_timeout", "channel_binding", "keepalives", "pooler", "pgbouncer"}.isdisjoint(how.server_settings)


@pytest.mark.parametrize("password", ["p@ss", "a/b?c#d", "%41", "ä:ö", "[x]", "p%40ss@"])
def test_a_password_may_have_any_letters(password: str):
    """Quoted as a URL wants it; and one that was pasted as it is works where that can be read in one way only."""
    quoted = f"postgresql://shop:{quote(password, safe='')}@db.example/orders"
    assert understood(read_address(quoted))[1].password == password
    if "%" not in password:
        assert understood(read_address(f"postgresql://shop:{password}@db.example/orders"))[1].password == password


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop@a.example:5433,b.example:5434/orders",
        "postgresql://shop@a.example,b.example/orders?port=5433,5434",
        "postgresql://shop@/orders?host=a.example:5433&host=b.example:5434",
        "postgresql://shop@/orders?host=a.example,b.example&port=5433,5434",
    ],
)
def test_of_several_hosts_the_primary_is_looked_for(url: str):
    """Whoever names several wants the one that writes, unless they say otherwise."""
    places, how = understood(read_address(url))
    assert places == [("a.example", 5433), ("b.example", 5434)]
    assert how.target_session_attrs.value == "primary"
    _, otherwise = understood(read_address(f"{url}{'&' if '?' in url else '?'}target_session_attrs=any"))
    assert otherwise.target_session_attrs.value == "any"


def test_what_is_shown_has_no_password():
    """Neither the place for it nor a parameter nor an error shows it."""
    for url in (PLAIN, PLAIN.replace("shop:geheim@", "") + "?user=shop&password=geheim&sslpassword=geheim"):
        assert "geheim" not in read_address(url).shown
        assert "orders" in read_address(url).shown
    for url in (
        "postgresql://shop:geheim@a@b@/x@y:z#",
        "postgresql://shop:ge/geheim@db:port/orders",
        "postgresql://db:port/orders?user=shop&password=geheim",
    ):
        with pytest.raises(SettingsError) as error:
            read_address(url)
        assert "geheim" not in str(error.value)


def test_tls_by_the_machines_own_certificates():
    """`sslrootcert=system` is no file: the certificate and its name are checked by what this machine trusts."""
    _, how = understood(read_address(PLAIN + "?sslrootcert=system"))
    assert how.ssl.check_hostname is True
    assert how.ssl.verify_mode == ssl.CERT_REQUIRED


def test_a_binding_that_is_not_checked_is_said():
    """What the driver cannot check is said, and nothing is said of what needs no check."""
    [notice] = read_address(PLAIN + "?channel_binding=require").notices
    assert notice == "channel_binding=require of the database URL is not checked: the driver does not know it"
    assert read_address(PLAIN + "?channel_binding=prefer").notices == ()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("pooler=sometimes", "pooler=sometimes in the database URL is not known: it is transaction or none"),
        ("connect_timeout=soon", "connect_timeout=soon in the database URL must be a number of seconds"),
        ("sslrootcert=/nowhere/root.crt", "sslrootcert of the database URL cannot be read: /nowhere/root.crt"),
        ("hostaddr=10.0.0.1", "hostaddr in the database URL is not known: write the address as host"),
    ],
)
def test_what_is_wrong_is_said_at_once(query: str, said: str):
    """Before anything is connected, in one sentence with the name of the parameter."""
    with pytest.raises(SettingsError) as error:
        open_database(f"{PLAIN}?{query}")
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sslmode=perhaps", "the database URL cannot be used: `sslmode` parameter must be one of"),
        ("target_session_attrs=best", "the database URL cannot be used: target_session_attrs is expected to be one of"),
        ("colour=green", 'the database URL cannot be used: unrecognized configuration parameter "colour"'),
    ],
)
async def test_what_only_the_driver_or_the_server_knows_is_said_too(postgres: PostgresServer, query: str, said: str):
    """It is a mistake in the settings, not a server that may come back."""
    joint = "&" if "?" in postgres.url else "?"
    database = open_database(f"{postgres.url}{joint}{query}")
    with pytest.raises(SettingsError) as error:
        await database.open()
    assert str(error.value).startswith(said)
    await database.close()


async def test_the_server_knows_our_connections_by_the_name_that_was_given(postgres: PostgresServer):
    """A name in the URL goes before ours; whoever looks into `pg_stat_activity` finds what they wrote."""
    joint = "&" if "?" in postgres.url else "?"
    for query, expected in (("", "redrive"), (f"{joint}application_name=shop", "shop")):
        database = open_database(postgres.url + query)
        name = await database.read(lambda c: c.exec_driver_sql("SHOW application_name").scalar_one())
        assert name == expected
        await database.close()


def test_where_to_listen(monkeypatch: pytest.MonkeyPatch):
    """Through a pooler nothing is heard, so nobody listens there unless a direct way is named."""
    address = read_address(PLAIN)
    assert listen_address(address, pooled=False) is address
    assert listen_address(address, pooled=True) is None
    monkeypatch.setenv(LISTEN_URL, "postgresql://shop@direct.example/orders")
    direct = listen_address(address, pooled=True)
    assert direct is not None
    assert understood(direct)[0] == [("direct.example", 5432)]


def test_files_that_can_be_read(tmp_path: Path):
    """A certificate that is there is handed to the driver."""
    bundle = tmp_path / "root.crt"
    bundle.write_text(ssl.DER_cert_to_PEM_cert(b"x"))
    with pytest.raises(ssl.SSLError):  # it is read, and is no certificate
        understood(read_address(f"{PLAIN}?sslmode=verify-ca&sslrootcert={bundle}"))
