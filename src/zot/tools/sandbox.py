"""The sandbox that `--lock` puts commands in: they reach their directory and the programs of the system.

Bubblewrap builds it from namespaces. Nothing in it sees or signals a process outside; the network is as it is outside.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from zot.errors import ToolFailed
from zot.files import make_directory
from zot.tools.base import ToolContext
from zot.tools.mounts import view
from zot.tools.process import Processes

#: What a super-user needs for files that belong to others. Everything else, such as mounting, is taken away.
_ROOT_KEEPS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER")
#: How long an empty command may take to begin and end in a sandbox.
_TRIAL_S = 10.0
_NOT_RUN = "not run: under --lock commands need bubblewrap"


class Sandbox:
    """Puts commands into a sandbox. What is ``hidden`` is empty there, except for what is ``shown``."""

    def __init__(self, *, hidden: Sequence[str] = (), shown: Sequence[str] = ()) -> None:
        self._hidden = hidden
        self._shown = shown
        self._works = False

    async def confine(
        self, argv: Sequence[str | bytes], processes: Processes, context: ToolContext
    ) -> list[str | bytes]:
        """Return the command line that runs ``argv`` confined. Raise ToolFailed if nothing can be confined here."""
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
        mounts = view(context.cwd, path=path, home=home, hidden=self._hidden, shown=self._shown)
        return sandboxed(argv, bwrap=bwrap, cwd=context.cwd, mounts=mounts)

    def _make_hidden(self, cwd: str) -> None:
        """Make what is to be hidden in the working directory and is not there: the command could put its own there."""
        fence = os.path.join(os.path.realpath(cwd), "")
        for directory in map(os.path.realpath, self._hidden):
            if directory.startswith(fence):
                with suppress(OSError):  # what we cannot make, the command cannot either
                    make_directory(directory)

    async def _try(self, bwrap: str, processes: Processes, context: ToolContext) -> None:
        argv = self._wrap(["/bin/sh", "-c", ":"], bwrap, context)
        if reason := await failure(argv, processes, cwd=context.cwd, env=context.env, owners=context.owners):
            raise ToolFailed(f"{_NOT_RUN}, which {reason}")
        self._works = True


async def trial(bwrap: str, processes: Processes, env: Mapping[str, str], options: Sequence[str] = ()) -> str:
    """Return why this bubblewrap cannot confine anything here, with these ``options``; "" if it can."""
    everything = [("--ro-bind", "/", "/"), ("--dev", "/dev"), ("--proc", "/proc")]
    argv = sandboxed(["/bin/sh", "-c", ":"], bwrap=bwrap, cwd="/", mounts=everything, options=options)
    return await failure(argv, processes, cwd="/", env=env)


async def failure(
    argv: Sequence[str | bytes], processes: Processes, *, cwd: str, env: Mapping[str, str], owners: Sequence[str] = ()
) -> str:
    """Run ``argv``, an empty command in a sandbox, and return why that does not work; "" if it does.

    A kernel or a container may forbid it, and the failure of a command itself looks the same.
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
    """Return where bubblewrap is, looking in ``path`` as in the variable of that name; None if it is nowhere.

    One inside of a directory in ``outside`` does not count: who is to be confined could have put it there.
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
    """Yield every bubblewrap in ``path``, wherever links lead."""
    for directory in (path or os.defpath).split(os.pathsep):
        found = os.path.realpath(os.path.join(directory, "bwrap"))
        if os.path.isabs(directory) and os.path.isfile(found) and os.access(found, os.X_OK):
            yield found


def _around(path: str, directories: Sequence[str]) -> str:
    """Return which of the directories ``path`` is in, "" if in none."""
    return next((place for place in directories if path.startswith(os.path.join(os.path.realpath(place), ""))), "")


def sandboxed(
    argv: Sequence[str | bytes],
    *,
    bwrap: str,
    cwd: str,
    mounts: Sequence[tuple[str, ...]],
    options: Sequence[str] = (),
) -> list[str | bytes]:
    """Return the command line that runs ``argv`` in ``cwd`` and sees nothing but ``mounts``.

    ``options`` are more for bubblewrap. Without them it does not die with its parent, since a background job outlives
    the command; whoever keeps the command ends it.
    """
    words: list[str | bytes] = [bwrap, "--unshare-pid", "--unshare-ipc", *options, "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        for capability in _ROOT_KEEPS:
            words += ["--cap-add", capability]
    for mount in mounts:
        words += mount
    return [*words, "--setenv", "TMPDIR", "/tmp", "--chdir", cwd, "--", *argv]
