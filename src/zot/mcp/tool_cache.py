"""Tools, prompts and resources of servers as they were last listed, kept between sessions.

Every session with servers loads this module when it opens; what talks to a server is loaded with its first start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import msgspec

from zot.config.config import Config, data_directory
from zot.encoding import decoder, encode
from zot.errors import ConfigError
from zot.files import load, make_directory, read_chunks, replace_file
from zot.messages import ToolSpec
from zot.text import printable_line

#: How long a list is valid whose server does not say, and at most.
DEFAULT_TTL_S = 24 * 3600.0
MAX_TTL_S = 30 * 24 * 3600.0
_MAX_CACHE_BYTES = 64 * 1024 * 1024
#: The longest reason of a failure that is kept, in characters.
_MAX_PROBLEM = 500
_MAX_PROBLEM_BYTES = 4 * _MAX_PROBLEM


class OfferedTool(msgspec.Struct, frozen=True):
    """A checked tool. ``name`` is the server's, ``spec`` what the model sees."""

    name: str
    spec: ToolSpec
    read_only: bool = False
    #: Arguments that are repeated in headers over HTTP: their path and the header's name.
    headers: tuple[tuple[tuple[str, ...], str], ...] = ()


def selected(tools: Sequence[OfferedTool], patterns: Sequence[str]) -> list[OfferedTool]:
    """Return the tools whose own names match a pattern, sorted and unique."""
    wanted = {one.spec.name: one for one in tools if any(fnmatchcase(one.name, pattern) for pattern in patterns)}
    return [wanted[name] for name in sorted(wanted)]


class OfferedArgument(msgspec.Struct, frozen=True):
    """An argument of a prompt."""

    name: str
    required: bool = False


class OfferedPrompt(msgspec.Struct, frozen=True):
    """A checked prompt, which users run as a slash command."""

    name: str
    description: str = ""
    arguments: tuple[OfferedArgument, ...] = ()


class OfferedResource(msgspec.Struct, frozen=True):
    """A checked resource, which users mention in prompts."""

    uri: str
    title: str = ""


class CachedList(msgspec.Struct, frozen=True):
    """A server's tools, prompts, resources and protocol revision, and until when that is current.

    It may have resources that it does not list.
    """

    revision: str
    tools: tuple[OfferedTool, ...]
    expires_at: float
    prompts: tuple[OfferedPrompt, ...] = ()
    has_resources: bool = False
    resources: tuple[OfferedResource, ...] = ()


class ToolCache:
    """Tool lists in ``directory``, one file a configuration; without one, nothing is kept."""

    def __init__(self, directory: str | None, *, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._now = now

    @classmethod
    def of(cls, config: Config) -> ToolCache:
        """Return the lists that sessions with this configuration share."""
        kept = data_directory(config)
        return cls(None if kept is None else os.path.join(kept, "mcp-cache"))

    @property
    def is_empty(self) -> bool:
        """True if no list can have been kept: then no configuration need be hashed."""
        return self._directory is None or not os.path.isdir(self._directory)

    def get(self, digest: str) -> CachedList | None:
        """Return the list of a configuration; None if there is no valid file."""
        if self._directory is None:
            return None
        try:
            found: CachedList = load(self._path(digest), decoder(CachedList).decode, max_bytes=_MAX_CACHE_BYTES)
        except (OSError, ConfigError):
            return None
        return found

    def is_current(self, found: CachedList) -> bool:
        """True while a list need not be asked for again."""
        return self._now() < found.expires_at <= self._now() + MAX_TTL_S

    def put(self, digest: str, found: CachedList, ttl_s: float | None) -> None:
        """Keep a list for as long as its server says. A full disk costs the cache only."""
        if self._directory is None:
            return
        life_s = DEFAULT_TTL_S if ttl_s is None else max(0.0, min(ttl_s, MAX_TTL_S))
        data = encode(msgspec.structs.replace(found, expires_at=self._now() + life_s))
        try:
            make_directory(self._directory)
            replace_file(self._path(digest), data)
        except OSError:
            pass

    def problem(self, digest: str) -> str:
        """Return why the server failed when it was last used; "" if it did not."""
        if self._directory is None:
            return ""
        try:
            return b"".join(read_chunks(self._path(digest, "problem"), max_bytes=_MAX_PROBLEM_BYTES)).decode()
        except (OSError, ValueError):
            return ""

    def put_problem(self, digest: str, problem: str) -> None:
        """Keep why a server failed, for the next process; "" once it works."""
        if self._directory is None:
            return
        path = self._path(digest, "problem")
        try:
            if problem:
                make_directory(self._directory)
                replace_file(path, printable_line(problem, _MAX_PROBLEM).encode())
            elif os.path.exists(path):
                os.unlink(path)
        except OSError:
            pass

    def _path(self, digest: str, kind: str = "json") -> str:
        assert self._directory is not None
        return os.path.join(self._directory, f"{digest}.{kind}")
