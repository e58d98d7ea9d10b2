"""A new extension that works, as a beginning, in the language of its author."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import msgspec

from zot.errors import UserError
from zot.extensions.manifest import Manifest
from zot.learned import learned
from zot.text import printable

_TEMPLATES = os.path.join(os.path.dirname(__file__), "templates")
#: Their files are no part of our source, so they must not look like it.
_SUFFIX = ".txt"
_HINTS = {
    "python": "It is `main.py`, and uses `zot.ext`. zot runs it with its own Python: nothing has to be installed.",
    "typescript": "Change `main.ts`, then run `npm install` once and `npm run build`, which makes `main.js` of it.",
    "shell": "It is `main.sh`, and needs `jq`.",
    "go": "Change `main.go`, then build it: `go build -o bin/@NAME@ .`",
}
#: What is to be run before it works, in its directory.
BUILDS = {"go": ("go", "build", "-o", "bin/@NAME@", ".")}


def build_of(language: str, name: str) -> list[str]:
    """Return what builds an extension that was begun; [] if nothing has to."""
    return [_filled(word, name, language) for word in BUILDS.get(language, ())]


def scaffold(name: str, language: str, directory: str) -> list[str]:
    """Begin the extension ``name`` in ``directory``; return its files. Raise UserError, and leave nothing.

    The directory may exist if it is empty.
    """
    try:
        msgspec.convert({"name": name, "exec": "x"}, learned(Manifest))
    except msgspec.ValidationError:
        raise UserError(
            f"{printable(name)!r} cannot be a name: letters, digits, dots, dashes and underscores can, at most 64"
        ) from None
    existed = os.path.isdir(directory)
    if os.path.lexists(directory) and not (existed and not os.listdir(directory)):
        raise UserError(f"{printable(directory)} exists already")
    try:
        os.makedirs(directory, exist_ok=True)
        return [_write(directory, path, _filled(text, name, language)) for path, text in _files(language)]
    except OSError as problem:
        if not existed:
            shutil.rmtree(directory, ignore_errors=True)
        raise UserError(f"{printable(str(problem.filename or directory))}: {problem.strerror}") from None


def _files(language: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of templates."""
    place = os.path.join(_TEMPLATES, language)
    for path in [
        *(os.path.join(place, name) for name in sorted(os.listdir(place))),
        f"{_TEMPLATES}/README.md{_SUFFIX}",
    ]:
        with open(path, encoding="utf-8") as file:
            yield os.path.basename(path).removesuffix(_SUFFIX), file.read()


def _filled(text: str, name: str, language: str) -> str:
    # What follows the name keeps it from being the name of one of zot's own tools.
    tool = re.sub(r"[^A-Za-z0-9_]", "_", f"{'_' if name[0].isdigit() else ''}{name[:57]}_greet")
    words = {"HINT": _HINTS[language], "NAME": name, "TOOL": tool, "PACKAGE": name.lower().strip("._-")}
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _write(directory: str, name: str, text: str) -> str:
    path = os.path.join(directory, name)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    if text.startswith("#!"):
        os.chmod(path, os.stat(path).st_mode | 0o111 & ~_umask())
    return name


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
