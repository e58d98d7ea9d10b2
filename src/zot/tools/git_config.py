"""Paths that git's configuration names: hooks, further configuration, and files in commands. Runs no git."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from zot.config.protected_paths import REPOSITORY
from zot.files import read_chunks

_STRING = r'"(?:\\.|[^"\\\n])*"'
#: A comment, the head of a section, or a setting with its value, which may be quoted in part and continued.
_PART = re.compile(
    rf"[#;][^\n]*|\[([\w.-]+)(?:[ \t]+{_STRING})?[ \t]*\]"
    rf"|([a-z][\w-]*)[ \t]*=[ \t]*((?:{_STRING}|\\.|[^\"\\\n#;])*)",
    re.I | re.S,
)
_QUOTED = re.compile(r'\\(.)|"', re.S)
_ESCAPES = {"\n": "", "n": "\n", "t": "\t", "b": "\b"}
#: What separates the words of a command.
_BETWEEN_WORDS = re.compile(r"[\s'\"`;|&()<>=!$]+")
#: Settings whose values are directories of hooks, or of templates with hooks.
_DIRECTORIES = ("hookspath", "templatedir")
#: Settings that name no files. Their values are often names of files by accident.
_NO_FILES = frozenset({"remote", "merge", "url", "pushurl", "fetch", "push", "name", "email", "worktree"})
_INCLUDES = ("include", "includeif")
_MAX_FILES = 32
_MAX_BYTES = 1024 * 1024
_MAX_NAMED = 200


def git_directory(base: str) -> str:
    """Return the directory of a repository's own files, whatever `.git` is."""
    git = os.path.join(base, REPOSITORY)
    if os.path.isdir(git) or not os.path.isfile(git):
        return git
    line = _text(git).strip()
    return os.path.join(base, line.removeprefix("gitdir:").strip()) if line.startswith("gitdir:") else git


def common_directory(git: str) -> str:
    """Return the directory with the configuration and hooks of a repository: a worktree shares that of another."""
    shared = _text(os.path.join(git, "commondir")).strip()
    return os.path.join(git, shared) if shared else git


def repository_of(directory: str) -> str:
    """Return the directory, or the nearest one above it, that has a repository; ``directory`` if none has."""
    place = directory
    while not os.path.lexists(os.path.join(place, REPOSITORY)):
        above = os.path.dirname(place)
        if above == place:
            return directory
        place = above
    return place


def named_paths(base: str) -> list[str]:
    """Return the paths that the configuration for the repository in ``base`` names, the user's own included.

    git counts hooks and commands from the top of the working tree, and files to include from the file that names them.
    A word of a command counts if a file with this name exists, or if it is written as a path.
    """
    return [*dict.fromkeys(islice(_named(base), _MAX_NAMED))]


def _named(base: str) -> Iterator[str]:
    for section, key, value, file in _settings(base):
        if section in _INCLUDES and key == "path":
            yield _path(os.path.dirname(file), value)
        elif key in _DIRECTORIES:
            yield _path(base, value)
        elif key not in _NO_FILES:
            for word in filter(None, _BETWEEN_WORDS.split(value)):
                path = _path(base, word)
                if os.path.isfile(path) or ("/" in word and "://" not in word and not os.path.isdir(path)):
                    yield path


def _settings(base: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield every setting with its section, in lower case, and the file that it is in. Follows all includes."""
    git = git_directory(base)
    user = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    files = [
        os.path.join(common_directory(git), "config"),
        os.path.join(git, "config.worktree"),
        os.environ.get("GIT_CONFIG_GLOBAL") or os.path.expanduser("~/.gitconfig"),
        os.path.join(user, "git", "config"),
        "/etc/gitconfig",
    ]
    for file in files:  # grows with the includes
        section = ""
        for found in _PART.finditer(_text(file)):
            section = (found[1] or section).lower()
            if found[2] is None:
                continue
            key, value = found[2].lower(), _QUOTED.sub(_unquoted, found[3]).strip()
            if section in _INCLUDES and key == "path" and len(files) < _MAX_FILES:
                path = _path(os.path.dirname(file), value)
                files += [path] if path not in files else []
            yield section, key, value, file


def _unquoted(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[1], found[1]) if found[1] else ""


def _path(start: str, value: str) -> str:
    return os.path.join(start, os.path.expanduser(value))


def _text(path: str) -> str:
    with suppress(OSError, ValueError):
        return b"".join(read_chunks(path, max_bytes=_MAX_BYTES)).decode(errors="replace")
    return ""
