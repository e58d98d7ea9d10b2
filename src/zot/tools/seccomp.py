"""System calls that a sandbox refuses: a table, and the filter that the kernel runs.

A program needs none of these calls to work on its directory. Each one is either a way around the sandbox or a part of
the kernel that has often been one. Written as classic BPF, because the table is short and a library would be one more
dependency of the part that must not fail.
"""

from __future__ import annotations

import errno
import os
import struct
from functools import cache
from typing import Final, NamedTuple

#: Architectures by name: the kernel's audit number, and the column of `_CALLS`.
_MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
#: From here on, x86_64 kernels count the calls of x32: other numbers for the same calls.
_X32: Final = 0x40000000

# Instructions of classic BPF, and the layout of struct seccomp_data.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGS_AT, _ARG_BYTES = 0, 4, 16, 8
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

#: Flags that create namespaces; in `clone`, 0x80 is a part of the exit signal, in `unshare` a time namespace.
_NAMESPACES: Final = 0x7E020000
_TIME_NAMESPACE: Final = 0x80
#: Bits of a mode that let others run a file as its owner.
_SET_ID: Final = 0o6000
#: Flags of `open` that create a file, and so make its mode count.
_CREATES: Final = 0o100 | 0o20000000
_TTY_INPUT: Final = (0x5412, 0x541C)
#: Local, IPv4, IPv6 and netlink, which ``getifaddrs`` uses. Others, such as vsock, have no namespace.
_FAMILIES: Final = (1, 2, 10, 16)


class _Call(NamedTuple):
    """Number of a call on each machine, None where there is none, and the error that it gets."""

    x86_64: int | None
    aarch64: int | None
    error: int = errno.EPERM


#: Refused whatever the arguments.
_CALLS: Final = {
    # Keys and tickets of the user, in keyrings that no namespace separates.
    "add_key": _Call(248, 217, errno.ENOSYS),
    "request_key": _Call(249, 218, errno.ENOSYS),
    "keyctl": _Call(250, 219, errno.ENOSYS),
    # Namespaces and mounts: a nested user namespace has all capabilities in it, such as to mount control groups.
    "setns": _Call(308, 268),
    "mount": _Call(165, 40),
    "umount2": _Call(166, 39),
    "pivot_root": _Call(155, 41),
    "chroot": _Call(161, 51),
    "open_tree": _Call(428, 428),
    "move_mount": _Call(429, 429),
    "fsopen": _Call(430, 430),
    "fsconfig": _Call(431, 431),
    "fsmount": _Call(432, 432),
    "fspick": _Call(433, 433),
    "mount_setattr": _Call(442, 442),
    "open_tree_attr": _Call(467, 467),
    # Their flags are in memory, which a filter cannot read. Libraries fall back to `clone` and `openat`.
    "clone3": _Call(435, 435, errno.ENOSYS),
    "openat2": _Call(437, 437, errno.ENOSYS),
    # Opens files by number, past all mounts.
    "open_by_handle_at": _Call(304, 265),
    # Run calls in the kernel, unseen by filters.
    "io_uring_setup": _Call(425, 425, errno.ENOSYS),
    "io_uring_enter": _Call(426, 426, errno.ENOSYS),
    "io_uring_register": _Call(427, 427, errno.ENOSYS),
    # Parts of the kernel with a history of holes.
    "bpf": _Call(321, 280),
    "perf_event_open": _Call(298, 241),
    "userfaultfd": _Call(323, 282, errno.ENOSYS),
    "fanotify_init": _Call(300, 262),
    "modify_ldt": _Call(154, None),
    "iopl": _Call(172, None),
    "ioperm": _Call(173, None),
    # The machine as a whole.
    "init_module": _Call(175, 105),
    "finit_module": _Call(313, 273),
    "delete_module": _Call(176, 106),
    "kexec_load": _Call(246, 104),
    "kexec_file_load": _Call(320, 294),
    "reboot": _Call(169, 142),
    "swapon": _Call(167, 224),
    "swapoff": _Call(168, 225),
    "acct": _Call(163, 89),
    "quotactl": _Call(179, 60),
    "syslog": _Call(103, 116),
    "vhangup": _Call(153, 58),
}
#: Calls with a file mode: the position of the mode, and of the flags if only some of them create a file.
_MODES: Final = {
    "chmod": (_Call(90, None), 1, None),
    "fchmod": (_Call(91, 52), 1, None),
    "fchmodat": (_Call(268, 53), 2, None),
    "fchmodat2": (_Call(452, 452), 2, None),
    "creat": (_Call(85, None), 1, None),
    "open": (_Call(2, None), 2, 1),
    "openat": (_Call(257, 56), 3, 2),
    "mknod": (_Call(133, None), 1, None),
    "mknodat": (_Call(259, 33), 2, None),
}
_CLONE, _UNSHARE = _Call(56, 220), _Call(272, 97)
_IOCTL, _SOCKET = _Call(16, 29), _Call(41, 198)


