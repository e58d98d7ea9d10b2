"""Toolbox: the tools and skills of one session, and the processes they left running."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING

from zot.config.config import Config, data_directory, has_mcp, tool_names, zot_home
from zot.config.skills import SkillFile, discover, manifest, trust_hint
from zot.errors import ConfigError
from zot.text import printable
from zot.tools import specs
from zot.tools.base import LazyTool, ReadState, Tool

if TYPE_CHECKING:
    from zot.config.private_paths import PrivatePath
    from zot.mcp.servers import McpServers
    from zot.mcp.source import McpSource
    from zot.runtime.shared import SharedResources
    from zot.tools.bash import Bash
    from zot.tools.checkpoints import Restorer
    from zot.tools.command_output import Spills
    from zot.tools.documents import OpenDocuments
    from zot.tools.file_access import Paths
    from zot.tools.process import Processes
    from zot.tools.sandbox import Sandbox

log = logging.getLogger("zot")

#: The grace period of processes whose run was aborted or session closed.
_GRACE_S = 0.5


class Toolbox:
    """The tools and processes of one session. ``key`` is the session's. Can be made in any thread.

    ``documents`` are the files in the user's editor. A lock ignores them: between its check and the editor's access, a
    command could replace the file by a link that leads outside.
    """

    def __init__(
        self,
        config: Config,
        resources: SharedResources,
        *,
        cwd: str,
        key: str,
        documents: OpenDocuments | None = None,
    ) -> None:
        self.resources = resources
        self._config = config
        self.cwd = cwd
        self._home = zot_home(config.environment)
        self._kept_in = data_directory(config)
        self._key = key
        self._seen = ReadState()
        self._documents = None if config.lock else documents
        self._processes: Processes | None = None
        self._spills: Spills | None = None
        self._commands: Bash | None = None
        names = tool_names(config)
        skills = self._skills() if "skill" in names else ()
        # Now and not at the first call: a lock covers the skills of this moment.
        self._shown = self._reachable(skills) if config.lock else []
        warn_without_sandbox(config, resources, cwd)
        self._writable, self._readable = self._paths()
        self.tools: list[Tool] = [self._tool(name, skills) for name in names]
        self.manifest = manifest(skills) if skills else ""
        #: The MCP servers of the session, None if it has none.
        self.mcp = self._mcp() if has_mcp(config, cwd) else None

    def files(self) -> Restorer:
        """Return an object that restores files changed by tools, within the lock."""
        # Imported lazily: only rewinds need them.
        from zot.tools.checkpoints import Restorer
        from zot.tools.file_access import UnrestrictedPaths

        return Restorer(self._writable or UnrestrictedPaths(), self._seen)

    @property
    def holds(self) -> bool:
        """True while a process of the session runs or temporary output is kept for it."""
        runs = self._processes is not None and self._processes.runs()
        return runs or (self._spills is not None and self._spills.holds)

    async def end(self, owner: str) -> None:
        """End the processes of ``owner``, a run or the session."""
        if self._processes is not None:
            await self._processes.end_all(owner, grace_s=_GRACE_S)

    async def close(self) -> None:
        """End all processes and remove temporary output. Idempotent."""
        if self.mcp is not None:
            await self.mcp.close()
        if self._processes is not None:
            await self._processes.close()
        if self._commands is not None and (notice := await self._commands.sweep()):
            log.warning("%s", notice.strip())
        if self._spills is not None:
            self._spills.close()

    def kill(self) -> None:
        """Kill all processes, at once and from any thread. Nothing can be started afterwards."""
        if self.mcp is not None:
            self.mcp.kill()
        if self._processes is not None:
            self._processes.kill_all()

    def _tool(self, name: str, skills: Sequence[SkillFile]) -> Tool:
        """Return a tool that is imported for its first call: the module ``zot.tools.<name>``."""
        match name:
            case "bash":
                return LazyTool(specs.bash(lock=self._config.lock, lock_net=self._config.lock_net), self._bash)
            case "edit":
                return LazyTool(specs.EDIT, partial(_load, "edit", "Edit", self._writable, self._seen, self._documents))
            case "read":
                make = partial(_load, "read", "Read", self._readable, self._seen, self._documents)
                return LazyTool(specs.READ, make, read_only=True)
            case "skill":
                return LazyTool(specs.SKILL, partial(_load, "skill", "Skill", skills), read_only=True)
            case "write":
                return LazyTool(
                    specs.WRITE, partial(_load, "write", "Write", self._writable, self._seen, self._documents)
                )
            case _:
                raise ConfigError(f"zot has no tool named {name!r}")

    @cached_property
    def _hidden(self) -> tuple[PrivatePath, ...]:
        """The paths that locked tools never reach, wherever they are."""
        from zot.config.private_paths import private_paths

        return private_paths(self._config, self.cwd)

    @cached_property
    def _protected(self) -> tuple[str, ...]:
        """The paths in the directory that locked tools do not change, besides those that zot knows.

        Among them extensions that the user named, and the configuration: they count at the next start.
        """
        here = os.path.realpath(self.cwd)
        named = [os.path.realpath(place) for place in self._config.ext]
        named += [os.path.realpath(one) for one in self._config.private if os.path.basename(one) == "config.toml"]
        inside = (os.path.relpath(place, here) for place in named if place.startswith(os.path.join(here, "")))
        return (*self._config.protected, *inside)

    def _reachable(self, skills: Sequence[SkillFile]) -> list[str]:
        """Return the directories of skills that locked tools may read although they are outside of the lock."""
        directories = [skill.directory for skill in skills if skill.directory is not None]
        hidden = [one.path for one in self._hidden]
        return [one for one in directories if not _is_in(one, [self.cwd]) or _is_in(one, hidden)]

    def _paths(self) -> tuple[Paths | None, Paths | None]:
        """Return the confinement of written and of read paths; None where there is none."""
        if not self._config.lock:
            return None, None
        # Imported lazily: tools are loaded for their first call.
        from zot.tools.file_access import LockedPaths, LockedPathsForReading

        hidden = [one.path for one in self._hidden]
        lock = LockedPaths(self.cwd, hidden=hidden)
        writable = LockedPaths(self.cwd, hidden=hidden, protected=self._protected)
        spilled = [] if self._kept_in is None else [os.path.join(self._kept_in, "spill", self._key)]
        return writable, LockedPathsForReading(lock, [*self._shown, *spilled])

    def processes(self) -> Processes:
        """Return the launcher of this session's processes, which end with it."""
        if self._processes is None:
            self._processes = self.resources.processes(self._key)
        return self._processes

    def _bash(self) -> Tool:
        from zot.tools.bash import Bash  # Imported lazily: tools are loaded for their first call.

        self._commands = Bash(
            self.processes(),
            spills=self.spills(),
            sandbox=self._sandbox() if self._config.lock else None,
            # With a frozen clock no time passes, so that every run sends the model the same text.
            clock=time.monotonic if self._config.frozen_time is None else lambda: 0.0,
        )
        return self._commands

    def spills(self) -> Spills | None:
        """Return the files for long output; None if there is no place for them."""
        from zot.tools.command_output import Spills  # Imported lazily: tools are loaded for their first call.

        if self._spills is None and self._kept_in is not None:
            self._spills = Spills(os.path.join(self._kept_in, "spill"), self._key)
        return self._spills

    def _mcp(self) -> McpServers:
        from zot.runtime.mcp import open_servers  # Imported lazily: many sessions have no MCP server.

        # A key of their own: they do not keep an idle session loaded, and an aborted run does not end them.
        processes = self.resources.processes(f"{self._key}-mcp")
        return open_servers(self._config, self, processes)

    def server_sandbox(self, source: McpSource) -> Sandbox:
        """Return the sandbox for an MCP server of a locked session."""
        return self._sandbox(source.own_env)

    def _sandbox(self, variables: Iterable[str] = ()) -> Sandbox:
        from zot.tools.sandbox import Sandbox  # Imported lazily: only locked commands need it.

        return Sandbox(
            hidden=self._hidden,
            shown=(*self._shown, *(() if self._spills is None else (self._spills.directory,))),
            protected=self._protected,
            net=self._config.lock_net,
            variables=(*self._config.lock_env, *variables),
        )

    def _skills(self) -> tuple[SkillFile, ...]:
        found = discover(cwd=self.cwd, home=self._home, explicit=self._config.skills, is_trusted=self._is_trusted)
        for problem in found.problems:
            log.warning("%s", printable(problem))
        for directory in found.untrusted:
            log.warning("%s is not trusted and was not loaded; %s", printable(directory), trust_hint(directory))
        return self.resources.same(("skills", found.skills), lambda: found.skills)

    def _is_trusted(self, directory: str, content: bytes) -> bool:
        if self._config.trust_project:
            return True
        if self._home is None:
            return False
        from zot.config.trust import TrustStore  # Imported lazily: few projects have skills.

        return TrustStore(self._home).is_trusted_skill(directory, content)


def warn_without_sandbox(config: Config, resources: SharedResources, cwd: str) -> None:
    """Log once that bash cannot run, because `--lock` needs bubblewrap and it is not installed."""
    if not config.lock or "bash" not in tool_names(config):
        return
    from zot.tools.sandbox import find_bwrap, why_no_bwrap  # Imported lazily: only locked commands need it.

    path = config.environment.get("PATH")
    if find_bwrap(path, outside=[cwd]) is None:
        text = f"--lock: bash cannot run: {why_no_bwrap(path, outside=[cwd])}"
        line = f"{printable(text)}. Install bubblewrap, or start without --lock"
        resources.same(("warned", line), lambda: log.warning("%s", line))


def _is_in(path: str, places: Sequence[str]) -> bool:
    return any(os.path.realpath(path).startswith(os.path.join(os.path.realpath(place), "")) for place in places)


def _load(module: str, kind: str, *parts: object) -> Tool:
    """Import a tool and make it of its ``parts``."""
    made: Tool = getattr(import_module(f"zot.tools.{module}"), kind)(*parts)
    return made
