"""`zot ext new`: an extension that works, as a beginning."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil

from zot.commands.subcommands import Request, directory, remark, write, write_json
from zot.config.config import keyless_environment
from zot.errors import UserError
from zot.extensions.errand import run_errand
from zot.extensions.scaffold import build_of, scaffold
from zot.text import printable
from zot.tools.process import open_processes

_BUILD_S = 120.0


def new(request: Request) -> int:
    """Begin an extension, and build it if that is needed and can be done here."""
    name, *where = request.words
    language = request.settings.get("lang", "python")
    place = directory(where[0] if where else name)
    files = scaffold(name, language, place)
    build = build_of(language, name)
    built = not build or asyncio.run(_build(build, place))
    if request.json:
        write_json({"name": name, "directory": place, "language": language, "files": files, "built": built})
        return 0
    write(f"made {printable(place)}: {', '.join(files)}\n")
    if not built:
        write(f"build it: cd {shlex.quote(place)} && {shlex.join(build)}\n")
    write(f"try it: zot ext test {shlex.quote(os.path.relpath(place))}\n")
    return 0


async def _build(argv: list[str], place: str) -> bool:
    """Build it with the program of the language; False if that is not there or fails."""
    if shutil.which(argv[0]) is None:
        return False
    processes = open_processes()
    try:
        env = keyless_environment(os.environ)
        status, said = await run_errand(argv, cwd=place, env=env, processes=processes, within_s=_BUILD_S)
    except UserError as problem:
        remark(printable(str(problem)))
        return False
    finally:
        await processes.close()
    if status:
        remark(f"{shlex.join(argv)}: {printable(said.strip()[-500:])}")
    return not status
