"""Gates on PostgreSQL: the claim is one statement that never waits for a lock, and a settlement has two parts more.

What `core.gates` says in Python stands here in SQL, because a gate must not stay locked while a worker is asked what to make of it:
one that stands still would hold its destination for all others. A test compares the two.

A row that is locked `FOR UPDATE` is returned in its newest version; rows that are merely read are those of the statement's
snapshot. So what is held is a counter in the gate's row, and a gate that found nothing sleeps only if its version is still the one that
the snapshot saw: whoever settled in between may have left a task that the snapshot does not show.
"""

from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Interval,
    Select,
    Text,
    Uuid,
    all_,
    and_,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from redrive.core.gate_order import BANDS, SURE_PERCENT, TENANTS
from redrive.core.gates import BreakerState
from redrive.ledgers.postgres.overlooked import found_gates, heads_of_kinds, missed, overlooked
from redrive.ledgers.sql.compiled import Compiled
from redrive.ledgers.sql.gate_rows import GateAsk, GateRows, NamedGate
from redrive.ledgers.sql.predicates import as_text, quoted
from redrive.ledgers.sql.seam import Dialect, Parameters
from redrive.ledgers.sql.times import Instant

_RULED = """
    SELECT g.*,
        r.concurrency, r.rate, r.failures, r.share, r.budget,
        coalesce(r.probe_seconds, 30) * interval '1 second' AS probe,
        coalesce(r.within_seconds, 60) * interval '1 second' AS span,
        aged.elapsed, aged.step, aged.bucket,
        (r.rate - aged.bucket + 1) / r.rate_seconds AS fill,
        CASE
            WHEN r.failures IS NULL THEN 'flowing'
            WHEN g.state <> 'returning' THEN g.state
            WHEN aged.step >= 10 OR 2 ^ aged.step >= r.rate / r.rate_seconds THEN 'flowing'
            ELSE g.state
        END AS breaker,
        present.now
    FROM {rows} AS g
    CROSS JOIN present
    LEFT JOIN redrive_gate_rule AS r ON r.ledger = g.ledger AND r.pattern = g.rule
    CROSS JOIN LATERAL (
        SELECT
            greatest(0, extract(epoch FROM present.now - g.tokens_at)::float8) AS elapsed,
            greatest(0, least(11, floor(extract(epoch FROM present.now - g.ramp_at))))::integer AS step,
            least(r.rate, coalesce(r.burst, 1 + r.rate / 20)) AS bucket
    ) AS aged
"""
"""A gate with its limits, how long its tokens have been filling, and what its breaker does now: see `core.gates.state_of`."""

_LOCKED = """
    WITH RECURSIVE up AS (
        SELECT 1 AS nth, (
            SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready AND tenant > :last
        ) AS tenant
        UNION ALL
        SELECT up.nth + 1, (
            SELECT min(g.tenant) FROM redrive_gate AS g WHERE g.ledger = :ledger AND g.ready AND g.tenant > up.tenant
        ) FROM up WHERE up.tenant IS NOT NULL AND up.nth < :limit
    ), down AS (
        SELECT 1 AS nth, (
            SELECT min(tenant) FROM redrive_gate WHERE ledger = :ledger AND ready AND tenant <= :last
        ) AS tenant
        UNION ALL
        SELECT down.nth + 1, (
            SELECT min(g.tenant) FROM redrive_gate AS g
            WHERE g.ledger = :ledger AND g.ready AND g.tenant > down.tenant AND g.tenant <= :last
        ) FROM down WHERE down.tenant IS NOT NULL AND down.nth < :limit
    ), turns AS (
        SELECT around.tenant
        FROM (SELECT nth, tenant FROM up UNION ALL SELECT nth + :limit, tenant FROM down) AS around
        WHERE around.tenant IS NOT NULL AND around.tenant <> ALL (:busy)
        ORDER BY around.nth
        LIMIT :limit
    ), looked AS (
        (
            SELECT name, version FROM redrive_gate
            WHERE ledger = :ledger AND NOT ready AND wake_at <= (SELECT now FROM present)
                AND tenant <> ALL (:busy) AND (:kinds IS NULL OR kinds && :kinds)
            ORDER BY wake_at, name
            LIMIT greatest(1, :limit / 2)
        )
        UNION ALL
        SELECT found.name, found.version
        FROM turns CROSS JOIN LATERAL (
            SELECT g.name, g.version FROM redrive_gate AS g
            WHERE g.ledger = :ledger AND g.ready AND g.tenant = turns.tenant AND (:kinds IS NULL OR g.kinds && :kinds)
            ORDER BY g.turn_at, g.name
            LIMIT (SELECT greatest(1, :limit / greatest(1, count(*))) FROM turns)
        ) AS found
    ), newest AS (
        SELECT * FROM redrive_gate
        WHERE ledger = :ledger AND name = ANY (ARRAY (SELECT name FROM looked))
        FOR UPDATE SKIP LOCKED
    )
    SELECT newest.*, looked.version AS seen FROM newest JOIN looked ON looked.name = newest.name
"""
"""Gates that may have something to hand out: those whose time has come, then those that are ready, tenant by tenant from behind
the one that was served last, once around. Those that somebody has locked are passed by."""

