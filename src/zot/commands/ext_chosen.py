"""Which extensions there are for `zot ext`, and which one is meant."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from zot.commands.subcommands import directory, remark
from zot.config.config import Config, resolve, zot_home
from zot.errors import ConfigError, UserError
from zot.extensions.discovery import Located, Source
from zot.runtime.extension_host import locate_extensions
from zot.text import printable


def home() -> str:
    """Return where extensions are installed. Raise ConfigError if there is no such place."""
    found = zot_home(os.environ)
    if found is None:
        raise ConfigError("there is no home for extensions: set ZOT_HOME or HOME")
    return os.path.abspath(found)


def configured() -> Config:
    """Return what sessions here work with; the usual, and a remark, if that makes no sense.

    Extensions are looked for in any case, with a remark if sessions do not.
    """
    try:
        config = resolve({})
    except ConfigError as problem:
        remark(f"{problem}; going on without")
        return Config()
    if config.no_ext:
        remark("config.toml says no_ext: sessions start only those that are named, whatever is said here")
    return msgspec.structs.replace(config, no_ext=False)


def found(config: Config | None = None) -> list[Located]:
    """Return the extensions of the project and of the user, as a session here would find them.

    Before them, those that are named in ``config``, and as it says otherwise.
    """
    config = config or Config()
    home()  # Without it most would not be found, and nobody would know.
    return locate_extensions(config, directory(None))


def chosen(name: str, sources: Sequence[Source] = ("project", "global"), config: Config | None = None) -> Located:
    """Return the one that ``name`` means: its name, that of its directory, or the directory itself. Raise UserError."""
    # Where they are looked for stands among them if it cannot be read, and is none of them.
    not_theirs = (os.path.join(directory(None), ".zot", "extensions"), os.path.join(home(), "extensions"))
    known = [one for one in found(config) if one.source in sources and one.directory not in not_theirs]
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
