"""extension.json: decoding, precise error messages, guards of broken manifests, enable and disable."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args

import msgspec

from zot import files
from zot.config.trust import DEFAULT_DATA, Coverage
from zot.encoding import thread_safe_type
from zot.errors import ConfigError, MalformedFile, UserError
from zot.extensions.permissions import Permissions
from zot.files import UNDECODABLE, read_content, replace_file
from zot.files import load as load_file
from zot.text import printable, shell_word
from zot.wire.extension import EVENTS, INTERCEPTED, ExtensionName, Intercepted, OnFailure

FILE_NAME = "extension.json"
MAX_BYTES = 256 * 1024

#: Value of `exec` for the interpreter that runs zot: scripts can import zot.ext however zot was installed.
ZOT_PYTHON = "zot-python"
#: Runs a script as ``python SCRIPT ARGS`` does. Appends zot and its dependencies to the path if they are missing:
#: zot may have been started from a directory that only its own process knows.
_LAUNCH = """
import os, sys
places, sys.argv = sys.argv[1:3], sys.argv[3:]
__file__ = os.path.abspath(sys.argv[0])
if not sys.flags.safe_path:
    sys.path[0] = os.path.dirname(__file__)
sys.path += [place for place in places if place not in sys.path]
del places
with open(__file__, "rb") as source:
    source = compile(source.read(), __file__, "exec")
exec(source)
"""
#: Characters that make a pattern match several names.
_WILD = frozenset("*?[")
#: Endings of file names that hold data and never code.
_DATA_ENDINGS: Final = frozenset({"db", "sqlite", "sqlite3", "log", "csv", "tsv", "cache", "pid"})
_MAX_LEFT_OUT: Final = 8
_NonEmpty: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
_NAMES: Final = "a list of names, or true for all"
_PATHS: Final = 'a list of paths, such as ["~/notes", "$CWD"]'
#: Valid values of each field.
FIELD_RULES: Final[Mapping[str, str]] = {
    "name": "letters, digits, `.`, `_` and `-`, at most 64 of them, the first a letter or a digit",
    "exec": 'the program to start, such as "./main.py"',
    "version": 'a text, such as "1.0.0"',
    "args": 'a list of texts, such as ["--quiet"]',
    "language": "a text",
    "description": "a text",
    "enabled": "true or false",
    "intercept": f"a list of what it decides about: {', '.join(INTERCEPTED)}",
    "on_failure": " or ".join(f'"{name}"' for name in get_args(OnFailure)),
    "data": 'a list of patterns, such as ["data/**"]',
    "permissions": 'an object with the scopes it needs, such as {"net": true}; without the field it may do everything',
}
#: Valid values of each scope.
SCOPE_RULES: Final[Mapping[str, str]] = {
    "fs.read": _PATHS,
    "fs.write": _PATHS,
    "net": "true or false",
    "exec": f"{_NAMES}; of programs, or absolute paths",
    "env": f"{_NAMES}; of variables",
    "tools": f"{_NAMES}; of tools: letters, digits, `_` and `-`, at most 64, no digit or `-` first",
    "events": f"true for all, or a list of: {', '.join(EVENTS)}",
    "intercept": f"true for all, or a list of: {', '.join(INTERCEPTED)}",
    "ui": "true or false",
    "modify": "true or false",
}
_MAX_SHOWN: Final = 60
#: Minimum similarity of a misspelt word and a known one.
_ALIKE: Final = 0.75
#: Errors that mean that no manifest exists, as opposed to an unreadable one.
_ABSENT: Final = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL}
#: Trace of an ``on_failure`` field in a file that is not JSON.
_SIGN: Final = re.compile(rb"on\W?_?fail\w{0,8}\W{0,16}(\w{0,5})", re.IGNORECASE)
_KEY = "enabled"
_BLANK = " \t\r\n"
_VALUES = json.JSONDecoder()


class Manifest(msgspec.Struct, frozen=True):
    """Content of the file. Unknown fields are ignored."""

    name: ExtensionName
    exec: _NonEmpty
    version: str = ""
    args: tuple[str, ...] = ()
    language: str = ""
    description: str = ""
    enabled: bool = True
    #: Events blocked from the start, and while it does not run, if ``on_failure`` is "block".
    intercept: tuple[Intercepted, ...] = ()
    on_failure: OnFailure = "allow"
    #: Patterns of the files that the extension itself may change, see `config.trust`.
    data: tuple[str, ...] = DEFAULT_DATA
    #: None: no restrictions.
    permissions: Permissions | None = None


def load(directory: str) -> Manifest:
    """Return the manifest in ``directory``. Raise ConfigError that names the file and the invalid field."""
    path = os.path.join(directory, FILE_NAME)
    try:
        data = files.load(path, bytes, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        if not os.path.lexists(directory):
            raise ConfigError(f"{directory}: no such directory") from None
        raise ConfigError(f"{directory} is not an extension directory: it has no {FILE_NAME}") from None
    except NotADirectoryError:
        raise ConfigError(f"{directory} is not an extension directory: it is a file") from None
    return parse(data, path)


def parse(data: bytes, path: str) -> Manifest:
    """Decode the manifest ``data`` read from ``path``. Raise ConfigError."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        manifest, fields = files.decoded(data, _decoded, path)
    except MalformedFile as problem:
        raise ConfigError(f"{path}: {_explained(data) or problem.reason}") from None
    for word in (manifest.exec, *manifest.args):
        if "\0" in word:
            raise ConfigError(f"{path}: `exec` and `args` must be without NUL characters")
    _check_spelling(fields, path)
    if manifest.permissions is None and "permissions" in fields:
        # An explicit null hardly means to permit everything.
        raise ConfigError(f"{path}: {_explained(data)}")
    return manifest


