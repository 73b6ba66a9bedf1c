"""What the columns and words of a table mean: no database, only the mapping."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table

from redrive.core.decide import decide
from redrive.core.outcome import Done, Failed, Released
from redrive.core.policy import Policy
from redrive.core.states import State
from redrive.core.table import ROLES, TASKS, Counts, LedgerTable, Words
from redrive.core.task import Claim, Task
from redrive.errors import UsageError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FULL = Words(
    waiting="new",
    retrying="again",
    claimed="taken",
    done="sent",
    dead="lost",
    cancelled="taken back",
    refused="refused",
)
SHARED = Words(waiting="pending", retrying="failed", done="applied", dead="failed")


def claim_of(failures: int) -> Claim:
    """A claim of a task that has failed so often."""
    task = Task(id=1, key="k", kind="k", payload=None, state=State.CLAIMED, failures=failures, created_at=NOW)
    return Claim(task=task, claim_id=UUID(int=1), claimed_at=NOW).alone()


@pytest.mark.parametrize(
    ("words", "state", "failures", "word"),
    [
        (FULL, State.WAITING, 0, "new"),
        (FULL, State.WAITING, 1, "again"),
        (FULL, State.CLAIMED, 1, "taken"),
        (FULL, State.DONE, 1, "sent"),
        (FULL, State.DEAD, 1, "lost"),
        (FULL, State.CANCELLED, 1, "taken back"),
        (Words(), State.WAITING, 1, "waiting"),
        (Words(), State.DONE, 0, "done"),
        (Words(), State.DEAD, 0, "dead"),
    ],
)
def test_each_state_has_its_word(words, state, failures, word):
    """A waiting task that has failed is written with the word for it, if the table has one; without failures it has none."""
    assert words.word(state, failures=failures) == word
    if failures == 0:
        assert words.word(state) == words.settled(state) == word


def test_a_settlement_writes_refused_and_a_person_cancelled():
    """Where a table tells them apart; else both are cancelled."""
    assert FULL.settled(State.CANCELLED) == "refused"
    assert FULL.settled(State.WAITING, failures=2) == "again"
    assert Words(cancelled="off").settled(State.CANCELLED) == "off"


@pytest.mark.parametrize("state", [State.CLAIMED, State.CANCELLED])
def test_a_state_without_a_word_says_how_to_name_one(state):
    """It cannot be written, and `has` says so before."""
    assert not Words().has(state) and FULL.has(state)
    with pytest.raises(UsageError) as refused:
        Words().word(state)
    assert str(refused.value) == f"this table has no word for {state}: name one in Words({state}=…)"


@pytest.mark.parametrize(
    ("words", "word", "has_due", "leased", "state"),
    [
        (FULL, "new", False, False, State.WAITING),
        (FULL, "again", False, False, State.WAITING),
        (FULL, "taken", False, False, State.CLAIMED),
        (FULL, "new", True, True, State.CLAIMED),
        (FULL, "sent", True, False, State.DONE),
        (FULL, "lost", True, False, State.DEAD),
        (FULL, "taken back", False, False, State.CANCELLED),
        (FULL, "refused", False, False, State.CANCELLED),
        (SHARED, "failed", True, False, State.WAITING),
        (SHARED, "failed", False, False, State.DEAD),
        (SHARED, "applied", False, False, State.DONE),
    ],
)
def test_a_row_is_read_by_its_word_its_due_time_and_its_lease(words, word, has_due, leased, state):
    """A lease says claimed, whatever the word; where retrying and dead share a word, the due time tells them apart."""
    assert words.state(word, has_due=has_due, leased=leased) is state


def test_a_strange_word_is_answered_with_those_that_are_known():
    """Each is named once, in the order of a task's life."""
    assert SHARED.all() == ("pending", "failed", "applied")
    with pytest.raises(UsageError) as refused:
        FULL.state("odd", has_due=False, leased=False)
    assert str(refused.value) == (
        "unknown status word 'odd': this table knows new, again, taken, sent, lost, taken back, refused"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"done": "dead"},
            "waiting, claimed, done, dead and cancelled need words of their own, not ['waiting', 'dead', 'dead']",
        ),
        (
            {"claimed": "waiting", "cancelled": "off", "refused": "no"},
            "waiting, claimed, done, dead and cancelled need words of their own, not "
            "['waiting', 'done', 'dead', 'waiting', 'off', 'no']",
        ),
        ({"retrying": "done"}, "retrying may share its word with waiting or dead only, not 'done'"),
        ({"retrying": "x", "claimed": "x"}, "retrying may share its word with waiting or dead only, not 'x'"),
        ({"retrying": "x", "cancelled": "x"}, "retrying may share its word with waiting or dead only, not 'x'"),
        ({"retrying": "x", "refused": "x"}, "retrying may share its word with waiting or dead only, not 'x'"),
    ],
)
def test_words_that_cannot_be_told_apart_are_refused(words, sentence):
    """The error names the words."""
    with pytest.raises(UsageError) as refused:
        Words(**words)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("shared", ["waiting", "dead", None])