_ROOMY = """
    SELECT ruled.*, filled.tokens_now, filled.retry_now, filled.probe_due,
        CASE WHEN filled.is_held THEN 0 ELSE greatest(0, least(
            :limit,
            ruled.concurrency - ruled.held,
            floor(filled.tokens_now)::integer,
            CASE ruled.breaker
                WHEN 'tripped' THEN CASE WHEN filled.probe_due THEN 1 ELSE 0 END
                WHEN 'returning'
                    THEN least(2 ^ ruled.step, 2 ^ (ruled.step + 1) - 1 - ruled.ramp_started)::integer
            END
        )) END AS room,
        CASE
            WHEN ruled.budget IS NULL THEN :limit ELSE greatest(0, least(:limit, floor(filled.retry_now)::integer))
        END AS retry_room
    FROM ruled CROSS JOIN LATERAL (
        SELECT
            CASE WHEN ruled.rate IS NOT NULL
                THEN least(ruled.bucket::float8, coalesce(ruled.tokens + ruled.elapsed * ruled.fill, ruled.bucket))
            END AS tokens_now,
            least(60::float8, coalesce(ruled.retry_tokens + ruled.elapsed, 60)) AS retry_now,
            coalesce(ruled.probe_at <= ruled.now, true) AND (ruled.probe_claim IS NULL OR ruled.held = 0) AS probe_due,
            (ruled.paused_at IS NOT NULL AND coalesce(ruled.paused_until > ruled.now, true))
                OR coalesce(ruled.opens_at > ruled.now, false) AS is_held
    ) AS filled
"""
"""How much room there is: see `core.gates.room` and `retry_room`."""

