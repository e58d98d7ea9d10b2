"""Sandbox of commands under `--lock`: they see their directory and the system's programs.

Built by bubblewrap from namespaces. Processes in it see and signal none outside; the network is shared.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from zot.errors import ToolFailed
from zot.files import make_directory
from zot.tools.base import ToolContext
from zot.tools.mounts import locked_mounts
from zot.tools.process import Processes

#: Capabilities that root keeps, for files of other users. All others, such as mounting, are dropped.
_ROOT_KEEPS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
#: Time for an empty command to run in a sandbox.
_TRIAL_S = 10.0
_NOT_RUN = "not run: under --lock commands need bubblewrap"


class Sandbox:
    """Sandbox for commands. ``hidden`` directories are empty in it, except for ``shown`` ones."""

    def __init__(self, *, hidden: Sequence[str] = (), shown: Sequence[str] = ()) -> None:
        self._hidden = hidden
        self._shown = shown
        self._works = False

    async def confine(
        self, argv: Sequence[str | bytes], processes: Processes, context: ToolContext
    ) -> list[str | bytes]:
        """Return the command line that runs ``argv`` confined. Raise ToolFailed if this system cannot confine it."""
        bwrap = find_bwrap(context.env.get("PATH"), outside=[context.cwd])
        if bwrap is None:
            reason = why_no_bwrap(context.env.get("PATH"), outside=[context.cwd])
            raise ToolFailed(f"{_NOT_RUN}, and {reason}")
        if not self._works:
            await self._try(bwrap, processes, context)
        return self._wrap(argv, bwrap, context)

    def _wrap(self, argv: Sequence[str | bytes], bwrap: str, context: ToolContext) -> list[str | bytes]:
        self._make_hidden(context.cwd)
        path, home = context.env.get("PATH", os.defpath), context.env.get("HOME", "")
        mounts = locked_mounts(context.cwd, path=path, home=home, hidden=self._hidden, shown=self._shown)
        return sandboxed(argv, bwrap=bwrap, cwd=context.cwd, mounts=mounts)

    def _make_hidden(self, cwd: str) -> None:
        """Create missing hidden directories in the working directory, which the command could create otherwise."""
        fence = os.path.join(os.path.realpath(cwd), "")
        for directory in map(os.path.realpath, self._hidden):
            if directory.startswith(fence):
                with suppress(OSError):  # if zot cannot create it, the command cannot either
                    make_directory(directory)

    async def _try(self, bwrap: str, processes: Processes, context: ToolContext) -> None:
        argv = self._wrap(["/bin/sh", "-c", ":"], bwrap, context)
        if reason := await failure(argv, processes, cwd=context.cwd, env=context.env, owners=context.owners):
            raise ToolFailed(f"{_NOT_RUN}, which {reason}")
        self._works = True


async def trial(bwrap: str, processes: Processes, env: Mapping[str, str], options: Sequence[str] = ()) -> str:
    """Return why this bubblewrap cannot confine commands with these ``options``; "" if it can."""
    everything = [("--ro-bind", "/", "/"), ("--dev", "/dev"), ("--proc", "/proc")]
    argv = sandboxed(["/bin/sh", "-c", ":"], bwrap=bwrap, cwd="/", mounts=everything, options=options)
    return await failure(argv, processes, cwd="/", env=env)


async def failure(
    argv: Sequence[str | bytes], processes: Processes, *, cwd: str, env: Mapping[str, str], owners: Sequence[str] = ()
) -> str:
    """Run ``argv``, an empty command in a sandbox, and return why it fails; "" if it works.

    Needed because a kernel or a container may forbid sandboxes, which looks like a failure of the command itself.
    """
    child = await processes.spawn(argv, cwd=cwd, env=env, owners=owners)
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
            return f"{found} does not count: it is in {place}, where what is confined could have put it"
    return "there is no bwrap on the PATH"


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
    argv: Sequence[str | bytes],
    *,
    bwrap: str,
    cwd: str,
    mounts: Sequence[tuple[str, ...]],
    options: Sequence[str] = (),
) -> list[str | bytes]:
    """Return the command line that runs ``argv`` in ``cwd`` and sees only ``mounts``.

    ``options`` are passed to bubblewrap. By default it does not die with its parent, since background jobs outlive the
    command; the command's `Processes` ends it.
    """
    words: list[str | bytes] = [bwrap, "--unshare-pid", "--unshare-ipc", *options, "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        for capability in _ROOT_KEEPS:
            words += ["--cap-add", capability]
    for mount in mounts:
        words += mount
    return [*words, "--setenv", "TMPDIR", "/tmp", "--chdir", cwd, "--", *argv]
