"""Log files: rotated when they are long, and whole after any failure."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from child_process import Child
from zot.serve.daemon.logs import LogFile, LogHandler, log_files


def test_a_full_file_is_rotated_and_the_oldest_removed(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "x.log"
    file = LogFile(str(path), max_bytes=20, files=3)
    for number in range(10):
        assert file.append(b"line %d.\n" % number)
    file.close()
    assert [Path(one).read_text() for one in log_files(str(path), 3)] == [
        "line 4.\nline 5.\n", "line 6.\nline 7.\n", "line 8.\nline 9.\n",
    ]  # fmt: skip
    assert sorted(os.listdir(path.parent)) == ["x.log", "x.log.1", "x.log.2"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_line_longer_than_a_file_gets_its_own(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "x"), max_bytes=10)
    assert all(file.append(line) for line in (b"a\n", b"b" * 50 + b"\n", b"c\n"))
    file.close()
    assert [Path(one).stat().st_size for one in log_files(str(tmp_path / "x"))] == [2, 51, 2]


def test_it_continues_after_another_process_even_in_mid_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"whole\nhal")
    (tmp_path / "x").chmod(0o644)
    file = LogFile(str(tmp_path / "x"))
    assert file.append(b"next\n")
    file.close()
    assert (tmp_path / "x").read_bytes() == b"whole\nhal\nnext\n"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600


def test_a_crash_during_rotation_loses_nothing(tmp_path: Path) -> None:
    for name in ("x", "x.2"):  # x.1 has become x.2 and x has not yet become x.1
        (tmp_path / name).write_bytes(name.encode() + b" is long enough\n")
    file = LogFile(str(tmp_path / "x"), max_bytes=20, files=4)
    assert file.append(b"next\n")
    assert file.append(b"another one that is long\n")
    file.close()
    assert [Path(one).read_text() for one in log_files(str(tmp_path / "x"), 4)] == [
        "x.2 is long enough\n", "x is long enough\n", "next\n", "another one that is long\n",
    ]  # fmt: skip


def test_a_file_moved_or_removed_by_others_is_recreated(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "x"))
    assert file.append(b"a\n")
    (tmp_path / "x").rename(tmp_path / "moved")
    assert file.append(b"b\n")
    (tmp_path / "x").unlink()
    assert file.append(b"c\n")
    file.close()
    assert ((tmp_path / "moved").read_bytes(), (tmp_path / "x").read_bytes()) == (b"a\n", b"c\n")


def test_a_path_that_is_not_our_file_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    for name in ("link", "fifo", "file/x"):
        file = LogFile(str(tmp_path / name))
        assert not file.append(b"a\n")
        assert file.problem
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_full_disk_leaves_whole_lines_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"

    def fill(_: Callable[[], None]) -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
        file = LogFile(str(path))
        said = [file.append(b"0123456789\n") for _ in range(4)]
        problem = file.problem
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        more = file.append(b"m\n")
        return f"{[*said, more, problem, file.problem]}"

    with Child(fill) as child:
        assert child.report() == "[True, True, False, False, True, 'there is no room', '']"
    assert path.read_bytes() == b"0123456789\n0123456789\nm\n"


# The daemon's own log.


@pytest.fixture
def log(tmp_path: Path) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(LogHandler(LogFile(str(tmp_path / "d.log"))))
    return logger


def written(path: Path) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", path.read_text())


def test_a_record_is_one_line_with_its_time(log: logging.Logger, tmp_path: Path) -> None:
    log.warning("from %s", "a\nb\x1b[31m\udcff")
    log.info("quiet")
    log.error("wrong: %d", "x")
    assert written(tmp_path / "d.log") == (
        "TIME WARNING from a\\nb\\x1b[31m\\xff\nTIME INFO quiet\nTIME ERROR wrong: %d: cannot be shown: TypeError\n"
    )


def test_a_traceback_is_indented(log: logging.Logger, tmp_path: Path) -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.exception("failed")
    first, second, *_, last = written(tmp_path / "d.log").split("\n")[:-1]
    assert [first, second, last] == ["TIME ERROR failed", "    Traceback (most recent call last):", "    b"]


def test_lost_lines_are_counted_and_reported(log: logging.Logger, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "d.log")
    log.info("one")
    log.info("two")
    (tmp_path / "d.log").unlink()
    log.info("three")
    log.info("four")
    assert written(tmp_path / "d.log") == (
        "TIME WARNING 2 lines could not be written\nTIME INFO three\nTIME INFO four\n"
    )


def test_an_inaccessible_directory_is_a_problem_and_not_an_exception(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    log = LogFile(str(logs / "a.log"))
    assert log.append(b"one\n")
    logs.rename(tmp_path / "moved")
    logs.write_bytes(b"")  # no directory
    assert not log.is_as_we_left_it
    assert not log.append(b"two\n")
    assert log.problem
    log.close()