_CLAIMED = """
    UPDATE redrive_gate AS g SET
        version = g.version + 1, turn_at = after.now, held = after.held, tokens = after.tokens,
        tokens_at = greatest(after.now, after.tokens_at), retry_tokens = after.retry_tokens,
        state = after.breaker, ramp_started = after.ramp_started,
        since = CASE WHEN after.breaker = after.state THEN after.since ELSE after.now END,
        trips = CASE WHEN after.breaker = after.state THEN after.trips ELSE 0 END,
        probe_claim = after.probe_claim, probe_at = after.probe_at,
        ready = after.waits_for IS NULL, waits_for = after.waits_for,
        wake_at = CASE after.waits_for
            WHEN 'person' THEN after.paused_until
            WHEN 'retry-after' THEN after.opens_at
            WHEN 'probe' THEN CASE WHEN after.probe_at > after.now THEN after.probe_at ELSE after.now + after.probe END
            WHEN 'rate' THEN after.now
                + ceil((1 - after.tokens) / after.fill * 1e6::float8) * interval '1 microsecond'
            WHEN 'ramp' THEN after.ramp_at + (after.step + 1) * interval '1 second'
            WHEN 'budget' THEN after.now
                + ceil((1 - after.retry_tokens) * 1e6::float8) * interval '1 microsecond'
            WHEN 'due' THEN after.soonest
        END
    FROM (
        SELECT taken.*, CASE
            WHEN taken.paused_at IS NOT NULL AND coalesce(taken.paused_until > taken.now, true) THEN 'person'
            WHEN taken.opens_at > taken.now THEN 'retry-after'
            WHEN taken.breaker = 'tripped' AND NOT (
                coalesce(taken.probe_at <= taken.now, true) AND (taken.probe_claim IS NULL OR taken.held = 0)
            ) THEN 'probe'
            WHEN taken.held >= taken.concurrency THEN 'slot'
            WHEN taken.rate IS NOT NULL AND taken.tokens < 1 THEN 'rate'
            WHEN taken.breaker = 'returning' AND 2 ^ (taken.step + 1) - 1 - taken.ramp_started < 1 THEN 'ramp'
            WHEN NOT taken.may_rest THEN NULL
            WHEN taken.budget IS NOT NULL AND taken.retry_tokens < 1 THEN 'budget'
            WHEN taken.version <> taken.seen OR taken.soonest <= taken.now THEN NULL
            ELSE 'due'
        END AS waits_for
        FROM (
            SELECT roomy.ledger, roomy.name, roomy.version, roomy.seen, roomy.now, roomy.room, roomy.state, roomy.breaker,
                roomy.since, roomy.trips, roomy.step, roomy.ramp_at, roomy.tokens_at, roomy.paused_at, roomy.paused_until,
                roomy.opens_at, roomy.concurrency, roomy.rate, roomy.fill, roomy.budget, roomy.probe,
                counted.amount, counted.may_rest, counted.soonest,
                roomy.held + counted.amount AS held,
                CASE WHEN roomy.rate IS NULL THEN roomy.tokens ELSE roomy.tokens_now - counted.amount END AS tokens,
                CASE WHEN roomy.budget IS NULL THEN roomy.retry_tokens ELSE
                    least(60::float8, roomy.retry_now + (counted.amount - counted.retries) * roomy.budget)
                    - counted.retries
                END AS retry_tokens,
                roomy.ramp_started + CASE WHEN roomy.breaker = 'returning' THEN counted.amount ELSE 0 END AS ramp_started,
                CASE
                    WHEN roomy.breaker <> roomy.state THEN NULL
                    WHEN roomy.breaker = 'tripped' AND counted.amount > 0 THEN CAST(:fence AS uuid)
                    ELSE roomy.probe_claim
                END AS probe_claim,
                CASE
                    WHEN roomy.breaker <> roomy.state THEN NULL
                    WHEN roomy.breaker = 'tripped' AND counted.amount > 0 THEN roomy.now + roomy.probe
                    ELSE roomy.probe_at
                END AS probe_at
            FROM roomy JOIN counted ON counted.name = roomy.name
        ) AS taken
    ) AS after
    WHERE g.ledger = after.ledger AND g.name = after.name
"""
"""What a claim leaves in the rows of its gates: see `core.gates.claimed` and `rested`."""

