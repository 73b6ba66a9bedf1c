"""A mapping read from a model says what the model says, and asks for the rest."""

import enum
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Enum,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import UserDefinedType

from redrive import LedgerTable, Redrive, Words
from redrive.core.column_names import first_of
from redrive.core.models import read_model
from redrive.errors import UsageError
from redrive.testing import drain, temporary_url


class Base(DeclarativeBase):
    """The models of this page."""

    type_annotation_map = {datetime: DateTime(timezone=True)}


class Status(enum.Enum):
    """Stored by name, as SQLAlchemy does."""

    PENDING = "p"
    SENT = "s"
    FAILED = "f"


class Email(Base):
    """An ordinary model, with the two columns that a ledger needs beside its own."""

    __tablename__ = "email"

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[str] = mapped_column(unique=True)
    recipient: Mapped[str]
    status: Mapped[Status] = mapped_column(default=Status.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    next_try: Mapped[datetime | None] = mapped_column("next_attempt_at")
    last_error: Mapped[str | None]
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    sent_at: Mapped[datetime | None]
    error: Mapped[int | None]
    lease_until: Mapped[datetime | None]
    claim_id: Mapped[UUID | None]


EMAIL = LedgerTable(
    "email",
    id="id",
    key="message_id",
    payload="data",
    due="next_attempt_at",
    count="attempts",
    last_error="last_error",
    done_at="sent_at",
    words=Words(waiting="PENDING", done="SENT", dead="FAILED"),
)


def test_names_types_and_words_come_from_a_mapped_class() -> None:
    """Columns by name where the type fits, the unique key, the JSON payload, the words of an enum as they are stored."""
    assert LedgerTable.of(Email) == EMAIL
    assert LedgerTable.of(Email.__table__) == EMAIL


def test_what_is_given_goes_first() -> None:
    """A column by its name, its attribute's name or the attribute itself; None for one that is not to be used."""
    given = LedgerTable.of(Email, due="next_try", key=Email.id, done_at=None, payload=None, counts="attempts")
    assert (given.due, given.key, given.id, given.done_at, given.payload) == ("next_attempt_at", "id", None, None, None)
    assert given.counts == "attempts"


def test_a_schema_is_kept() -> None:
    """A table that names its schema is found there."""
    there = Email.__table__.to_metadata(MetaData(), schema="shop")  # type: ignore[attr-defined]
    assert LedgerTable.of(there) == replace(EMAIL, schema="shop")


def table(*columns: Any, name: str = "job") -> Table:
    """A table with an id and some columns."""
    return Table(name, MetaData(), Column("id", Integer, primary_key=True), *columns)


def test_the_default_of_the_status_is_the_word_for_waiting() -> None:
    """A row is made waiting, so the model has said that word; the others are asked for."""
    job = table(Column("status", String, default="fresh"), Column("retries", Integer), Column("due_at", DateTime))
    with pytest.raises(
        UsageError, match=r"which word of 'status' means done and dead: .*Words\(waiting='fresh', done='…'"
    ):
        LedgerTable.of(job)
    words = Words(waiting="fresh", done="sent", dead="failed")
    assert LedgerTable.of(job, words=words) == LedgerTable(
        "job", key="id", due="due_at", count="retries", counts="retries", words=words
    )


def test_words_that_may_mean_it_are_shown() -> None:
    """An enum with a word that is not usual: the error names it."""
    job = table(Column("status", Enum("new", "sent", "kaput")), Column("tries", Integer), Column("run_at", DateTime))
    with pytest.raises(UsageError, match=r"means dead \('kaput' may mean it\)"):
        LedgerTable.of(job)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "no column that clearly says status: name it, as in LedgerTable.of(job, status='…')"),
        ({"status": String, "due_at": Integer}, "no column that clearly says when it is due"),
        (
            {"status": String, "due_at": DateTime, "attempts": JSON},
            "no column that clearly says how often it has failed",
        ),
    ],
)
def test_what_the_model_does_not_tell_is_asked_for(columns: dict[str, Any], said: str) -> None:
    """A column of another type means something else, whatever it is called."""
    with pytest.raises(UsageError) as refused:
        LedgerTable.of(table(*(Column(name, type_) for name, type_ in columns.items())))
    assert said in str(refused.value)


