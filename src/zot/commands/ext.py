"""`zot ext`: list, install, remove, enable, disable, trust, create and test extensions."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from zot.commands.subcommands import (
    JSON_FLAG,
    CommandGroup,
    CommandRequest,
    Subcommand,
    absolute_directory,
    confirm,
    follow_log,
    print_note,
    write,
    write_bytes,
    write_json,
)
from zot.config import flags
from zot.config.config import AGENT_FLAGS, Config, keyless_environment, resolve, tool_environment, zot_home
from zot.config.flags import Flag
from zot.config.trust import TrustStore, coverage
from zot.errors import ConfigError, UserError
from zot.extensions import install as installing
from zot.extensions.confinement import Confinement
from zot.extensions.discovery import Located, Source
from zot.extensions.log import Note, log_path, note_in, problem, read
from zot.extensions.manifest import Manifest, changeable, load, set_enabled, trust_summary
from zot.extensions.permissions import Permissions
from zot.runtime.extensions import locate_extensions
from zot.text import did_you_mean, printable
from zot.tools.guardian import open_processes
from zot.wire.lines import LineSplitter

#: Flags that sessions also apply to extensions.
_AS_IN_SESSIONS = tuple(flag for flag in AGENT_FLAGS if flag.name in ("--ext-deadline", "--unsandboxed-ext"))
_LANGUAGES = ("python", "typescript", "shell", "go")
_ONE = (1, 1)


FULL_RIGHTS = "full user rights"

_POLL_S = 0.2


def home() -> str:
    """Return the directory above the installed extensions. Raise ConfigError if there is none."""
    found = zot_home(os.environ)
    if found is None:
        raise ConfigError("no directory for extensions: set ZOT_HOME or HOME")
    return os.path.abspath(found)


def session_config() -> Config:
    """Return the config of sessions here; the default one, with a remark, if it is invalid.

    Extensions are discovered even if it says no_ext, with a remark.
    """
    try:
        config = resolve({})
    except ConfigError as problem:
        print_note(f"{problem}; continuing without it")
        return Config()
    if config.no_ext:
        print_note("config.toml sets no_ext: sessions load only the extensions named with --ext")
    return msgspec.structs.replace(config, no_ext=False)


def discover_here(config: Config | None = None) -> list[Located]:
    """Return the extensions of the project and of the user, as a session here would discover them.

    Those named in ``config`` come first.
    """
    config = config or Config()
    home()  # Raises: without a home most would silently be missing.
    return locate_extensions(config, absolute_directory(None))


def find_extension(
    name: str, sources: Sequence[Source] = ("project", "global"), config: Config | None = None
) -> Located:
    """Return the extension with this name, this directory name or this path. Raise UserError."""
    # Discovery reports an unreadable extensions directory as an entry: leave it out.
    not_theirs = (os.path.join(absolute_directory(None), ".zot", "extensions"), os.path.join(home(), "extensions"))
    known = [one for one in discover_here(config) if one.source in sources and one.directory not in not_theirs]
    if "/" in name:
        fits = [one for one in known if os.path.realpath(one.directory) == os.path.realpath(name)]
    else:
        fits = [one for one in known if one.name == name]
        fits = fits or [one for one in known if os.path.basename(one.directory) == name]
    if not fits:
        names = ", ".join(printable(one.name) for one in known) or "none"
        near = did_you_mean(name, [one.name for one in known])
        raise UserError(f"no extension is named {name!r}; known: {names}{near}")
    if len(fits) > 1:
        places = " or ".join(printable(one.directory) for one in fits)
        raise UserError(f"several extensions are named {name!r}; give the directory: {places}")
    return fits[0]


def install(request: CommandRequest) -> int:
    """Install an extension for all projects, which also trusts it."""
    (source,) = request.words
    installed = asyncio.run(_install(source))
    assert installed.manifest is not None
    if request.json:
        name, version = installed.name, installed.manifest.version
        write_json({"name": name, "version": version, "directory": installed.directory})
    else:
        write(f"installed {printable(installed.directory)}\n")
        if not installed.manifest.enabled:
            write(f"it is disabled; enable it with: zot ext enable {installed.name}\n")
    return 0


def remove(request: CommandRequest) -> int:
    """Delete an extension with its data."""
    one = find_extension(request.words[0])
    if not confirm(f"remove {printable(one.directory)}?", request):
        raise UserError(f"{printable(one.directory)} was not removed; to skip the question: --yes")
    installing.remove(one.directory)
    if one.source == "project":
        TrustStore(home()).untrust(one.directory)
    if request.json:
        write_json({"name": one.name, "directory": one.directory})
    else:
        write(f"removed {printable(one.directory)}\n")
    return 0


async def _install(source: str) -> Located:
    """Install it. Raise UserError, also when a signal interrupts it: then nothing is changed."""
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


def list_(request: CommandRequest) -> int:
    """List the extensions."""
    config = session_config()
    all_of_them = asyncio.run(_with_refusals(discover_here(config), config))
    for one in all_of_them:
        last = problem(log_path(home(), one.name)) if one.manifest is not None else None
        if request.json:
            write_json(_described(one, last))
        else:
            write(_listed(one, last))
    if not all_of_them and not request.json:
        print_note("no extensions found; install one with: zot ext install DIR, or create one with: zot ext new NAME")
    return 0


async def _with_refusals(located: list[Located], config: Config) -> list[Located]:
    """Return them, with standing "refused" for those that the sandbox cannot confine here."""
    if config.unsandboxed_ext or not any(map(_confined, located)):
        return located
    processes, env = open_processes(), tool_environment(os.environ)
    confinement = Confinement(lambda: processes, env, config, cwd=absolute_directory(None))

    async def tried(one: Located) -> Located:
        permissions = _confined(one)
        reason = await confinement.refusal(permissions, one.directory) if permissions else ""
        return msgspec.structs.replace(one, standing="refused", problem=reason) if reason else one

    try:
        return [await tried(one) for one in located]
    finally:
        await processes.close()


def _confined(one: Located) -> Permissions | None:
    """Return the permissions of an extension that runs confined, else None."""
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


def _listed(one: Located, last: Note | None) -> str:
    manifest = one.manifest
    version = f" {printable(manifest.version)}" if manifest and manifest.version else ""
    lines = [f"{printable(one.name)}{version}  {one.source}  {one.standing}"]
    if manifest and manifest.description:
        lines.append(printable(" ".join(manifest.description.split())))
    lines.append(printable(one.directory) + (f", {_rights_text(manifest)}" if manifest else ""))
    if why := _why_not(one):
        lines.append(f"does not run: {printable(why)}")
    if last is not None:
        lines.append(f"last problem, {last.at}: {printable(last.text)}")
    return "\n    ".join(lines) + "\n"


def _rights(manifest: Manifest) -> object:
    """Return its permissions as the manifest declares them, or full rights."""
    return FULL_RIGHTS if manifest.permissions is None else msgspec.to_builtins(manifest.permissions)


def _rights_text(manifest: Manifest) -> str:
    """Return its rights for people: the scopes and their limits."""
    rights = _rights(manifest)
    if not isinstance(rights, dict):
        return f"with {rights}"
    given = [key if value is True else f"{key} ({', '.join(value)})" for key, value in rights.items() if value]
    return printable(f"may use: {'; '.join(given)}" if given else "with access to its own directory only")


def _why_not(one: Located) -> str:
    match one.standing:
        case "runs":
            return ""
        case "disabled":
            return f"it is disabled; enable it with: zot ext enable {one.name}"
        case "untrusted":
            return one.problem or f"it is not trusted as it is now; trust it with: zot ext trust {one.name}"
        case "shadowed" | "refused" | "broken":
            return one.problem


def logs(request: CommandRequest) -> int:
    """Write an extension's log; with --follow also new lines, until interrupted."""
    path = _path(request.words[0])
    if not request.settings.get("follow"):
        if not os.path.exists(path):
            raise UserError(f"no log of {printable(request.words[0])} exists at {path}: it has not run yet")
        _write(read(path), request)
        return 0
    return follow_log(path, lambda pieces: _write(pieces, request))


