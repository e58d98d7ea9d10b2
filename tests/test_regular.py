"""What should be a file and is a pipe keeps nobody waiting."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import forked
from harness import PATIENCE_S, environment
from zot.regular import content


def zot(home: Path, *words: str) -> tuple[int, str, str]:
    env = environment({"ZOT_HOME": str(home), "HOME": str(home)})
    done = forked.run(["-p", "hi", "--provider", "lab", *words], cwd=home, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("name", ["config.toml", "models.json", "SYSTEM.md"])
def test_a_pipe_among_the_files_of_zot_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert zot(tmp_path) == (1, "", f"zot: {tmp_path / name}: not a regular file\n")


@pytest.mark.parametrize("flag", ["--replay", "--output-schema"])
def test_a_pipe_that_is_named_is_refused_at_once(tmp_path: Path, flag: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert zot(tmp_path, flag, "pipe") == (1, "", "zot: pipe: not a regular file\n")


def test_a_script_may_be_made_by_a_program(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text('say "from a pipe"'))
    writer.start()
    assert zot(tmp_path, "--script", "pipe") == (0, "from a pipe\n", "")
    writer.join(PATIENCE_S)


def test_a_pipe_without_a_writer_is_given_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match=r"a pipe into which nobody has written for 0\.05 s"):
        content(str(tmp_path / "pipe"), pipe_silence_s=0.05)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_what_is_neither_file_nor_pipe_is_refused(path: str) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        content(path, pipe_silence_s=1)
