"""Where exceptions came from: the same for all that failed alike, safe to keep, and with the user's own lines told apart."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import stack as stacks
from redrive.core.stack import CHAIN_MAX, STACK_BYTES_MAX, Frame, Raised, read_stack, stack_lines, stack_of

HERE = "tests/core/test_stack.py"


def caught(function: Any, *arguments: Any) -> BaseException:
    """What a function raises."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(text: str) -> None:
    raise ValueError(text)


def deep(depth: int) -> None:
    if depth == 0:
        fail("at the bottom")
    deep(depth - 1)


def from_another(text: str) -> None:
    try:
        fail(text)
    except ValueError as error:
        raise KeyError(text) from error


def chain(of: str) -> list[Raised]:
    return read_stack(of)


def test_messages_do_not_tell_stacks_apart() -> None:
    """A thousand tasks that fail at one line with a thousand messages have one stack."""
    one, other = stack_of(caught(fail, "invoice 17")), stack_of(caught(fail, "invoice 18"))
    assert one is not None
    assert one == other
    assert "invoice" not in one.text.replace("raise ValueError(text)", "")


def test_another_line_is_another_stack() -> None:
    """Two bugs in one function are two stacks."""

    def either(first: bool) -> None:
        if first:
            raise ValueError("one")
        raise ValueError("other")

    one, other = stack_of(caught(either, True)), stack_of(caught(either, False))
    assert one is not None
    assert other is not None
    assert one.id != other.id
    assert one.at != other.at


def test_the_innermost_line_of_the_users_code_is_where() -> None:
    """Where a person looks first is their own line, also where a library raised."""
    error = caught(lambda: json.loads("{"))
    found = stack_of(error)
    assert found is not None
    assert found.at is not None
    assert found.at.startswith(f"{HERE}:")
    assert found.at.endswith("in <lambda>")
    frames = chain(found.text)[0].frames
    assert [frame.own for frame in frames][-1] is False
    assert frames[-1].file == "json/decoder.py"
    assert any("decoder" not in line for line in stack_lines(chain(found.text)))


def test_a_recursion_of_any_depth_is_one_stack() -> None:
    """What fails three calls down and three hundred calls down failed alike."""
    found = {stack_of(caught(deep, depth)) for depth in (3, 4, 300)}
    assert len(found) == 1


def test_what_led_to_an_error_is_told_without_what_varies() -> None:
    """The reason is in the stack, in the words that all such failures share."""
    one, other = stack_of(caught(from_another, "order 17")), stack_of(caught(from_another, "order 18"))
    assert one is not None
    assert other is not None
    assert one.id == other.id
    raised, reason = chain(one.text)
    assert raised.error == "KeyError"
    assert reason.error == "ValueError: order <number>"
    assert "because of ValueError: order <number>" in stack_lines(chain(one.text))


def test_a_circle_of_reasons_ends() -> None:
    """Exceptions that name each other as their reasons are told once."""
    error = caught(from_another, "x")
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    found = stack_of(error)
    assert found is not None
    assert len(chain(found.text)) == 2


def test_a_long_chain_is_cut() -> None:
    """Of many reasons a few are told."""
    error = caught(fail, "first")
    for number in range(10):
        following = caught(fail, f"{number}")
        following.__cause__ = error
        error = following
    found = stack_of(error)
    assert found is not None
    assert len(chain(found.text)) == CHAIN_MAX


def test_the_first_of_a_group_is_its_reason() -> None:
    """An exception group leads to where its first member came from."""

    def grouped() -> None:
        raise ExceptionGroup("several", [caught(fail, "one")])  # type: ignore[list-item]

    found = stack_of(caught(grouped))
    assert found is not None
    assert [raised.error for raised in chain(found.text)] == ["ExceptionGroup", "ValueError: one"]


def test_what_was_never_raised_has_no_stack() -> None:
    """An exception that was only made came from nowhere."""
    assert stack_of(ValueError("x")) is None


def test_secrets_in_source_lines_are_hidden() -> None:
    """Code is redacted like every text that is kept."""

    def careless() -> None:
        int("x", base=len("password='hunter2hunter2'"))

    found = stack_of(caught(careless))
    assert found is not None
    assert "hunter2" not in found.text


@given(st.integers(1, 400), st.integers(0, 3))
def test_a_stack_is_never_too_long_to_keep(frames: int, reasons: int) -> None:
    """However many lines and reasons there are, the text is bounded, readable, and keeps the line where it happened."""
    error = None
    for number in range(reasons + 1):
        made = {}
        body = "".join(f"def f{at}():\n    return f{at - 1}()  # {'long ' * 30}\n" for at in range(1, frames))
        exec(compile(f"def f0():\n    raise ValueError('x')\n{body}", f"{number}.py", "exec"), made)
        raised = caught(made[f"f{frames - 1}"])
        raised.__cause__ = error
        error = raised
    assert error is not None
    found = stack_of(error)
    assert found is not None
    assert len(found.text) <= STACK_BYTES_MAX
    assert found.at is not None
    assert chain(found.text)[0].frames[-1].at == found.at


