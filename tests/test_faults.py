"""A few of the failing system calls and deaths that `make faults` goes through one by one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from optional import needs

FAULTS = str(Path(__file__).parents[1] / "scripts" / "faults.py")


@needs("strace")
def test_a_failing_system_call_is_explained_and_a_death_at_one_loses_nothing() -> None:
    tried = subprocess.run(
        [sys.executable, FAULTS, "--only", "prompt", "--sample", "5"],
        capture_output=True, text=True, timeout=8 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert re.fullmatch(r"faults: \d+ failures, [1-9]\d* deaths, \d+ not reached; 0 wrong\n", tried.stdout)


@needs("strace")
@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("openat", "cannot be opened (Input/output error): check its disk and permissions"),
        ("fcntl", "cannot be locked (Input/output error): check its disk and permissions"),
        ("pread64", "cannot be read (Input/output error): check its disk and permissions"),
    ],
)
def test_a_lock_file_on_a_failing_disk_is_named(tmp_path: Path, call: str, told: str) -> None:
    lock = tmp_path / "kept" / "journal.db.lock"
    strace = ["strace", "-f", "-qq", "-o", os.devnull, "-P", str(lock), "-e", f"inject={call}:error=EIO"]
    failed = subprocess.run(
        [*strace, sys.executable, "-m", "zot", "-p", "!echo Hello", "--provider", "lab", "--session", "s"],
        capture_output=True, text=True, cwd=tmp_path, timeout=2 * PATIENCE_S, check=False,
        env=environment({"ZOT_HOME": str(tmp_path / "kept")}),
    )  # fmt: skip
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", f"zot: the lock file {lock} {told}\n")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("1", 1)])
def test_without_strace_the_check_is_omitted_reported_and_fails_only_in_ci(tmp_path: Path, ci: str, code: int) -> None:
    env = {**os.environ, "PATH": str(tmp_path), "CI": ci}
    tried = subprocess.run([sys.executable, FAULTS], capture_output=True, text=True, env=env, check=False)
    assert (tried.returncode, tried.stdout) == (code, "faults: nothing was tried: there is no strace; install it\n")
