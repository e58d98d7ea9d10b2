"""The tools of one session, the skills it knows, and what its commands have running."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from zot.config import Config, tool_names, zot_home

if TYPE_CHECKING:
    from zot.skills import SkillFile
    from zot.tools.base import Tool
    from zot.tools.paths import Paths
    from zot.tools.process import Processes
    from zot.tools.restore import Restorer
    from zot.tools.spill import Spills

log = logging.getLogger("zot")

#: What is told to end because its run was aborted or its session closed has this long.
_GRACE_S = 0.5


class Toolbox:
    """What a session works with. ``key`` is the session's; only our ``own_process`` may be shut off from others."""

    def __init__(self, config: Config, *, cwd: str, key: str, own_process: bool) -> None:
        from zot.tools.seen import Seen

        self._config = config
        self._own_process = own_process
        self._cwd = cwd
        self._home = zot_home(config.environment)
        self._key = key
        self._seen = Seen()
        self._processes: Processes | None = None
        self._spills: Spills | None = None
        names = tool_names(config)
        skills = self._skills() if "skill" in names else ()
        makers = self._makers(skills)
        self.tools: list[Tool] = [makers[name]() for name in names]
        self.manifest = _manifest(skills)

    def files(self) -> Restorer:
        """Return who can put back what the tools have changed, where they may."""
        from zot.tools.restore import Restorer

        return Restorer(self._writable, self._seen)

    async def end(self, owner: str) -> None:
        """End what was started for ``owner``, a run or the session."""
        if self._processes is not None:
            await self._processes.end_all(owner, grace_s=_GRACE_S)

    async def close(self) -> None:
        """End everything and remove what was kept only for the session. Any number of times."""
        if self._processes is not None:
            await self._processes.close()
        if self._spills is not None:
            self._spills.close()

    def kill(self) -> None:
        """Kill everything that commands have running, at once and from any thread. Nothing can be started any more."""
        if self._processes is not None:
            self._processes.kill_all()

    def _makers(self, skills: Sequence[SkillFile]) -> Mapping[str, Callable[[], Tool]]:
        from zot.tools.edit import Edit
        from zot.tools.read import Read
        from zot.tools.skill import Skill
        from zot.tools.write import Write

        shown = self._shown(skills)
        paths, to_read = self._paths(shown)
        self._writable, seen = paths, self._seen
        return {
            "bash": lambda: self._bash(shown),
            "edit": lambda: Edit(paths, seen),
            "read": lambda: Read(to_read, seen),
            "skill": lambda: Skill(skills),
            "write": lambda: Write(paths, seen),
        }

    @property
    def _hidden(self) -> tuple[str, ...]:
        """What locked tools are kept from, wherever it is."""
        return () if self._home is None else (self._home,)

    def _shown(self, skills: Sequence[SkillFile]) -> list[str]:
        """Return what locked tools may nevertheless read: the files of skills that they would not reach otherwise."""
        directories = [skill.directory for skill in skills if skill.directory is not None]
        return [one for one in directories if not _is_in(one, [self._cwd]) or _is_in(one, self._hidden)]

    def _paths(self, shown: Sequence[str]) -> tuple[Paths, Paths]:
        """Return where paths may lead, and where they may lead to be read."""
        from zot.tools.lock import Lock, LockWithMore
        from zot.tools.paths import Anywhere

        if not self._config.lock:
            return Anywhere(), Anywhere()
        lock = Lock(self._cwd, hidden=self._hidden)
        spilled = [os.path.join(home, "spill", self._key) for home in self._hidden]
        return lock, LockWithMore(lock, [*shown, *spilled])

    def _bash(self, shown: Sequence[str]) -> Tool:
        from zot.tools.bash import Bash
        from zot.tools.process import open_processes
        from zot.tools.spill import Spills

        self._processes = open_processes(protected=self._own_process)
        if self._home is not None:
            self._spills = Spills(os.path.join(self._home, "spill"), self._key)
        return Bash(
            self._processes,
            spills=self._spills,
            lock=self._config.lock,
            hidden=self._hidden,
            shown=shown,
            # Where time stands still nothing takes any: the model is told the same in every run.
            clock=time.monotonic if self._config.frozen_time is None else lambda: 0.0,
        )

    def _skills(self) -> tuple[SkillFile, ...]:
        from zot.printable import printable
        from zot.skills import discover, trust_hint

        found = discover(cwd=self._cwd, home=self._home, explicit=self._config.skills, is_trusted=self._is_trusted)
        for problem in found.problems:
            log.warning("%s", printable(problem))
        for directory in found.untrusted:
            log.warning("%s is not trusted and was not loaded; %s", printable(directory), trust_hint(directory))
        return tuple(found.skills)

    def _is_trusted(self, directory: str) -> bool:
        if self._config.trust_project:
            return True
        if self._home is None:
            return False
        from zot.trust import TrustStore

        return TrustStore(self._home).is_trusted(directory)


def _is_in(path: str, places: Sequence[str]) -> bool:
    return any(os.path.realpath(path).startswith(os.path.join(os.path.realpath(place), "")) for place in places)


def _manifest(skills: Sequence[SkillFile]) -> str:
    if not skills:
        return ""
    from zot.skills import manifest

    return manifest(skills)