def _decoded(data: bytes) -> tuple[Manifest, Mapping[str, msgspec.Raw]]:
    """Return the manifest and all fields of the file."""
    return (
        msgspec.json.decode(data, type=thread_safe_type(Manifest)),
        msgspec.json.decode(data, type=dict[str, msgspec.Raw]),
    )


def _explained(data: bytes) -> str:
    return explain_invalid(data, Manifest, Permissions)


def _check_spelling(fields: Iterable[str], path: str) -> None:
    """Raise ConfigError for a field similar to a known one: a misspelt guard would guard nothing."""
    known = Manifest.__struct_fields__
    if unknown := [field for field in fields if field not in known]:
        for field in unknown:
            if close := get_close_matches(field.lower(), known, n=1, cutoff=0.8):
                raise ConfigError(f"{path}: there is no field {field!r}; did you mean {close[0]!r}?")


def changeable(manifest: Manifest, directory: str) -> tuple[str, ...]:
    """Return the patterns of files that may change in a trusted directory: its data, never its programs.

    Raise UserError if a pattern may name code, or if its program lies among its data, outside of its directory, or is
    named by a path that leads around the copy that is run.
    """
    for pattern in manifest.data:
        if problem := _data_problem(pattern):
            raise UserError(f"{directory} cannot be trusted: data: {pattern!r} {problem}")
    inside: list[str] = []
    for word in (manifest.exec, *manifest.args):
        if _leads_into(word, directory):
            raise UserError(f"{directory} cannot be trusted: it runs {word}, by its absolute path in the project")
        path = os.path.normpath(word)
        if os.path.isabs(word) or not os.path.isfile(os.path.join(directory, path)):
            continue
        if path.startswith("../"):
            raise UserError(f"{directory} cannot be trusted: it runs {word}, which lies outside of it")
        if any(path.startswith(f"{place}/") for place in _data_places(manifest)):
            raise UserError(f"{directory} cannot be trusted: it runs {word}, which is among its data")
        inside.append(path)
    return (*manifest.data, *(f"!{_literal(path)}" for path in inside))


