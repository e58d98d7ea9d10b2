"""Spill files last as long as their session; those of a killed one are removed later."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from harness import read_some
from zot.tools.command_output import Spills

from .calls import PATIENCE_S

#: A session that has kept something and goes on.
HOLDER = """if True:
    import os, sys
    from zot.tools.command_output import Spills
    spills = Spills(sys.argv[1], sys.argv[2])
    spills.new().write(b"output")
    os.write(1, b"kept\\n")
    os.read(0, 1)
"""


def an_hour_later() -> float:
    return time.time() + 3600


def use(root: Path, key: str = "mine") -> Spills:
    spills = Spills(str(root), key, now=an_hour_later)
    spill = spills.new()
    spill.write(b"output")
    spill.close()
    assert spill.problem is None
    return spills


def test_closing_removes_the_files_and_their_directory(tmp_path: Path) -> None:
    spills = use(tmp_path / "spill")
    assert [path.name for path in (tmp_path / "spill").iterdir()] == ["mine"]
    spills.close()
    assert list((tmp_path / "spill").iterdir()) == []
    spills.close()


def test_spill_files_of_a_killed_session_are_removed_and_of_a_living_one_kept(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path, "theirs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert read_some(holder.stdout.fileno(), time.monotonic() + PATIENCE_S) == b"kept\n"
        use(tmp_path).close()
        assert [len(os.listdir(path)) for path in tmp_path.iterdir()] == [1]
        holder.kill()
        holder.wait(PATIENCE_S)
        # Opened, but without a file to keep, it looks at nothing.
        Spills(str(tmp_path), "mine", now=an_hour_later).close()
        assert os.listdir(tmp_path) == ["theirs"]
        use(tmp_path).close()
        assert os.listdir(tmp_path) == []


def test_new_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    spills = Spills(str(tmp_path), "mine")
    spills.new().write(b"output")
    assert sorted(os.listdir(tmp_path)) == ["mine", "theirs"]
    spills.close()


def test_only_spill_files_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "bash-1.txt").touch()
    root = tmp_path / "spill"
    (root / "theirs" / "deeper").mkdir(parents=True)
    (root / "theirs" / "notes").touch()
    (root / "file").touch()
    (root / "link").symlink_to(outside)
    use(root).close()
    assert sorted(os.listdir(root)) == ["file", "link", "theirs"]
    assert sorted(os.listdir(root / "theirs")) == ["deeper", "notes"]
    assert os.listdir(outside) == ["bash-1.txt"]
