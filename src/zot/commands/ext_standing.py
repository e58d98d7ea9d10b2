"""`zot ext enable`, `disable`, `trust` and `untrust`: whether an extension may run."""

from __future__ import annotations

import os

from zot.commands.ext_chosen import chosen, found, home
from zot.commands.subcommands import Request, directory, write, write_json
from zot.config.trust_part import TrustStore
from zot.errors import UserError
from zot.extensions.discovery import Located
from zot.extensions.manifest import Manifest, changeable, load
from zot.extensions.switching import switch
from zot.text import printable


def enable(request: Request) -> int:
    """Let it run again."""
    return _switch(request, enabled=True)


def disable(request: Request) -> int:
    """Let it not run any more, but leave it where it is."""
    return _switch(request, enabled=False)


def _switch(request: Request, *, enabled: bool) -> int:
    one = chosen(request.words[0])
    manifest, store = load(one.directory), TrustStore(home())
    trusted = one.source == "project" and store.is_trusted(one.directory, changeable(manifest, one.directory))
    changed = switch(one.directory, enabled=enabled)
    if trusted and changed:
        # It is the same as before but for what its user wants.
        store.trust(one.directory, changeable(manifest, one.directory))
    if request.json:
        write_json({"name": one.name, "directory": one.directory, "enabled": enabled, "changed": changed})
    else:
        word = "enabled" if enabled else "disabled"
        write(f"{word} {one.name}\n" if changed else f"{one.name} is {word} already\n")
    return 0


def trust(request: Request) -> int:
    """Let an extension of a project run, as it is now."""
    name = request.words[0]
    where, manifest = _of_project(name)
    store = TrustStore(home())
    changed = not store.is_trusted(where, changeable(manifest, where))
    if changed:
        store.trust(where, changeable(manifest, where))
    shadowed = next((one for one in found() if one.name == manifest.name and one.source == "global"), None)
    if request.json:
        hidden = shadowed.directory if shadowed else None
        write_json({"name": manifest.name, "directory": where, "trusted": True, "changed": changed, "shadows": hidden})
        return 0
    write(f"{'trusted' if changed else 'trusted already:'} {printable(where)}\n")
    if shadowed:
        write(f"in its project it runs instead of the installed one in {printable(shadowed.directory)}\n")
    return 0


def untrust(request: Request) -> int:
    """Let an extension of a project not run any more."""
    name = request.words[0]
    store = TrustStore(home())
    places = [name] if "/" in name else [*_places(name), os.path.join(directory(None), ".zot", "extensions", name)]
    known = next((place for place in places if store.untrust(place)), None)
    if known is None:
        raise UserError(f"{printable(name)} was not trusted")
    if request.json:
        write_json({"directory": os.path.realpath(known), "trusted": False})
    else:
        write(f"no longer trusted: {printable(known)}\n")
    return 0


def _of_project(name: str) -> tuple[str, Manifest]:
    """Return the directory and the manifest of what is to be trusted. Raise UserError."""
    if "/" in name:
        return os.path.abspath(name), load(name)
    installed = [one for one in found() if one.source == "global" and name == one.name]
    if installed and not _places(name):
        raise UserError(f"{name} is installed, which is trust enough: only those of a project have to be trusted")
    one: Located = chosen(name, ("project",))
    return one.directory, load(one.directory)


def _places(name: str) -> list[str]:
    names = [one for one in found() if one.source == "project"]
    return [one.directory for one in names if name in (one.name, os.path.basename(one.directory))]