def _data_problem(pattern: str) -> str:
    """Return why a pattern cannot be one of data; "" if it can: it names a directory, or files that hold no code."""
    plain = pattern.removeprefix("!")
    if pattern.startswith("!"):
        return ""  # It makes less of it data.
    if plain.endswith("/**"):
        name = os.path.normpath(plain.removesuffix("/**"))
        is_inside = name.split("/")[0] not in ("", ".", "..") and not os.path.isabs(plain)
        return "" if is_inside and not _WILD & {*name} else 'is not a directory of its own; name one, such as "data/**"'
    ending = plain.rpartition(".")[2].partition("-")[0].rstrip("*")
    if "." in plain and ending in _DATA_ENDINGS:
        return ""
    return 'may be code; name a directory of data, such as "data/**"'


#: The parts of a word that a shell or an option may take for a path.
_PIECES: Final = re.compile(r"[^\s\"'`;|&()<>=,:]+")


def _leads_into(word: str, directory: str) -> bool:
    """Return whether a word of the command line names a file of the project by its absolute path."""
    project = os.path.realpath(directory)
    if os.path.basename(os.path.dirname(project)) == "extensions":  # PROJECT/.zot/extensions/NAME
        project = os.path.dirname(os.path.dirname(os.path.dirname(project)))
    places = {project, os.path.abspath(directory)}
    if any(f"{place}/" in word for place in places if place != "/"):
        return True
    # A word may be a script for a shell, and a path may be written in many ways.
    return any(_is_path_into(piece, places) for piece in (word, *_PIECES.findall(word)))


def _is_path_into(written: str, places: Iterable[str]) -> bool:
    path = os.path.expanduser(os.path.expandvars(written))
    if not os.path.isabs(path) or "\0" in path:
        return False
    if f"{os.path.normpath(path)}/".startswith(("/proc/", "/dev/fd/")):  # leads wherever a process is
        return True
    real = os.path.realpath(path)
    return any(f"{real}/".startswith(f"{place}/") for place in places)


def trust_summary(manifest: Manifest, covered: Coverage) -> list[str]:
    """Return lines about the program, the files that the trust covers, and the data that it does not."""
    runs = " ".join(map(shell_word, (manifest.exec, *manifest.args)))
    lines = [
        f"runs: {runs}",  # In full: the user trusts all of it.
        f"covers: {covered.files} files, {covered.size_bytes} bytes; a private copy of them runs",
        f"data, kept by zot and not taken from the project: {', '.join(map(printable, manifest.data)) or 'none'}",
    ]
    if covered.data:
        left_out = ", ".join(map(printable, covered.data[:_MAX_LEFT_OUT]))
        more = len(covered.data) - _MAX_LEFT_OUT
        lines.append(f"left out as data: {left_out}{f' and {more} more' if more > 0 else ''}")
    return lines


def _data_places(manifest: Manifest) -> list[str]:
    """Return the directories that contain only data; "" stands for all."""
    return [pattern.removesuffix("/**") for pattern in manifest.data if pattern.endswith("/**")]


def _literal(path: str) -> str:
    return "".join(f"[{sign}]" if sign in _WILD else sign for sign in path)


def program(manifest: Manifest, directory: str) -> str:
    """Return the program to start: relative to the manifest, a bare name beside it, or else one on the PATH.

    ZOT_PYTHON is the interpreter that runs zot.
    """
    if "/" in manifest.exec:
        return os.path.join(directory, manifest.exec)
    beside = os.path.join(directory, manifest.exec)
    if os.path.isfile(beside):
        return beside
    return own_python() if manifest.exec == ZOT_PYTHON else manifest.exec


def command_line(manifest: Manifest, directory: str) -> list[str]:
    itself = program(manifest, directory)
    is_ours = manifest.exec == ZOT_PYTHON and itself == own_python()
    if not is_ours or not manifest.args or manifest.args[0].startswith("-"):
        return [itself, *manifest.args]
    return [itself, "-c", _LAUNCH, _parent(msgspec.__file__), _parent(__file__, 2), *manifest.args]


def own_python() -> str:
    """Return the interpreter that runs zot. A frozen program has none: then python3 on the PATH."""
    return "python3" if not sys.executable or getattr(sys, "frozen", False) else sys.executable


def _parent(file: str, levels: int = 1) -> str:
    """Return the import directory of ``file``, which lies ``levels`` packages deep."""
    path = os.path.abspath(file)
    for _ in range(levels + 1):
        path = os.path.dirname(path)
    return path


