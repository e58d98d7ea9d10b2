"""Read state: which versions of files the model has seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.tools.base import MAX_FILES, MAX_HASHED_BYTES, Keys, ReadState, version, version_of


def keys(name: str, *, directory: int = 2, parent: str = "/d") -> Keys:
    return (1, directory, name), f"{parent}/{name}"


def test_a_file_never_seen_is_not_stale() -> None:
    seen = ReadState()
    assert not seen.is_stale(keys("a"), b"1")
    seen.note(keys("a"), b"1")
    assert not seen.is_stale(keys("a"), b"1")
    assert seen.is_stale(keys("a"), b"2")
    assert not seen.is_stale(keys("b"), b"2")


def test_a_file_is_recognised_in_a_moved_directory_and_not_in_its_replacement() -> None:
    seen = ReadState()
    seen.note(keys("a"), b"1")
    for moved in (keys("a", parent="/e"), keys("a", directory=3)):
        assert moved in seen
        assert (seen.is_stale(moved, b"1"), seen.is_stale(moved, b"2")) == (False, True)
    assert keys("a", parent="/e", directory=3) not in seen


def test_the_oldest_of_very_many_files_are_forgotten() -> None:
    seen = ReadState()
    for number in range(MAX_FILES):
        seen.note(keys(str(number)), b"1")
    seen.note(keys("0"), b"1")
    seen.note(keys("one more"), b"1")
    assert [name for name in ("0", "1", "2", "one more") if keys(name) in seen] == ["0", "2", "one more"]


@pytest.mark.parametrize("size", [0, 1, 300_000, MAX_HASHED_BYTES, MAX_HASHED_BYTES + 1])
async def test_a_version_is_the_same_from_the_file_and_from_its_content(size: int, tmp_path: Path) -> None:
    data = b"x" * size
    (tmp_path / "a").write_bytes(data)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert await version(fd) == version_of(data, os.fstat(fd))
    finally:
        os.close(fd)