@cache
def seccomp_filter(machine: str = "") -> bytes:
    """Return the filter for this machine, or the one named; b"" if there is none for it."""
    known = _MACHINES.get(machine or os.uname().machine)
    if known is None:
        return b""
    arch, column = known
    program = _Program(column)
    program.load(_ARCH_AT)
    program.unless(_EQUAL, arch, [(_RETURN, _KILL)])  # Other numbers for the same calls, such as of 32-bit programs.
    program.load(_NUMBER_AT)
    if column == 0:
        program.when(_AT_LEAST, _X32, [(_RETURN, _REFUSE | errno.ENOSYS)])
    for call in _CALLS.values():
        program.call(call, [(_RETURN, _REFUSE | call.error)])
    refuse = (_RETURN, _REFUSE | errno.EPERM)
    for call, mode, flags in _MODES.values():
        asked = [] if flags is None else [_arg(flags), (_ANY_BIT, _CREATES)]
        program.call(call, [*asked, _arg(mode), (_ANY_BIT, _SET_ID), refuse])
    program.call(_CLONE, [_arg(0), (_ANY_BIT, _NAMESPACES), refuse])
    program.call(_UNSHARE, [_arg(0), (_ANY_BIT, _NAMESPACES | _TIME_NAMESPACE), refuse])
    program.one_of(_IOCTL, 1, _TTY_INPUT, then=_REFUSE | errno.EPERM, otherwise=_ALLOW)
    program.one_of(_SOCKET, 0, _FAMILIES, then=_ALLOW, otherwise=_REFUSE | errno.EAFNOSUPPORT)
    program.add(_RETURN, _ALLOW)
    return program.encode()


def _arg(position: int) -> tuple[int, int]:
    """Return the load of an argument's lower half, in which all that is checked lies."""
    return _LOAD, _ARGS_AT + _ARG_BYTES * position


class _Program:
    """Filter in the making. Each call is judged completely where it is recognised, so jumps stay short."""

    def __init__(self, column: int) -> None:
        self._column = column
        self._code: list[tuple[int, int, int, int]] = []

    def add(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append((code, if_true, if_false, value))

    def load(self, offset: int) -> None:
        self.add(_LOAD, offset)

    def when(self, test: int, value: int, steps: list[tuple[int, int]]) -> None:
        """Take ``steps`` if the test holds. A step that is a test itself leads on, or else to an allowed call."""
        self.add(test, value, 0, len(steps))
        self._steps(steps)

    def unless(self, test: int, value: int, steps: list[tuple[int, int]]) -> None:
        self.add(test, value, len(steps), 0)
        self._steps(steps)

    def call(self, call: _Call, steps: list[tuple[int, int]]) -> None:
        """Take ``steps`` for a call, if this machine has it."""
        number = call[self._column]
        if number is None:
            return
        has_tests = any(code == _ANY_BIT for code, _ in steps)
        self.when(_EQUAL, number, [*steps, *([(_RETURN, _ALLOW)] if has_tests else [])])

    def one_of(self, call: _Call, position: int, values: tuple[int, ...], *, then: int, otherwise: int) -> None:
        """Judge a call by whether an argument is one of ``values``."""
        number = call[self._column]
        assert number is not None
        self.add(_EQUAL, number, 0, len(values) + 3)
        self.add(*_arg(position))
        for at, value in enumerate(values):
            self.add(_EQUAL, value, len(values) - at, 0)
        self.add(_RETURN, otherwise)
        self.add(_RETURN, then)

    def encode(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *line) for line in self._code)

    def _steps(self, steps: list[tuple[int, int]]) -> None:
        for at, (code, value) in enumerate(steps):
            # A test that fails goes to the last step, which allows the call.
            self.add(code, value, 0, len(steps) - at - 2 if code == _ANY_BIT else 0)
