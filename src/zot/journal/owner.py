"""Who runs a session. The kernel's lock decides; this is what others are told about it."""

from __future__ import annotations

import os
from functools import cache

import msgspec

from zot.messages import timestamp


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
    return Owner(os.getpid(), host_name(), timestamp(), boot_id(), os.urandom(8).hex())


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