_SETTLED = """
    UPDATE redrive_gate AS g SET
        version = g.version + 1,
        held = greatest(0, after.held - after.claims),
        opens_at = greatest(after.opens_at, after.now + after.asked),
        refused = CASE WHEN after.good > 0 THEN 0 ELSE g.refused + after.refusals END,
        state = CASE after.turn WHEN 'returned' THEN 'returning' WHEN 'trips' THEN 'tripped' ELSE after.breaker END,
        since = CASE WHEN after.turn IN ('returned', 'trips') OR after.aged THEN after.now ELSE after.since END,
        trips = CASE WHEN after.aged THEN 0 ELSE after.trips END + CASE WHEN after.turn = 'trips' THEN 1 ELSE 0 END,
        probes = CASE after.turn WHEN 'again' THEN g.probes + 1 WHEN 'trips' THEN 0 ELSE g.probes END,
        probe_claim = CASE WHEN after.turn IS NULL AND NOT after.aged THEN after.probe_claim END,
        probe_at = CASE
            WHEN after.turn IN ('again', 'trips') THEN after.now + after.probe
            WHEN after.turn IS NULL AND NOT after.aged THEN after.probe_at
        END,
        ramp_at = CASE WHEN after.turn = 'returned' THEN after.now ELSE after.ramp_at END,
        ramp_started = CASE WHEN after.turn = 'returned' THEN 0 ELSE after.ramp_started END,
        window_at = CASE WHEN after.turn = 'returned' THEN after.now ELSE after.window_at END,
        tries = CASE WHEN after.turn = 'returned' THEN 0 ELSE after.tries END,
        fails = CASE WHEN after.turn = 'returned' THEN 0 ELSE after.fails END,
        tries_before = CASE WHEN after.turn = 'returned' THEN 0 ELSE after.tries_before END,
        fails_before = CASE WHEN after.turn = 'returned' THEN 0 ELSE after.fails_before END,
        ready = CASE
            WHEN after.turn = 'returned' THEN true
            WHEN after.turn IN ('again', 'trips') THEN false
            ELSE after.ready OR coalesce(after.waits_for = 'slot', false)
        END,
        waits_for = CASE
            WHEN after.turn = 'returned' THEN NULL
            WHEN after.turn IN ('again', 'trips') THEN 'probe'
            WHEN after.waits_for <> 'slot' THEN after.waits_for
        END,
        wake_at = CASE
            WHEN after.turn = 'returned' THEN NULL
            WHEN after.turn IN ('again', 'trips') THEN after.now + after.probe
            WHEN after.waits_for IN ('due', 'budget') THEN least(after.wake_at, after.now + after.soonest)
            WHEN after.waits_for <> 'slot' THEN after.wake_at
        END
    FROM (
        SELECT counted.*, CASE
            WHEN counted.breaker = 'tripped' THEN CASE counted.probed WHEN true THEN 'returned' WHEN false THEN 'again' END
            WHEN counted.bad > 0 AND counted.failures IS NOT NULL AND (
                (counted.breaker = 'returning' AND counted.all_tries >= 2 AND counted.all_fails * 2 > counted.all_tries)
                OR (counted.share IS NULL AND counted.all_fails >= counted.failures)
                OR (
                    counted.share IS NOT NULL AND counted.all_tries >= counted.failures
                    AND counted.all_fails >= counted.share * counted.all_tries
                )
            ) THEN 'trips'
        END AS turn
        FROM (
            SELECT windowed.*,
                windowed.tries + windowed.tries_before * kept.share AS all_tries,
                windowed.fails + windowed.fails_before * kept.share AS all_fails
            FROM (
                SELECT ruled.ledger, ruled.name, ruled.now, ruled.held, ruled.state, ruled.breaker, ruled.since, ruled.trips,
                    ruled.probe, ruled.probe_at, ruled.probe_claim, ruled.ramp_at, ruled.ramp_started, ruled.opens_at,
                    ruled.ready, ruled.waits_for, ruled.wake_at, ruled.failures, ruled.share, ruled.span,
                    ruled.breaker <> ruled.state AS aged,
                    sums.claims, sums.good, sums.bad, sums.refusals, sums.asked, sums.soonest, sums.probed,
                    CASE WHEN old.age < ruled.span THEN ruled.tries ELSE 0 END + sums.good + sums.bad AS tries,
                    CASE WHEN old.age < ruled.span THEN ruled.fails ELSE 0 END + sums.bad AS fails,
                    CASE
                        WHEN old.age < ruled.span THEN ruled.tries_before
                        WHEN old.age < 2 * ruled.span THEN ruled.tries ELSE 0
                    END AS tries_before,
                    CASE
                        WHEN old.age < ruled.span THEN ruled.fails_before
                        WHEN old.age < 2 * ruled.span THEN ruled.fails ELSE 0
                    END AS fails_before,
                    CASE
                        WHEN old.age < ruled.span THEN ruled.window_at
                        WHEN old.age < 2 * ruled.span THEN ruled.window_at + ruled.span ELSE ruled.now
                    END AS window_at
                FROM ruled
                CROSS JOIN LATERAL (SELECT greatest(interval '0', ruled.now - ruled.window_at) AS age) AS old
                CROSS JOIN LATERAL (
                    SELECT count(*)::integer AS claims,
                        (count(*) FILTER (WHERE one.answer = 'good'))::integer AS good,
                        (count(*) FILTER (WHERE one.answer = 'bad'))::integer AS bad,
                        (count(*) FILTER (WHERE one.answer = 'refused'))::integer AS refusals,
                        max(one.asked) AS asked, min(one.delay) AS soonest,
                        bool_and(one.answer = 'good') FILTER (WHERE one.fence = ruled.probe_claim) AS probed
                    FROM ended AS one WHERE one.gate = ruled.name
                ) AS sums
            ) AS windowed
            CROSS JOIN LATERAL (
                SELECT greatest(0, 1 - greatest(0, extract(epoch FROM windowed.now - windowed.window_at)::float8)
                    / extract(epoch FROM windowed.span)::float8) AS share
            ) AS kept
        ) AS counted
    ) AS after
    WHERE g.ledger = after.ledger AND g.name = after.name
"""
"""What a batch of settlements leaves in the rows of its gates: see `core.gates.settled`."""