def _path(name: str) -> str:
    """Return the path of the log, also of an extension that is removed or was used for one run."""
    path = log_path(home(), name)
    if "/" not in name and os.path.exists(path):
        return path
    manifest = (
        load(name) if "/" in name else find_extension(name, ("ext", "project", "global"), session_config()).manifest
    )
    return log_path(home(), manifest.name if manifest is not None else name)


def _write(pieces: Iterable[bytes], request: CommandRequest) -> None:
    lines = LineSplitter(max_line_bytes=1 << 20)
    for data in pieces:
        if request.json:
            _write_lines(lines.feed(data))
        else:
            write_bytes(data)
        sys.stdout.flush()
    if request.json:
        _write_lines(lines.finish())


def _write_lines(lines: Iterable[object]) -> None:
    for line in lines:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else "(a line that is too long)"
        note = note_in(text)
        write_json({"at": note.at, "zot": note.text} if note else {"extension": text})


def enable(request: CommandRequest) -> int:
    return _switch(request, enabled=True)


def disable(request: CommandRequest) -> int:
    return _switch(request, enabled=False)


def _switch(request: CommandRequest, *, enabled: bool) -> int:
    one = find_extension(request.words[0])
    manifest, store = load(one.directory), TrustStore(home())
    trusted = one.source == "project" and store.is_trusted(one.directory, changeable(manifest, one.directory))
    changed = set_enabled(one.directory, enabled=enabled)
    if trusted and changed:
        # Renew the trust: only the switch has changed.
        store.trust(one.directory, changeable(manifest, one.directory))
    if request.json:
        write_json({"name": one.name, "directory": one.directory, "enabled": enabled, "changed": changed})
    else:
        word = "enabled" if enabled else "disabled"
        write(f"{word} {one.name}\n" if changed else f"{one.name} is {word} already\n")
    return 0


