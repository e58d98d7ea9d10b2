"""`zot ext list`: which extensions there are, which of them run, and why the others do not."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from zot.commands.ext_chosen import configured, found, home
from zot.commands.subcommands import Request, directory, remark, write, write_json
from zot.config.config import Config, tool_environment
from zot.extensions.confinement_part import Confinement
from zot.extensions.discovery import Located
from zot.extensions.log import log_path
from zot.extensions.log_reader import Note, problem
from zot.extensions.manifest import Manifest
from zot.extensions.permissions import Permissions
from zot.text import printable
from zot.tools.process import open_processes

FULL_RIGHTS = "full user rights"


def list_(request: Request) -> int:
    """Say what there is."""
    config = configured()
    all_of_them = asyncio.run(_tried(found(config), config))
    for one in all_of_them:
        last = problem(log_path(home(), one.name)) if one.manifest is not None else None
        if request.json:
            write_json(_described(one, last))
        else:
            write(_told(one, last))
    if not all_of_them and not request.json:
        remark("there are no extensions here; zot ext install adds one, zot ext new begins one")
    return 0


async def _tried(located: list[Located], config: Config) -> list[Located]:
    """Return them, those refused that no sandbox can hold here: one that is there may be forbidden to work."""
    if config.unsandboxed_ext or not any(map(_confined, located)):
        return located
    processes, env = open_processes(), tool_environment(os.environ)
    confinement = Confinement(lambda: processes, env, cwd=directory(None), zot_home=home())

    async def tried(one: Located) -> Located:
        permissions = _confined(one)
        reason = await confinement.refusal(permissions, one.directory) if permissions else ""
        return msgspec.structs.replace(one, standing="refused", problem=reason) if reason else one

    try:
        return [await tried(one) for one in located]
    finally:
        await processes.close()


def _confined(one: Located) -> Permissions | None:
    """Return what one that runs is held to, if it is."""
    return one.manifest.permissions if one.standing == "runs" and one.manifest else None


def _described(one: Located, last: Note | None) -> dict[str, Any]:
    manifest = one.manifest
    return {
        "name": one.name,
        "version": manifest.version if manifest else "",
        "source": one.source,
        "standing": one.standing,
        "description": manifest.description if manifest else "",
        "language": manifest.language if manifest else "",
        "directory": one.directory,
        "why_not": _why_not(one),
        "rights": _rights(manifest) if manifest else None,
        "last_problem": last,
    }


def _told(one: Located, last: Note | None) -> str:
    manifest = one.manifest
    version = f" {printable(manifest.version)}" if manifest and manifest.version else ""
    lines = [f"{printable(one.name)}{version}  {one.source}  {one.standing}"]
    if manifest and manifest.description:
        lines.append(printable(" ".join(manifest.description.split())))
    lines.append(printable(one.directory) + (f", {_rights_told(manifest)}" if manifest else ""))
    if why := _why_not(one):
        lines.append(f"does not run: {printable(why)}")
    if last is not None:
        lines.append(f"last problem, {last.at}: {printable(last.text)}")
    return "\n    ".join(lines) + "\n"


def _rights(manifest: Manifest) -> object:
    """Return what it may do: what its manifest declares, or everything."""
    return FULL_RIGHTS if manifest.permissions is None else msgspec.to_builtins(manifest.permissions)


def _rights_told(manifest: Manifest) -> str:
    """Return the same for people: the scopes that it has, with what they are limited to."""
    rights = _rights(manifest)
    if not isinstance(rights, dict):
        return f"with {rights}"
    given = [key if value is True else f"{key} ({', '.join(value)})" for key, value in rights.items() if value]
    return printable(f"may use: {'; '.join(given)}" if given else "with no rights but its own directory")


def _why_not(one: Located) -> str:
    match one.standing:
        case "runs":
            return ""
        case "disabled":
            return f"it is disabled; zot ext enable {one.name}"
        case "untrusted":
            return f"it is not trusted as it is now; zot ext trust {one.name}"
        case "shadowed" | "refused" | "broken":
            return one.problem
