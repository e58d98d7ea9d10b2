"""Sandbox of commands under `--lock`: they see their directory and the system's programs.

Built by bubblewrap from namespaces, with a filter of system calls. Processes in it see and signal none outside, and
have no network unless that is shared.

The filter is a table of system calls that a program does not need to work on its directory: each is a way around the
sandbox, or a part of the kernel that has often been one. It is written as classic BPF: the table is short, and a
library would be one more dependency of the part that must not fail.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from zot.config.private_paths import PrivatePath, make_missing
from zot.errors import ToolFailed
from zot.tools.base import CannotConfine
from zot.tools.environment import ENVIRONMENT, PROXIES
from zot.tools.guardian_process.spawn_request import SECCOMP_FD
from zot.tools.mounts import CannotHide, locked_mounts
from zot.tools.process import Processes, Program
from zot.tools.protection import ProtectedFiles

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


log = logging.getLogger("zot")

#: Capabilities that root keeps, for files of other users. All others, such as mounting, are dropped.
_ROOT_KEEPS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
#: Time for an empty command to run in a sandbox.
_TRIAL_S = 10.0
_NOT_RUN = "not run: under --lock, commands need bubblewrap"
_NO_NET = "--unshare-net"
#: A command that tries a sandbox.
_NOTHING = ("/bin/sh", "-c", ":")


class Protection(NamedTuple):
    """A protection that not every bubblewrap or kernel has. ``lost`` says what commands can do without it."""

    key: str
    name: str
    options: tuple[str, ...]
    lost: str


USER_NAMESPACE: Final = Protection(
    "userns",
    "user namespace",
    ("--unshare-user", "--disable-userns"),
    "commands can create user namespaces of their own",
)
CGROUP_NAMESPACE: Final = Protection(
    "cgroups", "control group namespace", ("--unshare-cgroup",), "commands see the control groups of the system"
)
SYSTEM_CALLS: Final = Protection(
    "seccomp",
    "system call filter",
    ("--seccomp", str(SECCOMP_FD)),
    "commands can use all system calls, keyrings among them",
)
PROTECTIONS: Final = (USER_NAMESPACE, CGROUP_NAMESPACE, SYSTEM_CALLS)


class SandboxSupport(NamedTuple):
    """Protections that work on this machine, and those that do not."""

    works: tuple[Protection, ...]
    lacking: tuple[Protection, ...] = ()


class Sandbox:
    """Sandbox for commands.

    ``hidden`` paths are empty in it, except for ``shown`` ones. ``protected`` are paths in the working directory that
    stay as they are, in addition to those that zot knows. ``net`` shares the network; ``variables`` are passed in
    addition to ENVIRONMENT.
    """

    def __init__(
        self,
        *,
        hidden: Sequence[PrivatePath] = (),
        shown: Sequence[str] = (),
        protected: Sequence[str] = (),
        net: bool = False,
        variables: Sequence[str] = (),
    ) -> None:
        self._hidden = hidden
        self._more_protected = protected
        self._protected: ProtectedFiles | None = None
        self._has_jobs = False
        self._shown = shown
        self.net = net
        self._variables = frozenset(variables)
        self._support: SandboxSupport | None = None

    async def confine(self, command: Program, processes: Processes) -> Program:
        """Return the command that runs ``command`` in this sandbox, which ``processes`` try at first.

        Raise CannotConfine if this system cannot do it, or OSError.
        """
        if own := next((one.around for one in self._hidden if one.around), ""):
            # A mount hides a file that exists. One that is missing, such as trust.json, the command could create.
            raise ToolFailed(f"not run: under --lock no command runs in {own}, where zot keeps its own files")
        bwrap = find_bwrap(command.env.get("PATH"), outside=[command.cwd])
        if bwrap is None:
            reason = why_no_bwrap(command.env.get("PATH"), outside=[command.cwd])
            raise CannotConfine(f"{_NOT_RUN}, and {reason}", reason)
        if self._protected is None:
            self._protected = ProtectedFiles(command.cwd, self._more_protected)
            await asyncio.to_thread(self._protected.survey)
        if self._support is None:
            self._support = await self._supported(command, bwrap, processes)
        if self._has_jobs:
            await self.sweep()
        return self._wrap(command, bwrap, self._support)._replace(env=self._environment(command.env))

    async def sweep(self, *, is_over: bool = True) -> list[str]:
        """Move away protected paths that commands have created since the last one began; return them.

        Unless the command ``is_over`` with all its jobs, what these create later is moved away before the next command.
        """
        self._has_jobs |= not is_over
        return [] if self._protected is None else await asyncio.to_thread(self._protected.sweep)

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        passed = ENVIRONMENT | self._variables | (PROXIES if self.net else frozenset())
        return {name: value for name, value in env.items() if name in passed or name.startswith("LC_")}

    def _wrap(self, command: Program, bwrap: str, support: SandboxSupport) -> Program:
        cwd, path, home = command.cwd, command.env.get("PATH", os.defpath), command.env.get("HOME", "")
        make_missing(self._hidden, [os.path.realpath(cwd)])
        protected = {} if self._protected is None else self._protected.mounts()
        try:
            mounts = locked_mounts(
                cwd, path=path, home=home, hidden=self._hidden, shown=self._shown, protected=protected
            )
        except CannotHide as problem:
            raise ToolFailed(f"not run: under --lock, {problem}") from None
        options, support = () if self.net else (_NO_NET,), for_files_of([cwd], support)
        return sandboxed(command, bwrap=bwrap, mounts=mounts, options=options, support=support)

    async def _supported(self, command: Program, bwrap: str, processes: Processes) -> SandboxSupport:
        """Find out what works here for ``command``. Raise CannotConfine if nothing works."""
        found = await find_support(bwrap, processes, command.env, () if self.net else (_NO_NET,))
        if isinstance(found, str):
            advice = ""
            if not self.net and not isinstance(await find_support(bwrap, processes, command.env), str):
                advice = "; --lock-net runs commands with the network"
            raise CannotConfine(f"{_NOT_RUN}, which {found}{advice}", f"bubblewrap {found}{advice}")
        # With the real mounts, one of which may be what does not work.
        trial = self._wrap(command._replace(argv=_NOTHING), bwrap, found)
        if reason := await failure(trial, processes):
            raise CannotConfine(f"{_NOT_RUN}, which {reason}", f"bubblewrap {reason}")
        return found


#: Protections that were found to work, by the path and options of bubblewrap.
_found_support: dict[tuple[str, ...], SandboxSupport] = {}


async def find_support(
    bwrap: str, processes: Processes, env: Mapping[str, str], options: Sequence[str] = ()
) -> SandboxSupport | str:
    """Return which protections this bubblewrap has with ``options``, or why it cannot confine commands.

    Tries once per process until it works, and warns of those that are lacking.
    """
    key = (bwrap, *options)
    if key not in _found_support:
        found = await _try_protections(bwrap, processes, env, options)
        if isinstance(found, str):
            return found
        _found_support[key] = found
        for one in found.lacking:
            log.warning("this system's bubblewrap lacks the %s: %s", one.name, one.lost)
    return _found_support[key]


async def _try_protections(
    bwrap: str, processes: Processes, env: Mapping[str, str], options: Sequence[str]
) -> SandboxSupport | str:
    async def problem(*works: Protection) -> str:
        everything = [("--ro-bind", "/", "/"), ("--dev", "/dev"), ("--proc", "/proc")]
        nothing, support = Program(_NOTHING, "/", env), SandboxSupport(works)
        trial = sandboxed(nothing, bwrap=bwrap, mounts=everything, options=options, support=support)
        return await failure(trial, processes)

    known = tuple(one for one in PROTECTIONS if one is not SYSTEM_CALLS or seccomp_filter())
    if len(known) == len(PROTECTIONS) and not await problem(*known):
        return SandboxSupport(known)
    if reason := await problem():
        return reason
    works: tuple[Protection, ...] = ()
    for one in known:
        if not await problem(*works, one):
            works += (one,)
    return SandboxSupport(works, tuple(one for one in PROTECTIONS if one not in works))


def for_files_of(places: Sequence[str], support: SandboxSupport) -> SandboxSupport:
    """Return ``support`` for commands that write to ``places``.

    In a user namespace, root has no rights to the files of other users. Where they own the place, root does without
    the namespace; the system call filter still refuses nested ones.
    """
    if os.geteuid() != 0 or all(_owner(place) == 0 for place in places):
        return support
    return SandboxSupport(tuple(one for one in support.works if one is not USER_NAMESPACE), support.lacking)


def _owner(place: str) -> int:
    try:
        return os.stat(place).st_uid
    except OSError:
        return 0


async def failure(command: Program, processes: Processes) -> str:
    """Run an empty ``command`` in a sandbox, and return why it fails; "" if it works.

    Needed because a kernel or a container may forbid sandboxes, which looks like a failure of the command itself.
    """
    child = await processes.spawn(command)
    said = b""
    try:
        async with asyncio.timeout(_TRIAL_S):
            while data := await child.read():
                said += data
    except TimeoutError:
        return f"does not answer within {_TRIAL_S:g} s"
    finally:
        await child.end(grace_s=0)
        child.close()
    if child.status() == 0:
        return ""
    return f"does not work here: {said.decode(errors='replace').strip() or f'it exits with {child.status()}'}"


def find_bwrap(path: str | None, *, outside: Iterable[str]) -> str | None:
    """Return the path of bubblewrap on ``path``, a list as in the variable PATH; None if there is none.

    Ignores one inside of a directory in ``outside``, where a confined program could have put it.
    """
    around = [*outside]
    return next((found for found in _bwraps(path) if not _around(found, around)), None)


def why_no_bwrap(path: str | None, *, outside: Iterable[str]) -> str:
    """Return why `find_bwrap` finds none."""
    around = [*outside]
    for found in _bwraps(path):
        if place := _around(found, around):
            return f"{found} is not used: it is in {place}, where a confined program could have put it"
    return "bwrap is not on the PATH"


def _bwraps(path: str | None) -> Iterator[str]:
    """Yield the real path of every bubblewrap on ``path``."""
    for directory in (path or os.defpath).split(os.pathsep):
        found = os.path.realpath(os.path.join(directory, "bwrap"))
        if os.path.isabs(directory) and os.path.isfile(found) and os.access(found, os.X_OK):
            yield found


def _around(path: str, directories: Sequence[str]) -> str:
    """Return the directory that contains ``path``; "" if none does."""
    return next((place for place in directories if path.startswith(os.path.join(os.path.realpath(place), ""))), "")


def sandboxed(
    command: Program,
    *,
    bwrap: str,
    mounts: Sequence[tuple[str, ...]],
    options: Sequence[str] = (),
    support: SandboxSupport,
) -> Program:
    """Return the command that runs ``command`` in a sandbox where it sees only ``mounts``.

    ``options`` are passed to bubblewrap. By default it does not die with its parent, since background jobs outlive the
    command; the command's `Processes` ends it.
    """
    words: list[str | bytes] = [bwrap, "--unshare-pid", "--unshare-ipc", *options, "--cap-drop", "ALL"]
    for protection in support.works:
        words += protection.options
    if os.geteuid() == 0:
        for capability in _ROOT_KEEPS:
            words += ["--cap-add", capability]
    for mount in mounts:
        words += mount
    seccomp = seccomp_filter() if SYSTEM_CALLS in support.works else b""
    words += ["--setenv", "TMPDIR", "/tmp", "--chdir", command.cwd, "--", *command.argv]
    return command._replace(argv=words, seccomp=seccomp)
