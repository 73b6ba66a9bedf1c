"""Keys as people write them, and the file that holds them: private, whole, and made once."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from redrive.access.secret_box import SecretBox
from redrive.access.secret_keys import is_private, make_key_file, read_key_file, read_keys
from redrive.errors import SettingsError


def test_keys_are_read_however_they_are_written():
    """With commas, spaces or lines between them; in either alphabet of base64, with or without its end."""
    first, second = "+/" + "A" * 41, "B" * 43 + "="
    read = read_keys(f" {first},\n{second} ")
    assert read == ["-_" + "A" * 41 + "=", second]
    assert SecretBox(read).open(SecretBox(read[1:]).seal("x")) == "x"
    assert read_keys("") == []


@pytest.mark.parametrize("written", ["hunter2", "A" * 42, "A" * 44, "é" * 43, "A" * 43 + "=x"])
def test_what_is_no_key_is_refused_without_showing_it(written: str):
    """The remedy is named, the text is not."""
    with pytest.raises(SettingsError, match="redrive secrets new-key") as refused:
        read_keys(written)
    assert written not in str(refused.value)


def test_the_file_is_for_its_owner_alone(tmp_path: Path):
    """It is 0600 whatever the umask, and nothing else is left in the folder."""
    file = tmp_path / "a.db.key"
    assert read_key_file(file) is None
    make_key_file(file, "first")
    assert (read_key_file(file), stat.S_IMODE(file.stat().st_mode)) == ("first\n", 0o600)
    assert is_private(file)
    assert [one.name for one in tmp_path.iterdir()] == ["a.db.key"]
    file.chmod(0o640)
    assert not is_private(file)


def test_many_who_make_it_at_once_make_one(tmp_path: Path):
    """Whoever is first wins, and everybody reads the same whole key."""
    file = tmp_path / "a.db.key"

    def make(number: int) -> str | None:
        make_key_file(file, f"key {number}")
        return read_key_file(file)

    with ThreadPoolExecutor(8) as threads:
        read = set(threads.map(make, range(32)))
    assert len(read) == 1


def test_a_folder_that_takes_no_file_is_said(tmp_path: Path):
    """With the remedy."""
    with pytest.raises(SettingsError, match="REDRIVE_SECRET_KEY"):
        make_key_file(tmp_path / "none" / "a.db.key", "key")
    (tmp_path / "bad").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="REDRIVE_SECRET_KEY"):
        read_key_file(tmp_path / "bad")
