"""Request from zot to a keeper to run a command."""

from __future__ import annotations

import os
from socket import recv_fds, socket

_MAX_DESCRIPTORS = 4
_SIZE_BYTES = 4
_CHUNK_BYTES = 1 << 20
#: Descriptor from which a sandbox reads its system call filter.
SECCOMP_FD = 3


class SpawnRequest:
    """Program with its arguments, its whole environment, and its working directory.

    With ``seccomp``, the program is a sandbox: it reads this filter from the descriptor SECCOMP_FD.
    """

    def __init__(self, argv: list[bytes], cwd: bytes, env: dict[bytes, bytes], seccomp: bytes = b"") -> None:
        self.argv = argv
        self.cwd = cwd
        self.env = env
        self.seccomp = seccomp


def encode_request(request: SpawnRequest) -> bytes:
    """Encode a request. Raise ValueError if the kernel would not accept it."""
    pairs = [b"%s=%s" % pair for pair in request.env.items()]
    fields = [request.cwd, request.seccomp.hex().encode(), b"%d" % len(request.argv), *request.argv, *pairs]
    if any(b"\0" in field for field in fields):
        raise ValueError("a NUL character in an argument, a variable or the directory")
    if any(b"=" in name for name in request.env):
        raise ValueError("a variable's name has an = in it")
    body = b"\0".join(fields)
    return len(body).to_bytes(_SIZE_BYTES, "big") + body


def receive_request(control: socket) -> tuple[SpawnRequest, list[int]]:
    """Read a request and its descriptors. Raise EOFError at a premature end."""
    data, fds = b"", []
    while len(data) < _SIZE_BYTES or len(data) < _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big"):
        try:
            part, more = receive_with_descriptors(control, _CHUNK_BYTES, _MAX_DESCRIPTORS)
        except ConnectionError:
            part, more = b"", []
        if not part:
            raise EOFError
        data += part
        fds += more
    cwd, seccomp, count, *rest = data[_SIZE_BYTES:].split(b"\0")
    argv, pairs = rest[: int(count)], rest[int(count) :]
    return SpawnRequest(argv, cwd, dict(_pair(pair) for pair in pairs), bytes.fromhex(seccomp.decode())), fds


def receive_with_descriptors(source: socket, max_bytes: int, max_descriptors: int) -> tuple[bytes, list[int]]:
    """Return received bytes and descriptors, which are not inherited by started programs."""
    data, fds, _, _ = recv_fds(source, max_bytes, max_descriptors)
    for fd in fds:
        os.set_inheritable(fd, False)  # recv_fds of Python 3.11 does not pass the flag for it on
    return data, fds


def _pair(text: bytes) -> tuple[bytes, bytes]:
    name, _, value = text.partition(b"=")
    return name, value
