"""Who is at the other end of a local connection, as the kernel knows it."""

from __future__ import annotations

import os
import socket
import struct
from typing import Protocol

import msgspec

_CREDENTIALS = struct.Struct("=iII")  # struct ucred of Linux: pid, uid, gid
# What macOS has instead: struct xucred, which begins with a version and the uid; and the pid by itself.
_LOCAL_PEERCRED, _LOCAL_PEERPID, _XUCRED_BYTES = 0x001, 0x002, 76


class Peer(msgspec.Struct, frozen=True):
    """A process that has connected. A pid of 0 is one that we cannot see; a uid of -1 one that nobody tells us."""

    uid: int
    pid: int

    @property
    def label(self) -> str:
        """How logs name it."""
        return "unix:unknown" if self.uid < 0 else f"unix:pid={self.pid},uid={self.uid}"


class Connection(Protocol):
    """What is asked of a socket; asyncio's stand-in for one will do."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def identify(connection: Connection) -> Peer:
    """Return who had connected when the connection was made. Raise OSError if it is gone."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is not None:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return Peer(uid=uid, pid=pid)
    _, uid = struct.unpack_from("=II", connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED_BYTES))
    (pid,) = struct.unpack("=i", connection.getsockopt(0, _LOCAL_PEERPID, 4))
    return Peer(uid=uid, pid=pid)


def admits(peer: Peer, *, us: int | None = None) -> bool:
    """True if a peer may speak to a daemon of the user ``us``, ourselves by default.

    Nobody but that user may, not even root: root can become that user, and then it is seen in the log who it was.
    """
    return peer.uid == (os.geteuid() if us is None else us)
