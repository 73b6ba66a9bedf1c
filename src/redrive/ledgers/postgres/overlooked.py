"""The rows that wait behind gates on PostgreSQL, and the gates that sleep though one of them is due."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Text,
    all_,
    and_,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import array

from redrive.ledgers.sql import schema
from redrive.ledgers.sql.gate_rows import GateRows, NamedGate
from redrive.ledgers.sql.predicates import quoted
from redrive.ledgers.sql.seam import Dialect, Parameters

LATELY_SECONDS = 10
"""How long ago a claim may have put a gate to sleep that is looked at again: longer than any claim takes."""


def heads(rows: GateRows, gate: ColumnElement[str], kind: ColumnElement[str] | None) -> tuple[FromClause, Select[Any]]:
    """The waiting rows of a gate, a kind and a band, in the order in which they are due; and the table of bands."""
    bands = func.unnest(literal_column(f"'{{{','.join(map(str, rows.bands))}}}'::integer[]")).table_valued("band")
    bands = bands.render_derived(name="bands")
    where = [rows.gate == gate, rows.band == bands.c.band, rows.waiting]
    if rows.kind is not None:
        where.append(rows.kind == kind)
    return bands, select(rows.id.label("id"), rows.due.label("due"), bands.c.band).where(*where).order_by(rows.due)


def heads_of_kinds(
    rows: GateRows, gate: ColumnElement[str], kinds: ColumnElement[Any] | None
) -> tuple[list[FromClause], Select[Any]]:
    """The same for several kinds; and the tables of bands and kinds."""
    if rows.kind is None:
        bands, found = heads(rows, gate, None)
        return [bands], found
    assert kinds is not None
    each = func.unnest(kinds, type_=Text).table_valued("kind").render_derived(name="each_kind")
    bands, found = heads(rows, gate, each.c.kind)
    return [bands, each], found


def overlooked(dialect: Dialect, rows: GateRows) -> Select[Any]:
    """A loose scan over the gates and kinds of the index: see `GateClaim.discover`."""
    g = schema.gate
    kind: Any = null() if rows.kind is None else rows.kind
    columns = [
        rows.gate.label("gate"),
        cast(kind, Text).label("kind"),
        cast(null() if rows.tenant is None else rows.tenant, Text).label("tenant"),
    ]
    order = [rows.gate] if rows.kind is None else [rows.gate, rows.kind]
    head = select(*columns).where(rows.waiting).order_by(*order).limit(1)
    scan = select(head.subquery("head")).cte("scan", recursive=True)
    before = [scan.c.gate] if rows.kind is None else [scan.c.gate, scan.c.kind]
    following = head.where(tuple_(*order) > tuple_(*before)).correlate(scan).lateral("following")
    scan = scan.union_all(select(*following.c).select_from(scan.join(following, true())))
    due = _has_due(dialect, rows, scan, scan.c.gate, array([scan.c.kind]))
    asleep = and_(*_asleep(dialect), due)
    unknown = [] if rows.kind is None else [scan.c.kind != all_(g.c.kinds)]
    mine = and_(g.c.ledger == bindparam("ledger", type_=Text), g.c.name == scan.c.gate)
    return (
        select(scan.c.gate, scan.c.kind, scan.c.tenant)
        .select_from(scan.outerjoin(g, mine))
        .where(or_(g.c.name.is_(None), *unknown, asleep))
    )


def missed(dialect: Dialect, rows: GateRows) -> Select[Any]:
    """Gates that a claim has put to sleep a moment ago though something is due: see `GateClaim.discover_lately`.

    A task that was added meanwhile is in neither's snapshot: the claim did not see it, and whoever added it saw a gate that was awake.
    """
    g = schema.gate
    lately = g.c.turn_at > dialect.now() - literal_column(f"interval '{LATELY_SECONDS} seconds'")
    due = _has_due(dialect, rows, g, g.c.name, g.c.kinds)
    kind = null() if rows.kind is None else g.c.kinds[1]
    mine = g.c.ledger == bindparam("ledger", type_=Text)
    return select(g.c.name, cast(kind, Text).label("kind"), g.c.tenant).where(mine, lately, *_asleep(dialect), due)


def found_gates(connection: Connection, statement: Select[Any], ledger: str, times: Parameters) -> list[NamedGate]:
    """Run `overlooked` or `missed`."""
    found = connection.execute(statement, {"ledger": ledger, **times}).all()
    return [NamedGate(gate, kind, str(tenant or "")) for gate, kind, tenant in found]


def _asleep(dialect: Dialect) -> list[ColumnElement[bool]]:
    """Gates that sleep until something is due, and know of nothing yet."""
    g = schema.gate
    return [g.c.waits_for == quoted("due"), func.coalesce(g.c.wake_at > dialect.now(), true())]


def _has_due(
    dialect: Dialect, rows: GateRows, outside: FromClause, gate: ColumnElement[str], kinds: ColumnElement[Any]
) -> ColumnElement[bool]:
    """Whether a task of a gate that stands outside is due."""
    sources, first = heads_of_kinds(rows, gate, None if rows.kind is None else kinds)
    one = first.where(rows.due <= dialect.present(rows.due_column)).correlate(outside, *sources).limit(1)
    joined: Any = sources[0]
    for source in [*sources[1:], one.lateral("one")]:
        joined = joined.join(source, true())
    return select(literal_column("1")).select_from(joined).correlate(outside).exists()