_NEWEST = """
    SELECT * FROM redrive_gate
    WHERE ledger = :ledger AND name = ANY (ARRAY (SELECT DISTINCT gate FROM ended))
    ORDER BY name FOR UPDATE
"""
"""The gates of a batch, in the order of their names, so that two batches never wait for each other in a circle."""

_BOUND = (
    bindparam("ledger", type_=Text),
    bindparam("last", type_=Text),
    bindparam("limit", type_=Integer),
    bindparam("busy", type_=ARRAY(Text)),
    bindparam("kinds", type_=ARRAY(Text)),
    bindparam("fence", type_=Uuid),
)


def _part(sql: str, called: str, /, **columns: Any) -> CTE:
    """A part of a statement that is written as text. It may name those before it."""
    bound = [one for one in _BOUND if f":{one.key}" in sql]
    return text(sql).bindparams(*bound).columns(**columns).cte(called)


_KEEP_PLANS = Compiled(
    select(func.set_config(literal_column("'plan_cache_mode'"), literal_column("'force_generic_plan'"), true()))
)
"""PostgreSQL takes a plan for just these parameters for a little cheaper, so it made one for each claim: 5.5 ms of its processor time, where
the claim itself takes 0.6."""


class PostgresGateClaim:
    """See `GateClaim`."""

    def __init__(self, dialect: Dialect, rows: GateRows) -> None:
        self._dialect = dialect
        self._rows = rows
        self._statement = Compiled(self._build())
        self._overlooked = overlooked(dialect, rows)
        self._missed = missed(dialect, rows)

    def ask(self, connection: Connection, ask: GateAsk) -> tuple[Compiled, Parameters]:
        """See `GateClaim.ask`: one statement, run by who asks, in this transaction."""
        _KEEP_PLANS.rows(connection, {})
        asked = {name: getattr(ask, name) for name in ("ledger", "limit", "fence", "last", "favoured")}
        kinds = None if ask.kinds is None else list(ask.kinds)
        return self._statement, ask.times | asked | {"kinds": kinds, "busy": list(ask.busy)}

    def discover(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover`: a loose scan over the gates and kinds of the index, one probe for each."""
        return found_gates(connection, self._overlooked, ledger, times)

    def discover_lately(self, connection: Connection, ledger: str, times: Parameters) -> list[NamedGate]:
        """See `GateClaim.discover_lately`."""
        return found_gates(connection, self._missed, ledger, times)

    def _build(self) -> Any:
        rows, limit = self._rows, bindparam("limit", type_=Integer)
        present = select(self._dialect.now().label("now")).cte("present")
        locked = _part(_LOCKED, "locked")
        ruled = _part(_RULED.format(rows="locked"), "ruled")
        roomy = _part(
            _ROOMY, "roomy", name=Text(), tenant=Text(), kinds=ARRAY(Text), room=Integer(), retry_room=Integer(),
            turn_at=Instant(), state=Text(), breaker=Text(), trips=Integer(), refused=Integer(),
        )  # fmt: skip
        roomies: Any = select(func.greatest(func.count(), 1)).select_from(roomy).where(roomy.c.room > 0)
        share = select(
            func.greatest(literal_column("1"), limit // cast(roomies.scalar_subquery(), Integer)).label("amount")
        ).cte("share")
        turns = None if rows.turn is None else self._turns(roomy, share)
        ranked = self._ranked(roomy, share, turns)
        due = select(ranked.c.id).where(ranked.c.nth <= ranked.c.room)
        wanted = due.order_by(ranked.c.nth, ranked.c.turn_at, ranked.c.name).limit(limit)
        found = select(rows.id.label("id")).where(rows.id == any_(func.array(wanted.scalar_subquery())), rows.waiting)
        picked = found.with_for_update(skip_locked=True, of=rows.id.table).cte("picked")
        taken = rows.hold(self._dialect.among(rows.id, select(picked))).cte("taken")
        counted = self._counted(roomy, ranked, picked)
        gates = _part(_CLAIMED, "gates")
        shared = [] if turns is None else [turns]
        parts = (present, locked, ruled, roomy, share, *shared, ranked, picked, counted, gates)
        seen = (
            (roomy.c.breaker == quoted(BreakerState.TRIPPED)).label("seen_probe"),
            case((roomy.c.breaker != roomy.c.state, literal_column("0")), else_=roomy.c.trips).label("seen_trips"),
            roomy.c.refused.label("seen_refused"),
        )
        mine = roomy.c.name == as_text(taken.c[rows.gate_column.key or ""])
        return select(*taken.c, *seen).select_from(taken.join(roomy, mine)).add_cte(*parts)

    def _heads(self, of: FromClause, kinds: ColumnElement[Any] | None) -> tuple[list[FromClause], Select[Any]]:
        """The waiting rows of a gate, kind and band, and the tables of kinds and bands."""
        return heads_of_kinds(self._rows, of.c.name, kinds)

    def _turns(self, roomy: CTE, share: CTE) -> CTE:
        """The tenants with something due behind gates that they share, from behind the one that was served last, once around.

        A loose scan whose step asks for due rows: one that asks for the next tenant alone would pay for those that have nothing due.
        """
        rows, last = self._rows, bindparam("last", type_=Text)
        assert rows.turn is not None
        first = select(
            roomy.c.name, literal_column("0", Integer).label("nth"), last.label("tenant"),
            literal_column("false", Boolean).label("around"),
        )  # fmt: skip
        turns = first.where(roomy.c.room > 0, roomy.c.tenant == quoted(TENANTS)).cte("turns", recursive=True)
        of_gate = [
            rows.gate == turns.c.name, rows.waiting, rows.due <= self._dialect.present(rows.due_column),
            rows.turn != all_(bindparam("busy", type_=ARRAY(Text))),
        ]  # fmt: skip
        if rows.kind is not None:
            of_gate.append(rows.kind == any_(bindparam("kinds", type_=ARRAY(Text))))
        onward = and_(rows.turn > turns.c.tenant, or_(~turns.c.around, rows.turn <= last))
        begun_anew = and_(~turns.c.around, rows.turn <= last)
        ways = [
            select(
                select(rows.turn.label("tenant"), around.label("around"))
                .where(*of_gate, way).order_by(rows.turn).limit(1).correlate(turns).subquery(f"way_{nth}")
            )
            for nth, (way, around) in enumerate(((onward, turns.c.around), (begun_anew, true())))
        ]  # fmt: skip
        both = union_all(*ways).subquery("both")
        following = select(both).order_by(both.c.around).limit(1).correlate(turns).lateral("following")
        more = select(turns.c.name, turns.c.nth + 1, following.c.tenant, following.c.around)
        most = select(share.c.amount).scalar_subquery()
        return turns.union_all(more.select_from(turns.join(following, true())).where(turns.c.nth < most))

    def _found(self, roomy: CTE, amount: Any, turns: CTE | None = None) -> Select[Any]:
        """What is due of gates, up to so much of each kind and band; with `turns` of each tenant of those that they share."""
        rows = self._rows
        sources, head = self._heads(roomy, bindparam("kinds", type_=ARRAY(Text)))
        head = head.where(rows.due <= self._dialect.present(rows.due_column))
        joined: Any = roomy
        if turns is not None:
            assert rows.turn is not None
            head = head.where(rows.turn == turns.c.tenant)
            joined = joined.join(turns, and_(turns.c.name == roomy.c.name, turns.c.nth > 0))
        for source in sources:
            joined = joined.join(source, true())
        near = [roomy, *sources] if turns is None else [roomy, turns, *sources]
        due = head.correlate(*near).limit(amount).lateral("due_rows")
        turn = literal_column("0", Integer) if turns is None else turns.c.nth
        found = select(
            due.c.id, due.c.band, due.c.due, turn.label("turn"),
            roomy.c.name, roomy.c.room, roomy.c.retry_room, roomy.c.turn_at,
        )  # fmt: skip
        where = [] if rows.turn is None else [(roomy.c.tenant == quoted(TENANTS)) == (turns is not None)]
        return found.select_from(joined.join(due, true())).where(roomy.c.room > 0, *where)

    def _ranked(self, roomy: CTE, share: CTE, turns: CTE | None) -> CTE:
        """What is due of each gate, numbered in the order in which it goes: see `core.gates.in_order`."""
        ways = [self._found(roomy, select(share.c.amount).scalar_subquery())]
        if turns is not None:
            most = select(func.greatest(func.max(turns.c.nth), 1)).scalar_subquery()
            each = select(func.greatest(share.c.amount // most, 1)).scalar_subquery()
            ways.append(self._found(roomy, each, turns))
        due = union_all(*ways).subquery("due_rows") if len(ways) > 1 else ways[0].subquery("due_rows")
        kin = func.row_number().over(
            partition_by=[due.c.name, due.c.band % literal_column("2")], order_by=[due.c.band, due.c.due, due.c.id]
        )
        place = func.row_number().over(
            partition_by=[due.c.name, due.c.turn, due.c.band], order_by=[due.c.due, due.c.id]
        )
        found = select(due, kin.label("kin"), place.label("place")).subquery("found")
        c = found.c
        percent = case({band: literal_column(str(SURE_PERCENT[band])) for band in range(BANDS)}, value=c.band)
        favoured = and_(c.band == bindparam("favoured", type_=Integer), c.place == 1)
        in_turn = func.row_number().over(
            partition_by=[c.name, c.turn],
            order_by=[favoured.desc(), (c.place <= c.room * percent // literal_column("100")).desc(), c.band, c.place],
        )
        mine = (
            select(c.id, c.band, c.name, c.room, c.turn_at, c.turn, in_turn.label("in_turn"))
            .where(or_(c.band % literal_column("2") == literal_column("1"), c.kin <= c.retry_room))
            .subquery("mine")
        )
        if turns is None:
            nth: Any = mine.c.in_turn
        else:
            nth = func.row_number().over(partition_by=mine.c.name, order_by=[mine.c.in_turn, mine.c.turn])
        c = mine.c
        return select(c.id, c.band, c.name, c.room, c.turn_at, nth.label("nth")).cte("ranked")

    def _counted(self, roomy: CTE, ranked: CTE, picked: CTE) -> CTE:
        """How much of each gate was taken; where there was room and nothing was found (`core.gates.may_rest`), when its next row is due."""
        sources, head = self._heads(roomy, roomy.c.kinds)
        first = head.correlate(roomy, *sources).limit(1).lateral("first_rows")
        joined: Any = sources[0]
        for source in [*sources[1:], first]:
            joined = joined.join(source, true())
        soonest = select(func.min(first.c.due)).select_from(joined).correlate(roomy).scalar_subquery()
        again = ranked.c.band % literal_column("2") == literal_column("0")
        mine = select(func.count().label("amount"), func.count().filter(again).label("retries")).select_from(
            ranked.join(picked, picked.c.id == ranked.c.id)
        )
        counts = mine.where(ranked.c.name == roomy.c.name).correlate(roomy).lateral("counts")
        amount = cast(counts.c.amount, Integer)
        may_rest = and_(roomy.c.room > 0, amount == 0)
        return (
            select(
                roomy.c.name, amount.label("amount"), cast(counts.c.retries, Integer).label("retries"),
                may_rest.label("may_rest"), case((may_rest, cast(soonest, Instant))).label("soonest"),
            )
            .select_from(roomy.join(counts, true()))
            .cte("counted")
        )  # fmt: skip


def settle_gates(dialect: Dialect, settled: CTE) -> tuple[CTE, ...]:
    """What a batch of settlements has to write besides where some of them have gates, as parts of its statement."""
    c = settled.c
    ended = (
        select(c.gate, c.made_under.label("fence"), c.answer, c.asked, c.delay).where(c.gate.is_not(None)).cte("ended")
    )
    present = select(dialect.now().label("now")).cte("present")
    newest = _part(_NEWEST, "newest")
    ruled = _part(_RULED.format(rows="newest"), "ruled")
    return ended, present, newest, ruled, _part(_SETTLED, "gates")


GATE_COLUMNS: dict[str, TypeEngine[Any]] = {
    "gate": Text(),
    "made_under": Uuid(),
    "answer": Text(),
    "asked": Interval(),
}
"""What comes with a settlement besides where it may have a gate."""
