"""`zot ext install` and `zot ext remove`."""

from __future__ import annotations

import asyncio
import os
import signal

from zot.commands.ext_chosen import chosen, home
from zot.commands.subcommands import Request, confirmed, write, write_json
from zot.config.config import keyless_environment
from zot.config.trust_part import TrustStore
from zot.errors import UserError
from zot.extensions import install as installing
from zot.extensions.discovery import Located
from zot.text import printable
from zot.tools.process import open_processes


def install(request: Request) -> int:
    """Copy or clone an extension to where it is found everywhere; that is to trust it."""
    (source,) = request.words
    installed = asyncio.run(_install(source))
    assert installed.manifest is not None
    if request.json:
        name, version = installed.name, installed.manifest.version
        write_json({"name": name, "version": version, "directory": installed.directory})
    else:
        write(f"installed {printable(installed.directory)}\n")
        if not installed.manifest.enabled:
            write(f"it is disabled; zot ext enable {installed.name}\n")
    return 0


def remove(request: Request) -> int:
    """Delete an extension with its data."""
    one = chosen(request.words[0])
    if not confirmed(f"remove {printable(one.directory)}?", request):
        raise UserError(f"{printable(one.directory)} was not removed; --yes does not ask")
    installing.remove(one.directory)
    if one.source == "project":
        TrustStore(home()).untrust(one.directory)
    if request.json:
        write_json({"name": one.name, "directory": one.directory})
    else:
        write(f"removed {printable(one.directory)}\n")
    return 0


async def _install(source: str) -> Located:
    """Install it. Raise UserError, also when a signal says to stop: then everything is as it was."""
    loop, processes = asyncio.get_running_loop(), open_processes()
    installing_it = loop.create_task(
        installing.install(source, home(), processes=processes, env=keyless_environment(os.environ)),
        name="zot ext install",
    )
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, installing_it.cancel)
    try:
        return await installing_it
    except asyncio.CancelledError:
        raise UserError("interrupted; nothing was installed") from None
    finally:
        await processes.close()
        for number in numbers:
            loop.remove_signal_handler(number)
