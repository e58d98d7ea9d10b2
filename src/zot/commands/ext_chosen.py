"""Which extensions there are for `zot ext`, and which one is meant."""

from __future__ import annotations

import os
from collections.abc import Sequence

from zot.commands.asked import directory
from zot.config import zot_home
from zot.errors import ConfigError, UserError
from zot.extensions.confinement import refusal
from zot.extensions.discovery import Located, Source, discover
from zot.extensions.manifest import Manifest
from zot.printable import printable
from zot.trust import TrustStore


def home() -> str:
    """Return where extensions are installed. Raise ConfigError if there is no such place."""
    found = zot_home(os.environ)
    if found is None:
        raise ConfigError("there is no home for extensions: set ZOT_HOME or HOME")
    return os.path.abspath(found)


def found() -> list[Located]:
    """Return the extensions of the project and of the user, as a session here would find them."""
    where, cwd = home(), directory(None)

    def refused(manifest: Manifest, place: str) -> str:
        return refusal(manifest, place, os.environ, cwd=cwd)

    return discover(cwd=cwd, home=where, is_trusted=TrustStore(where).is_trusted, refusal=refused)


def chosen(name: str, sources: Sequence[Source] = ("project", "global")) -> Located:
    """Return the one that ``name`` means: its name, that of its directory, or the directory itself. Raise UserError."""
    # Where they are looked for stands among them if it cannot be read, and is none of them.
    not_theirs = (os.path.join(directory(None), ".zot", "extensions"), os.path.join(home(), "extensions"))
    known = [one for one in found() if one.source in sources and one.directory not in not_theirs]
    if "/" in name:
        fits = [one for one in known if os.path.realpath(one.directory) == os.path.realpath(name)]
    else:
        fits = [one for one in known if one.name == name]
        fits = fits or [one for one in known if os.path.basename(one.directory) == name]
    if not fits:
        names = ", ".join(printable(one.name) for one in known) or "none"
        raise UserError(f"there is no extension {name!r} here; there are: {names}")
    if len(fits) > 1:
        places = " or ".join(printable(one.directory) for one in fits)
        raise UserError(f"there are several extensions named {name!r}; say which: {places}")
    return fits[0]
