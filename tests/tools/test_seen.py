from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.tools.seen import MAX_FILES, MAX_HASHED_BYTES, Seen, version, version_of


def test_what_was_never_seen_is_not_stale() -> None:
    seen = Seen()
    assert not seen.is_stale((1, 2, "a"), b"1")
    seen.note((1, 2, "a"), b"1")
    assert not seen.is_stale((1, 2, "a"), b"1")
    assert seen.is_stale((1, 2, "a"), b"2")
    assert not seen.is_stale((1, 2, "b"), b"2")


def test_of_very_many_files_the_oldest_are_forgotten() -> None:
    seen = Seen()
    for number in range(MAX_FILES):
        seen.note((1, 2, str(number)), b"1")
    seen.note((1, 2, "0"), b"1")
    seen.note((1, 2, "one more"), b"1")
    assert [name for name in ("0", "1", "2", "one more") if (1, 2, name) in seen] == ["0", "2", "one more"]


@pytest.mark.parametrize("size", [0, 1, 300_000, MAX_HASHED_BYTES, MAX_HASHED_BYTES + 1])
async def test_a_version_is_the_same_from_the_file_and_from_its_content(size: int, tmp_path: Path) -> None:
    data = b"x" * size
    (tmp_path / "a").write_bytes(data)
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert await version(fd) == version_of(data, os.fstat(fd))
    finally:
        os.close(fd)
