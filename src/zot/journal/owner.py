"""Who runs a session. The kernel's lock decides; this is what others are told about it."""

from __future__ import annotations

import os
from functools import cache
from itertools import count

import msgspec

from zot.messages import timestamp

_runs = count(1)


class Owner(msgspec.Struct, frozen=True):
    """A process that runs a session. ``boot`` tells the starts of a machine apart, ``token`` the runs.

    One that has ``parked`` its run has gone, and everything that it wrote was safe before.
    """

    pid: int
    host: str
    since: str
    boot: str
    token: str
    parked: bool = False


def ourselves() -> Owner:
    """Return who we are, for one run."""
    pid = os.getpid()
    # Not anew for each run: whoever asks the kernel lets go of the interpreter, and may wait for it afterwards.
    return Owner(pid, host_name(), timestamp(), boot_id(), f"{_life(pid)}-{next(_runs)}")


@cache
def _life(pid: int) -> str:
    """Return what differs between two processes, also if they have the same number, one after the other."""
    return os.urandom(8).hex()


@cache
def host_name() -> str:
    """Return the name of this machine."""
    return os.uname().nodename


@cache
def boot_id() -> str:
    """Return what differs between two starts of the machine; "" where nobody can tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:  # as text it would need a codec that must be loaded
            return file.read().decode().strip()
    except OSError:
        return ""
