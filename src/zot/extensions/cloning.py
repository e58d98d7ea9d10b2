"""An extension fetched with git: shallow, without questions, and only by protocols that run nothing of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from zot.errors import UserError
from zot.extensions.errand import run_errand
from zot.extensions.manifest import FILE_NAME
from zot.text import printable
from zot.tools.process import Processes

PROTOCOLS = ("https", "ssh", "git", "file")
DEADLINE_S = 600.0
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(://|::)")
#: As ssh names a file: host:path, but no path of ours.
_AT_HOST = re.compile(r"[^/:]+@[^/:]+:[^:]")
#: They would lead git elsewhere: it may be a hook of a repository that runs us.
_MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_ALLOW_PROTOCOL": ":".join(PROTOCOLS),
    "LC_ALL": "C",
}


def is_repository(source: str) -> bool:
    """Tell if ``source`` is something for git, and not the path of a directory."""
    if _URL.match(source):
        return True
    if os.path.isdir(source):  # A repository without a working tree has its files in git's own form.
        return source.endswith(".git") and not os.path.lexists(os.path.join(source, FILE_NAME))
    return source.endswith(".git") or bool(_AT_HOST.match(source))


def checked_url(url: str) -> str:
    """Return ``url`` as git shall have it. Raise UserError if it must not have it at all."""
    if os.path.isdir(url):
        return f"file://{os.path.abspath(url)}"  # Of a plain path git would take everything, not only what is new.
    if url.startswith("-"):
        raise UserError(f"{printable(url)} is no address of a repository")
    if "\0" in url:
        raise UserError("an address cannot have a NUL character")
    found = _URL.match(url)
    protocol = found[1] if found else "ssh"
    if protocol not in PROTOCOLS or (found and found[2] == "::"):
        raise UserError(f"{printable(url)}: {protocol} is not allowed, only {', '.join(PROTOCOLS)}")
    return url


async def clone(url: str, destination: str, *, processes: Processes, env: Mapping[str, str]) -> None:
    """Clone ``url`` to ``destination``, which must not exist. Raise UserError with what git said. Nothing runs on."""
    argv = ["git", "clone", "--quiet", "--depth", "1", "--no-recurse-submodules", "--", checked_url(url), destination]
    plain = {name: value for name, value in env.items() if name not in _MISLEADING}
    env = {**plain, **_QUIET}
    status, said = await run_errand(argv, cwd="/", env=env, processes=processes, within_s=DEADLINE_S)
    if status:
        raise UserError(f"git clone {printable(url)}: {_reason(said) or f'exit status {status}'}")


def _reason(said: str) -> str:
    """Return what git complained about, as one line: all until it gave up, since the reason may be that of ssh."""
    lines = [line.strip() for line in said.split("\n") if line.strip()]
    gave_up = max((at for at, line in enumerate(lines) if line.startswith("fatal: ")), default=len(lines))
    told = [line.removeprefix("fatal: ") for line in lines[: gave_up + 1] if not line.lower().startswith("warning: ")]
    return printable("; ".join(told[-3:]))