def test_hostile_names_are_kept_as_text() -> None:
    """A file, a function or a line with NUL, surrogates or quotes is text that every database keeps."""
    made: dict[str, Any] = {}
    exec(compile("def f():\n    raise ValueError('x')\n", '\udcff"x.py', "exec"), made)
    found = stack_of(caught(made["f"]))
    assert found is not None
    assert found.text.isascii()
    assert "\\u0000" not in found.text
    assert chain(found.text)[0].frames[-1].name == "f"


def test_many_stacks_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is made anew for every task does not fill the memory."""
    monkeypatch.setattr(stacks, "_KEPT_MAX", 10)
    monkeypatch.setattr(stacks, "_kept", {})
    for number in range(50):
        made: dict[str, Any] = {}
        exec(compile("def f():\n    raise ValueError('x')\n", f"{number}.py", "exec"), made)
        stack_of(caught(made["f"]))
    assert len(stacks._kept) <= 10


def test_lines_are_those_of_pythons_own_traceback() -> None:
    """The frames are what Python itself would print."""
    error = caught(json.loads, "{")
    found = stack_of(error)
    assert found is not None
    expected = [(one.lineno, one.name) for one in traceback.extract_tb(error.__traceback__)]
    assert [(one.line, one.name) for one in chain(found.text)[0].frames] == expected


def test_an_exception_that_cannot_be_asked_costs_only_its_stack() -> None:
    """Exceptions of strangers raise where their reason is asked for: they have no stack, and nobody else loses anything."""

    class OddError(ValueError):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise RuntimeError("do not ask")

    def odd() -> None:
        raise OddError("odd")

    assert stack_of(caught(odd)) is None
    assert stack_of(caught(fail, "even")) is not None


def test_code_that_is_gone_is_not_taken_for_new_code() -> None:
    """Functions that are made and dropped again, in the same memory, have each their own stack."""
    for number in range(200):
        made: dict[str, Any] = {}
        exec(compile(f"def made_{number}():\n    raise ValueError", f"/srv/made_{number}.py", "exec"), made)
        stack = stack_of(caught(made.pop(f"made_{number}")))
        assert stack is not None
        assert f"made_{number}.py" in stack.text


def raised_of(*frames: Frame, error: str = "ValueError", left_out: int = 0) -> Raised:
    return Raised(error, frames, left_out)


def library(number: int, code: str = "") -> Frame:
    return Frame(f"lib/l{number}.py", number, "call", code, own=False)


def mine(number: int, code: str = "") -> Frame:
    return Frame(f"shop/m{number}.py", number, "sell", code, own=True)


def test_lines_fold_what_is_not_the_users() -> None:
    """The user's frames with their code; how many lines of libraries stand before, between and behind them; and the reasons."""
    told = stack_lines(
        [
            raised_of(library(1), mine(1, "buy()"), mine(2), library(2), library(3), mine(3, "pay()"), library(4)),
            raised_of(library(5), left_out=7, error="KeyError: <x>"),
            raised_of(mine(4), error="OSError"),
        ]
    )
    assert told == [
        "ValueError",
        "  … 1 line of libraries",
        "  shop/m1.py:1 in sell",
        "    buy()",
        "  shop/m2.py:2 in sell",
        "  … 2 lines of libraries",
        "  shop/m3.py:3 in sell",
        "    pay()",
        "  … 1 line of libraries",
        "because of KeyError: <x>",
        "  … 8 lines of libraries",
        "because of OSError",
        "  shop/m4.py:4 in sell",
    ]


def test_a_long_stack_loses_the_code_of_libraries_first() -> None:
    """The user's code is what a person reads: it stays while the text fits without that of others."""
    long = "x" * stacks.CODE_CHARS_MAX
    chain = [raised_of(*(library(number, long) for number in range(30)), *(mine(number, long) for number in range(10)))]
    assert len(json.dumps(chain)) > STACK_BYTES_MAX
    [kept] = read_stack(stacks._short_text(list(chain)))
    assert kept.left_out == 0
    assert [frame.code for frame in kept.frames] == [""] * 30 + [long] * 10
    assert [frame._replace(code="") for frame in kept.frames] == [frame._replace(code="") for frame in chain[0].frames]


def test_a_longer_stack_loses_frames_of_libraries_from_the_outside() -> None:
    """Of the exception that has most of them, until it fits; how many are left out is said, and the user's frames go last."""
    long = "x" * stacks.CODE_CHARS_MAX
    many = [library(number) for number in range(60)]
    own = [mine(number, long) for number in range(25)]
    chain = [raised_of(*many[:30], *own, *many[30:]), raised_of(*many[:20], error="KeyError")]
    kept, reason = read_stack(stacks._short_text(list(chain)))
    assert reason == chain[1]
    assert kept.left_out > 0
    assert kept.frames == chain[0].frames[kept.left_out :][: 30 - kept.left_out] + chain[0].frames[30:]
    text = json.dumps([kept, reason])
    assert len(text) <= STACK_BYTES_MAX < len(json.dumps([kept._replace(frames=(many[0], *kept.frames)), reason]))


