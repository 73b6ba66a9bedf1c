"""One line of a chain that was changed or removed is found and named."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import UsageError
from redrive.operator.chain import AUDITED, PRUNED, AuditLine, ChainHead, ChainVerdict, Check, Linked, link, read_head

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
TEXT = st.text(max_size=8)
LINES = st.lists(
    st.builds(
        AuditLine, id=st.integers(1, 99), ledger=TEXT, act=TEXT, actor=TEXT, origin=TEXT, reason=TEXT,
        at=st.datetimes(timezones=st.just(UTC)), amount=st.integers(0, 9), things=TEXT, asked=st.none() | TEXT,
        whole=st.none() | TEXT, leads=st.booleans(), folded=st.booleans(),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def line(number: int, **told: Any) -> AuditLine:
    """Any line."""
    plain = AuditLine(
        id=number, ledger="redrive_task", act="redrive", actor="ada", origin="", reason="mended", at=AT, amount=1,
        things='["7"]', asked=None, whole=None, leads=True, folded=False,
    )  # fmt: skip
    return replace(plain, **told)


def verify(chain: list[Linked], kept: object = None) -> ChainVerdict:
    """What is found in it."""
    check = Check(None if kept is None else str(kept))
    for one in chain:
        check.take(one)
    return check.verdict()


@given(lines=LINES, cut=st.integers(0, 6))
def test_what_was_not_touched_is_whole(lines: list[AuditLine], cut: int):
    """However it was linked, in one go or in two, and by whichever head of it that was kept."""
    chain = link(ChainHead(), lines[:cut])
    chain += link(chain[-1].place if chain else ChainHead(), lines[cut:])
    assert chain == link(ChainHead(), lines)
    for kept in (None, ChainHead(), *(one.place for one in chain), chain[-1].place.hash):
        found = verify(chain, kept)
        assert (found.is_whole, found.lines, found.head) == (True, len(lines), chain[-1].place)


def changed(value: Any) -> Any:
    """Another value of the same sort."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case datetime():
            return value + timedelta(microseconds=1) if value.year < 9999 else value - timedelta(microseconds=1)
        case None:
            return ""
    return value + "x"


@given(lines=LINES, data=st.data())
def test_one_changed_line_is_found_and_named(lines: list[AuditLine], data: st.DataObject):
    """Whatever of it was changed; also if its hash was made anew, where another follows."""
    chain = link(ChainHead(), lines)
    at = data.draw(st.integers(0, len(chain) - 1))
    field = data.draw(st.sampled_from(AuditLine.__slots__))
    forged = replace(chain[at].line, **{field: changed(getattr(chain[at].line, field))})
    [finding] = verify([*chain[:at], replace(chain[at], line=forged), *chain[at + 1 :]]).findings
    assert finding.number == at + 1
    assert finding.sentence.startswith(f"line {at + 1} (")
    assert finding.sentence.endswith("was changed")
    before = chain[at - 1].place if at else ChainHead()
    again = [*chain[:at], *link(before, [forged]), *chain[at + 1 :]]
    found = verify(again, chain[-1].place)
    assert [one.number for one in found.findings] == [at + 2 if at + 1 < len(chain) else at + 1]


@given(lines=LINES, data=st.data())
def test_lines_that_were_removed_are_found_and_named(lines: list[AuditLine], data: st.DataObject):
    """At the beginning and in between always, at the end by a head that was kept elsewhere."""
    chain = link(ChainHead(), lines)
    first = data.draw(st.integers(0, len(chain) - 1))
    last = data.draw(st.integers(first, len(chain) - 1))
    left = [*chain[:first], *chain[last + 1 :]]
    found = verify(left, chain[-1].place)
    assert [one.number for one in found.findings][:1] == [first + 1] or first == 0 or last == len(chain) - 1
    assert not found.is_whole
    gone = f"line {first + 1} is" if first == last else f"lines {first + 1} to {last + 1} are"
    assert found.findings[0].sentence.startswith(f"{gone} missing")
    if last == len(chain) - 1:
        assert verify(left).is_whole
        assert "missing" not in verify(left, chain[-1].place.hash).findings[0].sentence


@given(lines=LINES, data=st.data())
def test_two_lines_that_changed_places_are_found(lines: list[AuditLine], data: st.DataObject):
    """With their hashes or without."""
    chain = link(ChainHead(), [replace(one, id=number) for number, one in enumerate([*lines, *lines])])
    one = data.draw(st.integers(0, len(chain) - 2))
    other = data.draw(st.integers(one + 1, len(chain) - 1))
    chain[one], chain[other] = replace(chain[one], line=chain[other].line), replace(chain[other], line=chain[one].line)
    assert [finding.number for finding in verify(chain).findings] == [one + 1, other + 1]


def test_a_chain_goes_on_behind_what_was_pruned():
    """A line in the chain says where it begins now; without it what is missing there is found, and a forged one does not help."""
    chain = link(ChainHead(), [line(number) for number in range(1, 6)])
    place = chain[2].place
    told = line(6, ledger=AUDITED, act=PRUNED, things=f'["{place}"]')
    pruned = [*chain, *link(chain[-1].place, [told])][3:]
    found = verify(pruned, chain[4].place)
    assert (found.is_whole, found.lines, found.begins) == (True, 3, place)
    assert verify(pruned, place).is_whole
    [older] = verify(pruned, chain[0].place).findings
    assert older.sentence == "line 1 of the head that you kept was pruned with those before it: keep a newer head"
    [missing] = verify(pruned[:-1]).findings
    assert missing.sentence.startswith("lines 1 to 3 are missing at the beginning")
    other = line(6, ledger=AUDITED, act=PRUNED, things=f'["3:{"0" * 64}"]')
    assert not verify([*pruned[:-1], *link(chain[-1].place, [other])]).is_whole
    assert not verify([*pruned[:-1], replace(pruned[-1], line=replace(told, actor="eve"))]).is_whole


def test_what_is_pruned_while_it_is_read_is_no_alarm():
    """The reader had the first page, the others went, and the line that says so comes at the end."""
    chain = link(ChainHead(), [line(number) for number in range(1, 6)])
    told = line(6, ledger=AUDITED, act=PRUNED, things=f'["{chain[3].place}"]')
    read = [chain[0], chain[4], *link(chain[-1].place, [told])]
    assert verify(read).is_whole


def test_so_many_findings_are_named_and_the_others_counted():
    """A table that somebody has rewritten fills no terminal."""
    chain = [replace(one, line=replace(one.line, actor="eve")) for one in link(ChainHead(), map(line, range(250)))]
    found = verify(chain)
    assert (len(found.findings), found.more) == (100, 150)


@pytest.mark.parametrize("text", ["", "x", "12:", "-1:" + "0" * 64, "0" * 63, "G" * 64, "1:2:" + "0" * 64])
def test_what_is_no_head_is_refused(text: str):
    """With a sentence that shows one."""
    with pytest.raises(UsageError, match="redrive audit head"):
        read_head(text)