def trust(request: CommandRequest) -> int:
    """Trust an extension of a project, with its present content."""
    name = request.words[0]
    where, manifest = _of_project(name)
    store = TrustStore(home())
    patterns = changeable(manifest, where)
    covered = coverage(where, patterns)
    changed = store.recorded(where) != covered.fingerprint
    if changed:
        store.trust(where, patterns, shown=covered.fingerprint)
    shadowed = next((one for one in discover_here() if one.name == manifest.name and one.source == "global"), None)
    if request.json:
        hidden = shadowed.directory if shadowed else None
        told = {"name": manifest.name, "directory": where, "trusted": True, "changed": changed, "shadows": hidden}
        write_json({**told, "runs": [manifest.exec, *manifest.args], "covers": msgspec.to_builtins(covered)})
        return 0
    write(f"{'trusted' if changed else 'trusted already:'} {printable(where)}\n")
    write("".join(f"  {line}\n" for line in trust_summary(manifest, covered)))
    if shadowed:
        write(f"in its project it runs instead of the installed one in {printable(shadowed.directory)}\n")
    return 0


def untrust(request: CommandRequest) -> int:
    """Withdraw the trust in an extension of a project."""
    name = request.words[0]
    store = TrustStore(home())
    places = (
        [name] if "/" in name else [*_places(name), os.path.join(absolute_directory(None), ".zot", "extensions", name)]
    )
    known = next((place for place in places if store.untrust(place)), None)
    if known is None:
        raise UserError(f"{printable(name)} was not trusted")
    if request.json:
        write_json({"directory": os.path.realpath(known), "trusted": False})
    else:
        write(f"no longer trusted: {printable(known)}\n")
    return 0


def _of_project(name: str) -> tuple[str, Manifest]:
    """Return the directory and the manifest of the extension to trust. Raise UserError."""
    if "/" in name:
        return os.path.abspath(name), load(name)
    installed = [one for one in discover_here() if one.source == "global" and name == one.name]
    if installed and not _places(name):
        raise UserError(f"{name} is installed and needs no trust; only extensions of a project do")
    one: Located = find_extension(name, ("project",))
    return one.directory, load(one.directory)


def _places(name: str) -> list[str]:
    names = [one for one in discover_here() if one.source == "project"]
    return [one.directory for one in names if name in (one.name, os.path.basename(one.directory))]


GROUP = CommandGroup("zot ext", "Manage extensions: programs that add tools, commands, panels and guards.", (
    Subcommand("list", "", "List extensions and their state.", list_),
    Subcommand("install", "PATH|GIT-URL", "Install an extension for every session.", install, _ONE),
    Subcommand("remove", "NAME", "Delete an installed extension and its data.", remove, _ONE, (
        Flag("--yes", "Do not ask for confirmation.", short="-y"),
    ), alias="rm"),
    Subcommand("enable", "NAME", "Enable a disabled extension.", enable, _ONE),
    Subcommand("disable", "NAME", "Disable an extension without deleting it.", disable, _ONE),
    Subcommand("logs", "NAME", "Print an extension's log.", logs, _ONE, (
        Flag("--follow", "Keep printing new lines until interrupted.", short="-f"),
    )),
    Subcommand("trust", "NAME|DIR", "Trust a project's extension, as its files are now.", trust, _ONE),
    Subcommand("untrust", "NAME|DIR", "Withdraw the trust in a project's extension.", untrust, _ONE),
    Subcommand("new", "NAME [DIR]", "Create a working extension in DIR (default: ./NAME).", "ext_author.new", (1, 2), (
        Flag("--lang", f"Use {', '.join(_LANGUAGES[:-1])} or {_LANGUAGES[-1]} (default: {_LANGUAGES[0]}).",
             value="LANGUAGE", parse=flags.choice(*_LANGUAGES)),
    )),
    Subcommand("test", "DIR", "Test an extension as a session would use it.", "ext_author.test", _ONE, (
        Flag("--call-tools", "Also call its tools, with made-up arguments. They take effect."),
        *_AS_IN_SESSIONS,
    )),
    Subcommand("run", "DIR", "Start an extension and type its commands, such as /NAME ARGS.", "ext_author.run", _ONE, (
        Flag("--trace", "Print every frame: > sent, < received."),
        *_AS_IN_SESSIONS,
    )),
), flags=(JSON_FLAG,), note="NAME is the name of an extension, or its directory.", examples=(
    ("zot ext new greet && zot ext test greet", "Create an extension and test it."),
    ("zot ext install ./greet", "Make it available to every session."),
), more_examples=(
    ("zot ext list --json", "Print the extensions for a program."),
    ("zot ext install https://git.example/greet.git", "Install the newest commit of a repository."),
    ("zot ext remove greet", "Delete it, after a confirmation."),
    ("zot ext enable greet", "Run it again in new sessions."),
    ("zot ext disable greet", "Keep its files and its data, but do not run it."),
    ("zot ext logs -f greet", "Watch its standard error."),
    ("zot ext trust .zot/extensions/notes", "Let the project's extension run, until one of its files changes."),
    ("zot ext untrust notes", "Stop running it in new sessions."),
    ("zot ext new --lang typescript greet", "Create one for Node."),
    ("zot ext test --call-tools greet", "Also call its tools."),
    ("zot ext run --trace greet", "Type commands and watch the frames."),
))  # fmt: skip
main = GROUP.main
