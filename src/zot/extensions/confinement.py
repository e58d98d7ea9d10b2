"""Extensions that declare scopes are held to them: bubblewrap shows them what these name, and nothing else.

What is said with frames is held to its scopes by the `peer`, in any case.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from zot.errors import UserError
from zot.extensions.manifest import Manifest
from zot.extensions.permissions import Permissions, allows
from zot.extensions.reach import Ground, reach
from zot.tools.process import Processes
from zot.tools.sandbox import failure, find_bwrap, sandboxed

#: What every program needs to find others, its user's language and a place for what is temporary.
_ALWAYS = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR"})
_NEEDED = "it declares permissions, which take bubblewrap"
_ADVICE = "; --unsandboxed-ext runs it without"


class NoSandbox(UserError):
    """Nothing can be confined on this system: there is no bubblewrap, or it does not work."""


class Confinement:
    """Confines the extensions of one session. What works once is not tried again."""

    def __init__(
        self, processes: Callable[[], Processes], env: Mapping[str, str], *, cwd: str, zot_home: str | None
    ) -> None:
        self._processes = processes
        self._env = env
        self._cwd = cwd
        self._zot_home = zot_home
        self._works: set[tuple[str, ...]] = set()
        self._trying = asyncio.Lock()

    async def confine(
        self, argv: Sequence[str], directory: str, manifest: Manifest, permissions: Permissions
    ) -> list[str | bytes]:
        """Return the command line that runs an extension confined.

        Raise NoSandbox if nothing can be confined here, or UserError if that is due to what it wants.
        """
        env = self._env
        if problem := refusal(manifest, directory, env, cwd=self._cwd):
            raise NoSandbox(problem)
        ground = Ground(directory, self._cwd, self._zot_home, env.get("HOME", ""), env.get("PATH") or os.defpath)
        try:
            # In a thread: it looks at many files, the first time at all that say how the system is set up.
            seen = await asyncio.to_thread(reach, manifest, permissions, ground)
        except OSError as failed:
            raise UserError(str(failed)) from None
        bwrap = find_bwrap(env.get("PATH"), outside=[self._cwd, directory, *seen.writable])
        if bwrap is None:
            raise NoSandbox(_without_bwrap())
        options = ("--die-with-parent", *(() if permissions.net else ("--unshare-net",)))
        await self._try(bwrap, options)
        return sandboxed(argv, bwrap=bwrap, cwd=directory, mounts=seen.mounts, options=options)

    async def _try(self, bwrap: str, options: tuple[str, ...]) -> None:
        async with self._trying:
            if (bwrap, *options) in self._works:
                return
            everything = [("--ro-bind", "/", "/"), ("--dev", "/dev"), ("--proc", "/proc")]
            argv = sandboxed(["/bin/sh", "-c", ":"], bwrap=bwrap, cwd="/", mounts=everything, options=options)
            if reason := await failure(argv, self._processes(), cwd="/", env=self._env):
                raise NoSandbox(f"{_NEEDED}, which {reason}{_ADVICE}")
            self._works.add((bwrap, *options))


def environment(env: Mapping[str, str], permissions: Permissions | None) -> Mapping[str, str]:
    """Return what an extension may see of an environment: all if it declares nothing."""
    if permissions is None:
        return env
    return {name: value for name, value in env.items() if name in _ALWAYS or allows(permissions.env, name)}


def refusal(manifest: Manifest, directory: str, env: Mapping[str, str], *, cwd: str) -> str:
    """Return why an extension cannot be started here, as far as can be seen without trying; "" if it can."""
    if manifest.permissions is None or find_bwrap(env.get("PATH"), outside=[cwd, directory]) is not None:
        return ""
    return _without_bwrap()


def _without_bwrap() -> str:
    return f"{_NEEDED}, and there is no bwrap on the PATH{_ADVICE}"