def data_directories(manifest: Manifest) -> list[str]:
    """Return the directories that are data as a whole, relative to the manifest, in its order."""
    whole = [pattern.removesuffix("/**") for pattern in manifest.data if pattern.endswith("/**")]
    names = [os.path.normpath(name) for name in whole if name and not name.startswith("!") and not _WILD & {*name}]
    return [name for name in names if not os.path.isabs(name) and name.split("/")[0] not in (".", "..")]


def explain_invalid(data: bytes, manifest: type[msgspec.Struct], permissions: type[msgspec.Struct]) -> str:
    """Explain why ``data`` is not a valid ``manifest``; "" if no reason is found."""
    try:
        found = json.loads(data.decode())
    except UnicodeDecodeError as problem:
        return f"is not UTF-8, at byte {problem.start}"
    except RecursionError:
        return "is nested too deeply"
    except json.JSONDecodeError as problem:
        return _no_json(data.decode(), problem)
    except ValueError as problem:  # a number with more digits than Python converts
        return f"is not JSON: {problem}"
    if not isinstance(found, dict):
        return f"must be an object with at least `name` and `exec`, but is {_shown(found)}"
    if wrong := _wrong_field(found, manifest, FIELD_RULES):
        return wrong
    scopes = found.get("permissions", {})
    if not isinstance(scopes, dict):
        return f"`permissions` must be {FIELD_RULES['permissions']}; but it is {_shown(scopes)}"
    return _wrong_scope(scopes, permissions)


def _no_json(text: str, problem: json.JSONDecodeError) -> str:
    where = f"line {problem.lineno}, column {problem.colno}"
    if not text.strip():
        return "is empty; it must be an object with at least `name` and `exec`"
    if problem.pos >= len(text.rstrip()):
        return f"is not JSON: it ends too early, at {where}"
    return f"is not JSON, at {where}: {problem.msg}"


def _wrong_scope(scopes: dict[str, Any], permissions: type[msgspec.Struct]) -> str:
    if unknown := [name for name in scopes if name not in SCOPE_RULES]:
        return f"`permissions` has {_shown(unknown[0])}, which is not a scope; use one of: {', '.join(SCOPE_RULES)}"
    if wrong := _wrong_field(scopes, permissions, SCOPE_RULES):
        return f"permissions: {wrong}"
    fields = {field.encode_name: field for field in msgspec.structs.fields(permissions)}
    try:
        permissions(
            **{
                fields[name].name: msgspec.convert(value, thread_safe_type(fields[name].type))
                for name, value in scopes.items()
            }
        )
    except ValueError as problem:
        return f"permissions: {problem}"
    return ""


def _wrong_field(found: dict[str, Any], kind: type[msgspec.Struct], right: Mapping[str, str]) -> str:
    """Explain the first invalid field; "" if all are valid."""
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in found:
            if field.required:
                return f"`{name}` is missing; it must be {right[name]}"
        elif name != "permissions":  # Checked by `_wrong_scope`.
            try:
                msgspec.convert(found[name], thread_safe_type(field.type))
            except msgspec.ValidationError:
                return f"`{name}` must be {right[name]}; but it is {_shown(found[name])}"
    return ""


def _shown(value: Any) -> str:
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def broken_guard(directory: str) -> Manifest | None:
    """Return the guard that the unusable manifest in ``directory`` was meant to be; None if it was none.

    Its author wanted events blocked on failure, and a typing error must not undo that.
    """
    try:
        data = read_content(os.path.join(directory, FILE_NAME)).removeprefix(b"\xef\xbb\xbf")
    except OSError as problem:
        return None if problem.errno in _ABSENT else unknown_guard(directory)
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
    except UNDECODABLE:
        is_guard = any(wish.lower() != b"allow" for wish in _SIGN.findall(data[:MAX_BYTES]))
        return _guard(_name({}, directory), INTERCEPTED if is_guard else ())
    if _field(fields, "enabled") is False or not _is_closed(_field(fields, "on_failure")):
        return None
    return _guard(_name(fields, directory), _guarded(_field(fields, "intercept")))