def test_a_primary_key_of_two_columns_is_refused_with_the_way_out() -> None:
    """Rows are updated by one column; a unique one may be named."""
    columns = [Column("status", Enum("new", "sent", "dead")), Column("tries", Integer), Column("run_at", DateTime)]
    two = Table(
        "two",
        MetaData(),
        Column("a", Integer, primary_key=True),
        Column("b", Integer, primary_key=True),
        Column("key", String),
        Column("serial", Integer),
        *columns,
        UniqueConstraint("serial"),
        Index("by_key", "key", unique=True),
    )
    with pytest.raises(UsageError, match=r"primary key of 2 columns.*id='redrive_id'"):
        LedgerTable.of(two)
    assert (LedgerTable.of(two, id="serial").id, LedgerTable.of(two, id="serial").key) == ("serial", "key")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"due": "nothing"}, "Email has no column 'nothing'"),
        ({"dew": "status"}, "a ledger table has no dew"),
        ({"due": 7}, "name a column by its name"),
    ],
)
def test_a_wrong_name_is_a_clear_error(given: dict[str, Any], said: str) -> None:
    """The sentence names what is there."""
    with pytest.raises(UsageError, match=said):
        LedgerTable.of(Email, **given)


@pytest.mark.parametrize("model", [7, str, object()])
def test_only_a_model_is_a_model(model: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(UsageError, match="a ledger is made of a mapped class"):
        LedgerTable.of(model)


async def test_rows_of_a_model_are_worked_off() -> None:
    """What `of` read is a ledger: a row that the user's own code inserts is tried, and its status says so."""
    url = temporary_url()
    app = Redrive(url)
    seen = []
    async with app:
        await app.database.write(lambda connection: Base.metadata.create_all(connection))
    app = Redrive(url)
    mail = app.adopt(LedgerTable.of(Email))

    @mail.handler
    async def send(task: Any) -> None:
        seen.append(task.payload)

    try:
        await app.open()
    except UsageError as error:  # the three indexes, which the message prints
        migration = error.migration  # type: ignore[attr-defined]
        async with Redrive(url) as other:
            for statement in migration:
                await other.database.write(lambda connection, sql=statement: connection.exec_driver_sql(sql))
    async with app:

        def insert(connection: Any) -> None:
            connection.execute(Email.__table__.insert(), {"message_id": "m-1", "recipient": "ada", "data": {"n": 1}})

        await app.database.write(insert)
        assert (await drain(app)).of("m-1") == ["done"]
        [task] = (await mail.find()).items
        assert (task.key, task.state, seen) == ("m-1", "done", [{"n": 1}])


class Field:
    """As much of a field of Django as is read."""

    def __init__(
        self, kind: str, name: str, *, column: str | None = None, default: Any = ..., choices: Any = None, **said: bool
    ):
        self.kind, self.name, self.column, self.default = kind, name, column or name, default
        self.primary_key, self.unique = said.get("primary", False), said.get("unique", False)
        if choices is not None:
            self.flatchoices = choices

    def get_internal_type(self) -> str:
        return self.kind

    def has_default(self) -> bool:
        return self.default is not ...


def django(*fields: Field) -> Any:
    """A model of Django."""
    meta = SimpleNamespace(
        db_table="shop_mail", concrete_fields=[Field("BigAutoField", "id", primary=True, unique=True), *fields]
    )
    return type("Mail", (), {"_meta": meta})


class Word(enum.Enum):
    """A choice that is an enum."""

    NEW = "n"


def test_a_model_of_django_says_the_same() -> None:
    """Columns by their names in the table, words by choices or an enum, the default of the status, what is unique."""
    fields = [
        Field(
            "CharField",
            "state",
            column="status",
            default=Word.NEW,
            choices=[(Word.NEW, "New"), ("s", "Sent"), ("f", "Failed")],
        ),
        Field("IntegerField", "attempts", default=0),
        Field("DateTimeField", "due_at", default=datetime.now),
        Field("UUIDField", "message_id", unique=True),
        Field("JSONField", "payload"),
        Field("GeometryField", "kind"),
    ]
    model = read_model(django(*fields))
    assert (model.called, model.name, model.schema) == ("Mail", "shop_mail", None)
    status, attempts, due, key, payload, odd = model.columns[1:]
    assert (status.name, status.attribute, status.type, status.default) == ("status", "state", str, "n")
    assert status.words == {"n": "New", "s": "Sent", "f": "Failed"}
    assert (attempts.type, attempts.default, attempts.words) == (int, "0", None)
    assert (due.type, due.default) == (datetime, None)
    assert (key.type, key.unique, key.primary) == (UUID, True, False)
    assert (payload.type, payload.default, odd.type) == (dict, None, None)
    assert (model.columns[0].primary, model.columns[0].type) == (True, int)
    assert LedgerTable.of(django(*fields)) == LedgerTable(
        "shop_mail",
        id="id",
        key="message_id",
        kind="kind",
        payload="payload",
        due="due_at",
        count="attempts",
        words=Words(waiting="n", done="s", dead="f"),
    )


def test_a_column_of_django_is_named_by_its_attribute() -> None:
    """Django keeps the field with the attribute of the class."""
    fields = [Field("CharField", "status", choices=[("new", "New"), ("sent", "Sent"), ("dead", "Dead")])]
    fields += [Field("IntegerField", "tries"), Field("DateTimeField", "when", column="due_when")]
    given = LedgerTable.of(django(*fields), due=SimpleNamespace(field=fields[2]))
    assert given.due == "due_when"


class Shape(UserDefinedType[Any]):
    """A type of which nobody knows what Python makes of it."""


class Letter(Base):
    """Defaults and keys in other forms."""

    __tablename__ = "letter"
    __table_args__ = (
        UniqueConstraint("event_id"),
        Index("by_two", "a", "b", unique=True),
        Index("by_uuid", "uuid", unique=True),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    event_id: Mapped[str]
    uuid: Mapped[str]
    a: Mapped[str]
    b: Mapped[str]
    status: Mapped[str] = mapped_column(Enum("p", "s", "f"), default=Status.PENDING)
    named: Mapped[Status] = mapped_column(default=Status.SENT)
    tries: Mapped[int] = mapped_column(default=0)


def test_what_is_unique_and_what_is_the_default_in_a_mapped_class() -> None:
    """A constraint or an index of one column makes it unique, one of two does not; the default of an enum is what is stored."""
    model = read_model(Letter)
    columns = {one.name: one for one in model.columns}
    assert {name for name, one in columns.items() if one.unique} == {"event_id", "uuid"}
    assert (columns["status"].default, columns["named"].default) == ("p", "SENT")
    assert (columns["tries"].default, columns["tries"].type) == (None, int)
    assert read_model(table(Column("shape", Shape()))).columns[1].type is None
    assert (columns["status"].type, columns["status"].words) == (str, {"p": "p", "s": "s", "f": "f"})


def test_a_default_that_is_a_word_already_is_no_second_one() -> None:
    """Nor does it take the place of a word that says waiting by itself."""
    words = Enum("pending", "sent", "dead", "draft")
    job = table(Column("status", words, default="draft"), Column("tries", Integer), Column("run_at", DateTime))
    assert LedgerTable.of(job).words == Words(waiting="pending", done="sent", dead="dead")


@pytest.mark.parametrize("spelled", ["dueAt", "due_at", "Due At", "DUE-AT", "due__at"])
def test_a_name_is_found_however_it_is_written(spelled: str) -> None:
    """In any case, with any sign between its words or with none."""
    assert first_of(("due_at",), [spelled, "other"]) == spelled
    assert first_of(("due_at",), ["due.at", "dueXXat"]) is None
