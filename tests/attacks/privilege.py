"""Who attacks: this user, or one without rights. And which attacks are left to `make attacks`."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from harness import PATIENCE_S
from optional import MISSING

Test = TypeVar("Test", bound=Callable[..., object])

#: Set by `make attacks`.
IS_COMPLETE = bool(os.environ.get("ZOT_ATTACKS"))
#: The user "nobody".
NOBODY = 65534


def thorough(test: Test | None) -> Test | None:
    """Collect a test only with `make attacks`: it is slow, or starts many processes."""
    return test if IS_COMPLETE else None


def needs_root(test: Test | None) -> Test | None:
    """Collect a test of `make attacks` only for root. Elsewhere the report names it, and in CI the run fails."""
    if not IS_COMPLETE or test is None:
        return None
    if os.geteuid() == 0:
        return test
    MISSING.setdefault("root", []).append(test.__name__)
    return None


def as_nobody(act: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return the result of ``act`` in a process of a user without rights. Raise AssertionError if it fails."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The process may have threads, none of which the child needs.
        pid = os.fork()
    if pid == 0:
        _become_nobody(act, theirs)
    os.close(theirs)
    deadline = time.monotonic() + PATIENCE_S
    os.set_blocking(ours, False)
    said = b""
    try:
        while time.monotonic() < deadline:
            try:
                data = os.read(ours, 1 << 16)
            except BlockingIOError:
                time.sleep(0.005)
                continue
            if not data:
                break
            said += data
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert said, "the process of the user without rights said nothing"
    problem, result = pickle.loads(said)
    assert not problem, problem
    return result


def _become_nobody(act: Callable[[], Coroutine[Any, Any, Any]], pipe: int) -> None:
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        answer = "", asyncio.run(act())
    except BaseException as problem:  # told to the test
        answer = repr(problem), None
    try:
        os.write(pipe, pickle.dumps(answer))
    finally:
        os._exit(0)
