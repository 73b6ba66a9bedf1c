"""A change of payloads fits or leaves the payload as it was, and its difference can be shown."""

import pytest

from redrive.core.edit import Edit, PayloadChange, difference, read_edit
from redrive.errors import EditError, PayloadError, UsageError

PATCH = Edit([{"op": "replace", "path": "/country", "value": "DE"}, {"op": "remove", "path": "/old"}])


def test_a_patch_changes_a_copy():
    """What was given stays as it was."""
    before = {"country": "GB", "old": 1}
    assert PATCH.apply(before) == {"country": "DE"}
    assert before == {"country": "GB", "old": 1}


def test_a_patch_that_does_not_fit_says_why():
    """A path that is not there is a sentence, whatever the library calls it."""
    with pytest.raises(EditError, match="the patch cannot be applied"):
        PATCH.apply({"country": "GB"})
    with pytest.raises(EditError, match="the patch cannot be applied"):
        Edit([{"op": "test", "path": "/a", "value": 1}]).apply({"a": 2})
    with pytest.raises(EditError, match="the patch cannot be applied"):
        PATCH.apply(None)


def test_a_new_payload_takes_the_place_of_the_old_one():
    """Also None, and where the payload is kept as text it stays text."""
    assert Edit(payload={"a": 1}).apply([1]) == {"a": 1}
    assert Edit().apply({"a": 1}) is None
    assert Edit(payload={"a": 1}).apply('{"b": 2}') == '{"a":1}'


def test_text_is_patched_as_the_json_that_it_holds():
    """Some tables keep JSON as text."""
    assert Edit([{"op": "add", "path": "/b", "value": 2}]).apply('{"a": 1}') == '{"a":1,"b":2}'
    with pytest.raises(EditError, match="not JSON"):
        PATCH.apply("plain text")


@pytest.mark.parametrize(
    "patch", [[], "x", [{"op": "replace"}], [{"op": "fly", "path": "/a"}], [1], [{"op": "add", "path": "a", "value": 1}], [{}] * 51]
)  # fmt: skip
def test_what_is_no_patch_is_refused(patch):
    """Before anything is stored."""
    with pytest.raises(UsageError):
        Edit(patch)


def test_a_patch_cannot_grow_a_payload_beyond_its_limit():
    """Fifty copies of a document into itself would be a petabyte: the limit is looked at after each."""
    grow = Edit([{"op": "copy", "from": "", "path": "/a"}, {"op": "copy", "from": "", "path": "/b"}] * 25)
    with pytest.raises(EditError, match="1,048,576"):
        grow.apply({"a": "x" * 1000, "b": 1})
    with pytest.raises(PayloadError):
        Edit(payload="x" * 2_000_000)


def test_a_difference_names_what_was_and_what_is():
    """In the order of a JSON Patch."""
    before, after = {"a": 1, "b": [1, 2], "c": "x"}, {"a": 2, "b": [1], "d": None}
    changes = {change.path: change for change in difference(before, after)}
    assert changes["/a"] == PayloadChange(op="replace", path="/a", before=1, after=2)
    assert changes["/c"].op == "remove"
    assert changes["/c"].before == "x"
    assert difference(1, {"a": 1}) == [PayloadChange(op="replace", path="/", before=1, after={"a": 1})]


def test_an_edit_is_stored_and_read_again():
    """As it was given."""
    for edit in (PATCH, Edit(payload={"a": 1}), Edit()):
        assert read_edit(edit.as_json()) == edit
    assert read_edit(None) is None


def test_a_difference_tells_what_has_moved_where():
    """With what is there now; what was added or removed has nothing on the other side; text is compared as the JSON in it."""
    assert difference({"a": [1]}, {"b": [1]}) == [PayloadChange(op="move", path="/b", before=[1], after=[1])]
    assert difference('{"a": 1}', '{"a": 1, "b": 2}') == [PayloadChange(op="add", path="/b", before=None, after=2)]
    assert difference({"a": 1}, {}) == [PayloadChange(op="remove", path="/a", before=1, after=None)]
    assert difference("no json", "none") == [PayloadChange(op="replace", path="/", before="no json", after="none")]
    assert len(difference({}, {str(number): 0 for number in range(300)})) == 200


@pytest.mark.parametrize(
    ("act", "error", "sentence"),
    [
        (lambda: Edit([]), UsageError, "a patch is a list of 1 to 50 operations, as RFC 6902 has them"),
        (lambda: Edit([{}] * 51), UsageError, "a patch is a list of 1 to 50 operations, as RFC 6902 has them"),
        (
            lambda: Edit([{"op": "fly", "path": "/a"}]),
            UsageError,
            "this is not a JSON Patch (RFC 6902): Unknown operation 'fly'",
        ),
        (lambda: PATCH.apply("plain"), EditError, "the payload is not JSON"),
        (
            lambda: PATCH.apply({"country": "GB"}),
            EditError,
            "the patch cannot be applied: can't remove a non-existent object 'old'",
        ),
    ],
)
def test_what_is_said_of_an_edit_that_does_not_fit(act, error, sentence):
    """Whole sentences, in one line."""
    with pytest.raises(error) as refused:
        act()
    assert str(refused.value) == sentence


def test_fifty_changes_are_not_too_many():
    """The limit is the last that is accepted; a patch itself may not be endless."""
    assert Edit([{"op": "add", "path": "/a", "value": 1}] * 50).apply({}) == {"a": 1}
    with pytest.raises(PayloadError, match="65,536"):
        Edit([{"op": "add", "path": "/a", "value": "x" * 65_536}])


def test_an_edit_is_stored_as_what_it_is():
    """A patch, or a payload, never both."""
    assert Edit(({"op": "remove", "path": "/a"},)).as_json() == {"patch": [{"op": "remove", "path": "/a"}]}
    assert Edit(payload=[1]).as_json() == {"payload": [1]}
    assert read_edit({"payload": 7}) == Edit(payload=7)


def test_a_long_reason_is_cut() -> None:
    """Of what the library says the first line, and of that no more than anybody reads; without words its name."""
    from redrive.core.edit import _first_line

    assert _first_line(ValueError("a" * 301 + "\nb")) == "a" * 300
    assert _first_line(ValueError("first\nsecond")) == "first"
    assert _first_line(KeyError()) == "KeyError"


def test_what_is_null_and_what_is_not_there() -> None:
    """Both are None in a difference; what was taken away has nothing after it, though something else may have its place."""
    assert difference({"a": None}, {"a": 1}) == [PayloadChange(op="replace", path="/a", before=None, after=1)]
    assert difference([1, 2, 3], [1, 3]) == [PayloadChange(op="remove", path="/1", before=2, after=None)]
    assert difference({}, {"a": 1}) == [PayloadChange(op="add", path="/a", before=None, after=1)]
    moved = difference({"a": [1, 2, 3]}, {"b": [1, 2, 3]})
    assert moved == [PayloadChange(op="move", path="/b", before=[1, 2, 3], after=[1, 2, 3])]