def unknown_guard(directory: str) -> Manifest:
    """Return a guard of all events, for an unreadable directory: it might contain one."""
    return Manifest(_name({}, directory), exec="./nothing", intercept=INTERCEPTED, on_failure="block")


def _guard(name: str, guarded: tuple[Intercepted, ...]) -> Manifest | None:
    return Manifest(name, exec="./nothing", intercept=guarded, on_failure="block") if guarded else None


def _field(fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, or of the most similar one; UNSET if there is none."""
    if name in fields:
        return fields[name]
    spelt = {field.lower().replace("-", "_"): field for field in fields}
    close = get_close_matches(name, spelt, n=1, cutoff=_ALIKE)
    return fields[spelt[close[0]]] if close else msgspec.UNSET


def _is_closed(wish: object) -> bool:
    """Return whether ``on_failure`` was meant to be "block": it is present and not similar to "allow"."""
    if wish is msgspec.UNSET:
        return False
    return not (isinstance(wish, str) and get_close_matches(wish.strip().lower(), ["allow"], cutoff=_ALIKE))


def _guarded(wish: object) -> tuple[Intercepted, ...]:
    """Return the known events in ``intercept``; all events if it has none."""
    if wish == []:
        return ()
    words = wish if isinstance(wish, list) else [wish]
    meant = {close for word in words if isinstance(word, str) for close in _meant(word)}
    return tuple(name for name in INTERCEPTED if name in meant) or INTERCEPTED


def _meant(words: str) -> list[str]:
    spelt = (word.lower().replace("-", "_") for word in re.split(r"[\s,;|]+", words))
    return [close for word in spelt for close in get_close_matches(word, INTERCEPTED, n=1, cutoff=_ALIKE)]


def _name(fields: Mapping[str, Any], directory: str) -> str:
    """Return the extension's name, or else its directory's, without invalid characters."""
    for name in (_field(fields, "name"), os.path.basename(directory)):
        try:
            return msgspec.convert(name, ExtensionName)
        except msgspec.ValidationError:
            pass
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9._-]+", "", os.path.basename(directory))[:64] or "guard"


class _Member(NamedTuple):
    """Member of an object: its ``key``, and the positions of key and value in the text."""

    key: str
    at: int
    value_at: int
    end: int


def set_enabled(directory: str, *, enabled: bool) -> bool:
    """Enable or disable the extension in ``directory``; False if nothing changes. Raise ConfigError.

    Replaces the file atomically.
    """
    if load(directory).enabled == enabled:
        return False
    # Edit the target of a linked manifest.
    path = os.path.realpath(os.path.join(directory, FILE_NAME))
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        new = load_file(path, lambda data: switched(data.decode(), enabled=enabled).encode())
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    if parse(new, path).enabled != enabled:
        raise ConfigError(f'{path}: "{_KEY}" could not be changed; please edit it')
    replace_file(path, new, mode=mode)
    return True


def switched(text: str, *, enabled: bool) -> str:
    """Return the valid manifest ``text`` with ``enabled`` set."""
    members = _members(text)
    value = json.dumps(enabled)
    if known := [one for one in members if one.key == _KEY]:
        last = known[-1]  # The last value of a repeated key counts.
        return text[: last.value_at] + value + text[last.end :]
    last = members[-1]
    before = text[: last.at]
    indent = before[len(before.rstrip(_BLANK)) :]
    return f'{text[: last.end]},{indent}"{_KEY}": {value}{text[last.end :]}'


def _members(text: str) -> list[_Member]:
    """Return the members of the JSON object ``text``."""
    members: list[_Member] = []
    at = text.index("{")
    while text[at] != "}":
        key_at = _skip(text, at + 1)
        key, colon = _VALUES.raw_decode(text, key_at)
        value_at = _skip(text, _skip(text, colon) + 1)
        _, end = _VALUES.raw_decode(text, value_at)
        members.append(_Member(key, key_at, value_at, end))
        at = _skip(text, end)
    return members


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