def test_a_stack_of_the_users_own_frames_loses_the_outermost() -> None:
    """Where all frames are the user's, the innermost stay: there it happened."""
    long = "x" * stacks.CODE_CHARS_MAX
    own = [mine(number, long) for number in range(60)]
    [kept] = read_stack(stacks._short_text([raised_of(*own)]))
    assert kept.frames == tuple(own[kept.left_out :])
    assert 0 < kept.left_out < 60


def test_a_chain_of_long_errors_keeps_their_beginnings() -> None:
    """Where not even the errors fit, no frame is kept, and of each error as much as of a line of code."""
    error = "E" * STACK_BYTES_MAX
    kept = read_stack(stacks._short_text([raised_of(mine(1), error=error), raised_of(error="KeyError")]))
    assert [(one.error, one.frames) for one in kept] == [("E" * stacks.CODE_CHARS_MAX, ()), ("KeyError", ())]


def test_a_stack_that_just_fits_is_whole() -> None:
    """Not a byte is cut from a text that may be kept."""
    error = "E" * (STACK_BYTES_MAX - len(json.dumps([raised_of(mine(1, "c"), library(1, "c"), error="")])))
    chain = [raised_of(mine(1, "c"), library(1, "c"), error=error)]
    text = stacks._short_text(list(chain))
    assert len(text) == STACK_BYTES_MAX
    assert read_stack(text) == chain
    assert read_stack(stacks._short_text([chain[0]._replace(error=error + "E")]))[0].frames[1].code == ""


def test_what_an_explanation_says_of_a_stack() -> None:
    """Its id, sixteen digits of a hash, and where it was, as members of a JSON object."""
    found = stack_of(caught(fail, "x"))
    assert found is not None
    assert len(found.id) == 16
    assert json.loads("{" + found.members + "}") == {"stack": found.id, "at": found.at}
    library_alone = caught(json.loads, "{")
    library_alone.__traceback__ = library_alone.__traceback__ and library_alone.__traceback__.tb_next
    found = stack_of(library_alone)
    assert found is not None
    assert found.at is None
    assert json.loads("{" + found.members + "}") == {"stack": found.id}


def test_classes_are_told_apart_at_one_line() -> None:
    """Two errors that one line raises are two stacks, whichever came first."""

    def either(error: Exception) -> None:
        raise error

    found = [stack_of(caught(either, error)) for error in (ValueError("x"), KeyError("x"), ValueError("y"))]
    assert found[0] == found[2]
    assert found[0] != found[1]
    assert [chain(one.text)[0].error for one in found if one] == ["ValueError", "KeyError", "ValueError"]


def test_a_known_place_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand failures at one line cost one look into the source."""
    made = []
    real = stacks._known
    monkeypatch.setattr(stacks, "_seen", {})
    monkeypatch.setattr(stacks, "_known", lambda *given: made.append(1) or real(*given))
    found = {stack_of(caught(fail, str(number))) for number in range(20)}
    assert (len(found), len(made)) == (1, 1)


def test_a_file_is_shown_by_the_longest_folder_that_it_is_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that lie in each other, as a project and its source, give the name that an import has."""
    inner = tmp_path / "src"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(inner), *sys.path])
    stacks._shown.cache_clear()
    assert stacks._shown(str(inner / "shop" / "mail.py")) == "shop/mail.py"
    assert stacks._shown(str(tmp_path / "srcs" / "mail.py")) == "srcs/mail.py"
    assert stacks._shown("/nowhere/at/all/mail.py") == "mail.py"
    assert stacks._shown("<string>") == "<string>"
    stacks._shown.cache_clear()


def test_of_many_frames_the_outermost_few_and_the_innermost_are_told() -> None:
    """How many are left out between them is said; each has its line of code."""
    lines = tuple((f"/srv/f{number}.py", "call", number) for number in range(stacks.FRAMES_MAX + 40))
    made = stacks._made((("ValueError", lines),), [])
    [raised] = read_stack(made.text)
    assert raised.left_out == 40
    assert [frame.line for frame in raised.frames] == [*range(10), *range(50, 100)]
    found = stack_of(caught(fail, "x"))
    assert found is not None
    assert [frame.code for frame in chain(found.text)[0].frames] == ["function(*arguments)", "raise ValueError(text)"]


def test_a_nul_is_kept_as_the_sign_for_what_cannot_be_shown() -> None:
    """PostgreSQL keeps none, and all else of the text stays."""
    [raised] = read_stack(stacks._text([raised_of(mine(1, "a\0b\\n"))]))
    assert raised.frames[0].code == "a\ufffdb\\n"