def test_retrying_may_share_its_word(shared):
    """With waiting or with dead; `shared` is for the latter only."""
    assert Words(retrying=shared).shared is (shared == "dead")


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("", {}, "name the table without its schema, which has a parameter of its own, not ''"),
        ("a.b", {}, "name the table without its schema, which has a parameter of its own, not 'a.b'"),
        ("t", {"counts": "lives"}, "counts must be failures, retries, attempts or done, not 'lives'"),
        (
            "t",
            {"due": "x", "claim_id": "y", "count": "x", "done_at": "y"},
            "table 't': x, y cannot stand for two things",
        ),
    ],
)
def test_tables_that_cannot_be_are_refused(name, given, sentence):
    """The error says what is wrong with the mapping."""
    with pytest.raises(UsageError) as refused:
        LedgerTable(name, **given)
    assert str(refused.value) == sentence


def test_the_columns_of_a_table_by_what_they_stand_for():
    """Rows are updated by the key unless another column is named; columns that are not there are left out."""
    plain = LedgerTable("t", counts="retries")
    assert plain.counts is Counts.RETRIES
    assert (plain.id_column, LedgerTable("t", id="row").id_column, LedgerTable("t", key="code").id_column) == (
        "id", "row", "code",
    )  # fmt: skip
    assert plain.columns() == {
        "key": "id", "id": "id", "status": "status", "due": "due_at", "count": "failures", "lease_until": "lease_until",
        "claim_id": "claim_id",
    }  # fmt: skip
    assert LedgerTable("t", key="id", payload="id").payload == "id"  # the key may be shown as anything
    assert set(ROLES) == set(TASKS.columns()) | {"first_due", "done_at"}


@pytest.mark.parametrize(
    ("given", "role"), [({}, None), ({"tenant": "t"}, "tenant"), ({"gate": "g", "tenant": "t"}, "gate")]
)
def test_a_tenant_is_its_own_gate_where_no_column_names_one(given, role):
    """A column for gates goes before."""
    assert LedgerTable("x", **given).gated_by == role


@pytest.mark.parametrize(
    ("counts", "claimed", "waiting", "maximum", "stored"),
    [("failures", 3, 3, 5, 5), ("retries", 3, 3, 6, 4), ("attempts", 2, 3, 5, 5), ("done", 3, 3, None, 5)],
)
def test_a_stored_count_stands_for_failures(counts, claimed, waiting, maximum, stored):
    """The count of a row, claimed or not, its own maximum, and what is stored for one: as each way of counting has it."""
    table = LedgerTable("t", counts=counts)
    assert table.failures(3, claimed=True) == claimed
    assert table.failures(3, claimed=False) == waiting
    assert table.failures(0, claimed=True) == 0
    assert table.failures_max(5) == maximum
    assert table.count_max_to_store(5) == stored
    assert table.failures_max(None) is None and table.count_max_to_store(None) is None


@pytest.mark.parametrize(
    ("counts", "outcome", "before", "left"),
    [
        ("failures", Failed(OSError()), 1, 2),
        ("failures", Done(), 1, 1),
        ("retries", Failed(OSError()), 1, 2),
        ("retries", Failed(OSError()), 2, 2),  # the last of three tries: no retry was planned for it
        ("retries", Done(), 2, 2),
        ("attempts", Failed(OSError()), 1, 2),
        ("attempts", Failed(OSError()), 2, 3),  # dead: the try itself counts
        ("attempts", Done(), 1, 2),
        ("attempts", Released(), 1, 1),
        ("done", Done(), 1, 2),
        ("done", Failed(OSError()), 1, 1),
    ],
)
def test_a_settlement_leaves_a_count(counts, outcome, before, left):
    """Each way of counting, for a task that may be tried three times."""
    settlement = decide(claim_of(before), outcome, Policy(attempts=3))
    assert LedgerTable("t", counts=counts).count_to_store(settlement) == left


def test_a_model_is_asked_for_roles_only():
    """A word that is no role is refused with those that are."""
    model = Table("t", MetaData(), Column("id", Integer, primary_key=True), Column("status", String(20)))
    with pytest.raises(UsageError) as refused:
        LedgerTable.of(model, zeal="a", ardour="b")
    assert str(refused.value) == (f"a ledger table has no ardour, zeal: it has {', '.join(ROLES)}, words and counts")
