"""Extensions that declare scopes are held to them: bubblewrap shows them what these name, and nothing else.

What is said with frames is held to its scopes by the `peer`, in any case.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from zot.errors import UserError
from zot.extensions.confinement import Ground, reach, written
from zot.extensions.manifest import Manifest
from zot.extensions.permissions import Permissions, allows
from zot.tools.process import Processes
from zot.tools.sandbox import find_bwrap, sandboxed, trial, why_no_bwrap

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
        self, argv: Sequence[str | bytes], directory: str, manifest: Manifest, permissions: Permissions
    ) -> list[str | bytes]:
        """Return the command line that runs an extension confined.

        Raise NoSandbox if nothing can be confined here, or UserError if that is due to what it wants.
        """
        env = self._env
        if problem := _without_bwrap(env, self._cwd, directory):
            raise NoSandbox(problem)
        ground = _ground(directory, env, self._cwd, self._zot_home)
        try:
            # In a thread: it looks at many files, the first time at all that say how the system is set up.
            seen = await asyncio.to_thread(reach, manifest, permissions, ground)
        except OSError as failed:
            raise UserError(str(failed)) from None
        bwrap = find_bwrap(env.get("PATH"), outside=[self._cwd, directory, *seen.writable])
        if bwrap is None:
            raise UserError(_over_bwrap(env, seen.writable))
        await self._try(bwrap, options := _options(permissions))
        return sandboxed(argv, bwrap=bwrap, cwd=directory, mounts=seen.mounts, options=options)

    async def refusal(self, permissions: Permissions, directory: str) -> str:
        """Return why the bubblewrap that there is confines nothing; "" if it does, or there is none."""
        bwrap = find_bwrap(self._env.get("PATH"), outside=[self._cwd, directory])
        try:
            if bwrap is not None:
                await self._try(bwrap, _options(permissions))
        except NoSandbox as problem:
            return str(problem)
        return ""

    async def _try(self, bwrap: str, options: tuple[str, ...]) -> None:
        async with self._trying:
            if (bwrap, *options) in self._works:
                return
            if reason := await trial(bwrap, self._processes(), self._env, options):
                raise NoSandbox(f"{_NEEDED}, which {reason}{_ADVICE}")
            self._works.add((bwrap, *options))


def _options(permissions: Permissions) -> tuple[str, ...]:
    return ("--die-with-parent", *(() if permissions.net else ("--unshare-net",)))


def environment(env: Mapping[str, str], permissions: Permissions | None) -> Mapping[str, str]:
    """Return what an extension may see of an environment: all if it declares nothing."""
    if permissions is None:
        return env
    return {name: value for name, value in env.items() if name in _ALWAYS or allows(permissions.env, name)}


def refusal(manifest: Manifest, directory: str, env: Mapping[str, str], *, cwd: str) -> str:
    """Return why an extension cannot be started here, as far as can be seen without trying; "" if it can."""
    if manifest.permissions is None:
        return ""
    if problem := _without_bwrap(env, cwd, directory):
        return problem
    try:
        writable = [*written(manifest.permissions, _ground(directory, env, cwd, None))]
    except UserError as wrong:
        return str(wrong)
    is_held = find_bwrap(env.get("PATH"), outside=[cwd, directory, *writable]) is not None
    return "" if is_held else _over_bwrap(env, writable)


def _ground(directory: str, env: Mapping[str, str], cwd: str, zot_home: str | None) -> Ground:
    return Ground(directory, cwd, zot_home, env.get("HOME", ""), env.get("PATH") or os.defpath)


def _without_bwrap(env: Mapping[str, str], cwd: str, directory: str) -> str:
    """Return why nothing can be confined here, "" if there is a bubblewrap for it."""
    path = env.get("PATH")
    if find_bwrap(path, outside=[cwd, directory]) is not None:
        return ""
    # Where it would help to go elsewhere, nobody should be led to do without.
    is_there = find_bwrap(path, outside=[directory]) is not None
    advice = "; start zot in another directory" if is_there else _ADVICE
    return f"{_NEEDED}, and {why_no_bwrap(path, outside=[cwd, directory])}{advice}"


def _over_bwrap(env: Mapping[str, str], writable: Sequence[str]) -> str:
    return f"permissions: fs.write: {why_no_bwrap(env.get('PATH'), outside=writable)}"
