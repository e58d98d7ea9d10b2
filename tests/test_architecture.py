"""What holds for the whole source: who may import whom, how long a file may be, and what nobody may do."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "zot"
FILES = sorted(SRC.rglob("*.py"))

#: What each part may import besides itself. A part that is not here may not exist: say first where it belongs.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "learned": set(),
    "version": set(),
    "surrogates": set(),
    "printable": set(),
    "regular": set(),
    "private": {"errors"},
    "pipe_name": set(),
    # Whoever looks for the daemon starts quickly, so it knows next to nothing.
    "endpoint": {"errors", "pipe_name"},
    "messages": {"errors"},
    "encoding": {"surrogates"},
    "events": {"learned", "errors", "messages"},
    "slash": set(),
    "open_panels": {"events"},
    "flags": {"errors"},
    "listen_address": {"errors"},
    "daemon_settings": {"flags", "listen_address"},
    "config_file": {"learned", "errors", "printable", "regular", "flags", "daemon_settings", "providers/vendors"},
    "config": {"learned", "errors", "flags", "config_file", "providers/vendors", "agent/policy"},
    # One reading of the file, with an eye to what the agent would make of it.
    "agents": {"errors", "config", "config_file", "daemon_settings", "agent/policy", "providers/vendors"},
    # It asks where settings come from, which nobody who runs an agent needs to know.
    "origins": {"errors", "config", "agents", "credentials", "provision", "providers/vendors", "providers/models"},
    "auth_file": {"learned", "errors", "private"},
    "token_file": {"errors", "private"},
    "credentials": {"errors", "config", "auth_file", "providers/vendors"},
    # A command that prints a key is kept as tools keep theirs.
    "key_command": {"errors", "credentials", "tools"},
    "fingerprint": {"errors", "regular"},
    "skills": {"errors", "regular"},
    "instructions": set(),
    "patterns": set(),
    "schema": {"errors", "regular", "patterns"},
    "trust": {"learned", "errors", "private", "messages", "fingerprint"},
    "store": {"errors", "messages", "events"},
    "journal": {"learned", "errors", "messages", "encoding", "events", "store", "surrogates"},
    "readable": {"messages"},
    "wire": {"learned", "errors", "messages", "encoding", "events", "open_panels", "surrogates", "outcome"},
    # The protocol without I/O in `peer.py`, and around it what spawns, asks and tells.
    "extensions": {
        "errors", "printable", "private", "regular", "messages", "events", "slash", "wire", "fingerprint", "agent",
        "learned", "tools/base", "tools", "store",
    },
    "extension_host": {
        "errors", "printable", "config", "trust", "version", "agent", "toolbox", "extensions", "reloadable", "store",
    },
    # The SDK for extensions: wire types only.
    "ext": {"learned", "errors", "wire"},
    "tools/base": {"errors", "messages", "store"},
    "tools": {"learned", "errors", "printable", "private", "surrogates", "messages", "store", "tools/base", "skills"},
    # What a session works with: it picks the concrete tools.
    "toolbox": {"printable", "config", "skills", "trust", "tools/base", "tools", "premises"},
    # The catalogue is read before anything is answered, so it knows next to nothing.
    "providers/vendors": {"errors"},
    "providers/models": {"learned", "errors", "messages", "providers/vendors"},
    "providers/images": {"messages", "providers/vendors"},
    "providers/known_calls": {"messages"},
    "providers/base": {
        "errors", "messages", "events", "providers/models", "providers/images", "providers/known_calls",
    },
    "providers": {
        "errors", "surrogates", "version", "regular", "messages", "events", "providers/vendors", "providers/models",
        "learned", "encoding", "providers/base", "providers/images", "providers/known_calls",
    },
    # lab is a service at the other end of a line: it knows what a transport is, and none of our decoders.
    "providers/lab": {"errors", "regular", "messages", "encoding", "events", "providers/base"},
    # A rule makes sense or not wherever it is read.
    "agent/policy": {"errors"},
    "agent": {
        "errors", "printable", "surrogates", "messages", "events", "slash", "store", "schema", "providers/base",
        "tools/base", "agent/policy",
    },
    # What the sessions of one process share: it keeps the shared parts and lends them.
    "premises": {"store", "key_command", "providers/base", "providers", "tools"},
    "history": {"errors", "messages", "events", "store", "agent"},
    "job": {"errors", "surrogates", "messages", "store", "agent"},
    "outcome": {"messages", "events"},
    "answers": {"learned", "errors", "messages", "events", "printable", "store", "journal", "agent", "outcome"},
    "past": {"errors", "messages", "events", "store", "agent"},
    "abortable": {"errors"},
    "mending": {"errors", "store", "agent", "history", "job", "past"},
    "driver": {"events", "agent", "history", "mending"},
    "waiting": {"errors", "job"},
    "worker": {"errors", "messages", "events", "store", "agent", "history", "job", "waiting", "mending", "driver"},
    "branches": {"messages", "store", "agent"},
    "checkpoints": {"errors", "messages", "store", "agent", "past"},
    "rewind": {"errors", "messages", "store", "history", "job", "checkpoints"},
    "session_state": {"messages", "events"},
    "session": {
        "session_state",
        "errors", "messages", "events", "slash", "store", "agent", "history", "job", "past", "worker",
        "rewind", "mending", "abortable",
    },
    # What faces see of a session.
    "conversation": {"errors", "messages", "events", "slash", "history"},
    "reloadable": {"errors", "messages", "events", "slash", "store", "tools/base", "agent", "extensions"},
    "hub": {"errors", "history", "session"},
    # The same for a daemon, whose sessions it opens.
    "establishment": {
        "errors", "store", "config", "agents", "daemon_settings", "endpoint", "hub", "answers", "journal", "premises",
        "provision", "providers/models", "runtime", "session", "serve", "wire", "left_providers", "aside", "past",
        "mending", "messages",
    },
    "briefing": {"errors", "regular", "config", "instructions", "agent", "toolbox"},
    "guard": {"config", "provision", "answers", "agent", "agent/policy"},
    # The only one that picks concrete parts.
    "runtime": {
        "errors", "store", "config", "provision", "premises", "agent", "agent/policy", "session", "toolbox", "briefing",
        "guard", "schema", "journal", "answers", "extension_host", "past", "preloading", "clock",
    },
    "clock": {"errors", "messages"},
    # It names what it loads: the parts of a session, which runtime is about to pick.
    "preloading": set(),
    "provision": {
        "errors", "premises",
        "config", "credentials", "key_command", "providers/vendors", "providers/models", "providers/base", "providers",
        "providers/lab",
    },
    "sdk": {
        "errors", "messages", "events", "slash", "config", "providers/base", "history", "job", "outcome", "rewind",
        "session", "session_state", "runtime",
    },
    "blocking": {"errors", "messages", "events", "config", "providers/base", "rewind", "session_state", "sdk"},
    "serve": {
        "errors", "version", "printable", "private", "regular", "messages", "events", "slash", "history", "job",
        "learned", "outcome", "answers", "session", "hub", "wire", "journal", "agents", "daemon_settings", "endpoint",
        "tools", "encoding", "open_panels", "past", "store", "providers/models", "reloadable",
        "abortable", "aside",
    },
    # The daemon for browsers; `embedded` puts one together inside another program.
    "web": {
        "errors", "token_file", "listen_address", "wire", "serve", "agents", "endpoint", "establishment", "journal",
        "premises", "session", "extension_host", "extensions", "store",
    },
    # Who talks to a daemon needs nothing of what a daemon is made of.
    "client_line": {"errors", "printable", "serve"},
    "client_session": {"errors", "messages", "events", "wire"},
    "client": {"learned", "errors", "version", "endpoint", "wire", "client_line", "client_session"},
    # A conversation and a home in the daemon. Faces do not know them.
    "client_conversation": {
        "errors", "messages", "events", "slash", "conversation", "history", "wire", "client", "client_session",
    },
    "client_home": {"errors", "conversation", "client", "client_session", "client_conversation"},
    # A conversation and a home in this process. Faces do not know them.
    "overhearing": {"errors", "events", "history", "session", "store"},
    "aside": {"errors", "messages", "config", "agent", "history", "outcome", "session"},
    "left_providers": {"errors", "config", "provision", "providers/models", "providers/vendors"},
    "local": {
        "errors", "messages", "events", "slash", "store", "config", "conversation", "history", "aside", "past",
        "overhearing", "left_providers", "abortable", "open_panels",
        "session", "runtime", "reloadable", "providers/models",
    },
    "local_home": {
        "errors", "messages", "config", "conversation", "local", "runtime", "session", "journal", "skills", "trust",
        "extensions", "auth_file", "credentials", "providers", "providers/vendors", "private", "printable",
    },
    "about": {"readable"},
    "html": {"messages", "readable", "about"},
    # It sees conversations and events, and nothing behind them.
    "tui": {
        "errors", "messages", "events", "slash", "printable", "readable", "history", "conversation", "html",
        "about", "private",
    },
    # It looks at everything, and nobody but its command looks at it.
    "doctor": {
        "errors", "version", "config", "auth_file", "credentials", "key_command", "providers/vendors", "providers/base",
        "providers", "tools", "endpoint", "token_file",
    },
    "commands": {
        "errors", "version", "printable", "messages", "events", "flags", "config", "skills", "trust", "providers/lab",
        "learned", "config_file", "agents", "origins", "establishment", "premises",
        "wire", "encoding",
        "provision", "runtime", "serve", "auth_file", "credentials", "key_command", "providers/vendors",
        "providers/models", "providers", "doctor", "session", "store", "agent", "history", "job", "journal", "past",
        "readable", "branches", "rewind", "tools", "schema", "answers", "extensions", "extension_host", "endpoint",
        "conversation", "local_home", "tui", "daemon_settings", "listen_address", "web", "client", "client_session",
        "html", "client_home", "preloading", "private", "outcome", "token_file",
    },
    # It imports the command that was named, by name; one that must answer is not to die while it is loaded.
    "cli": {"errors", "version", "serve", "readable"},
    "__main__": {"cli"},
    # The face of the SDK re-exports; it loads nothing until it is asked.
    "__init__": {
        "errors", "version", "messages", "encoding", "events", "config", "rewind", "sdk", "blocking", "wire", "client",
        "client_session",
    },
}  # fmt: skip


def part_of(name: str) -> str:
    """Return the part a module of ours belongs to; the shortest name that the table may have."""
    first, *rest = name.removeprefix("zot").removeprefix(".").split(".")
    if not first:
        return "__init__"
    if rest and f"{first}/{rest[0]}" in MAY_IMPORT:
        return f"{first}/{rest[0]}"
    return first


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imported(path: Path) -> tuple[str, ...]:
    """Return the modules of ours that a file imports: at the top, inside functions, and for the type checker only."""
    return seen(path)[0]


def calls(path: Path) -> tuple[tuple[str, int], ...]:
    """Return what a file calls, by its last name, and on which line."""
    return seen(path)[1]


@cache
def seen(path: Path) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    # Not the tree itself: whoever looks for garbage in the tests to come would have to look at a million nodes.
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    return tuple(_imported(nodes, path)), tuple(_calls(nodes))


def _imported(nodes: Sequence[ast.AST], path: Path) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if part_is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            if node.module is not None and part_is_ours(node.module):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner in MODULES else node.module


def _calls(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name, node.lineno
                case _:
                    pass


def part_is_ours(name: str) -> bool:
    return name == "zot" or name.startswith("zot.")


def import_edges() -> set[tuple[str, str]]:
    return {(part_of(module_of(path)), part_of(name)) for path in FILES for name in imported(path)}


def test_every_module_has_its_place() -> None:
    assert {part_of(module) for module in MODULES} == MAY_IMPORT.keys()


def test_every_import_points_inward() -> None:
    wrong = [(who, whom) for who, whom in sorted(import_edges()) if who != whom and whom not in MAY_IMPORT[who]]
    assert wrong == []


def test_what_is_allowed_is_used() -> None:
    """A permission nobody needs is an invitation."""
    basics = {"errors", "messages", "events", "version"}
    used = import_edges()
    idle = [(who, whom) for who, allowed in MAY_IMPORT.items() for whom in allowed - basics if (who, whom) not in used]
    assert idle == []


def test_the_table_has_no_circles() -> None:
    placed: set[str] = set()
    while ready := {part for part, needs in MAY_IMPORT.items() if part not in placed and needs <= placed}:
        placed |= ready
    assert placed == MAY_IMPORT.keys()


def test_the_functions_here_see_what_they_are_there_to_see() -> None:
    assert ("provision", "providers") in import_edges()
    assert ("agent", "tools/base") in import_edges()
    assert part_of("zot.providers.lab.script") == "providers/lab"
    assert part_of("zot.providers.anthropic") == "providers"
    assert part_of("zot") == "__init__"
    assert "append" in {name for path in FILES for name, _ in calls(path)}


def test_what_is_read_is_learned_by_one_thread_at_a_time() -> None:
    """Two that meet a class for the first time would crash the process: see `zot/learned.py`."""
    plain = {"dict", "list", "str", "int", "float", "Any", "Raw", "msgspec", "datetime", "ExtensionName", "wire"}
    wrong = [
        f"{path.relative_to(SRC)}:{kind.lineno}"
        for path in FILES
        if path.name != "learned.py" and "msgspec" in path.read_text()
        for kind in read_kinds(path)
        if not ast.unparse(kind).startswith("learned(") and not words(kind) <= plain
    ]
    assert wrong == []


def read_kinds(path: Path) -> Iterator[ast.expr]:
    """Return the types that functions in a file let msgspec read; what is done while it is loaded is done once."""
    functions = [
        one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for call in [one for function in functions for one in ast.walk(function) if isinstance(one, ast.Call)]:
        match ast.unparse(call.func), call.args:
            case ("msgspec.convert", [_, kind, *_]) | ("msgspec.json.Decoder", [kind, *_]):
                yield kind
            case "msgspec.json.decode", _:
                yield from (one.value for one in call.keywords if one.arg == "type")
            case _:
                pass


def words(kind: ast.expr) -> set[str]:
    names = {one.id for one in ast.walk(kind) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(kind) if isinstance(one, ast.Attribute)}


CALLS_NOBODY_MAKES = {
    "splitlines": "it also cuts at U+2028 and friends",
    "readline": "it fails beyond 64 KiB",
    "print": "stdout is the wire",
}


@pytest.mark.parametrize("name", CALLS_NOBODY_MAKES)
def test_nobody_calls_this(name: str) -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for called, line in calls(path) if called == name]
    assert found == [], CALLS_NOBODY_MAKES[name]


WORDS_NOBODY_WRITES = {
    r"\bpypi\b|pythonhosted|artifactory|\bnexus\b": "no package index is named",
    r"# type: ignore(?!\[[\w,-]+\]  # )": "a suppression carries its reason",
}


@pytest.mark.parametrize("pattern", WORDS_NOBODY_WRITES)
def test_nobody_writes_this(pattern: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in FILES if re.search(pattern, path.read_text(), re.IGNORECASE)]
    assert found == [], WORDS_NOBODY_WRITES[pattern]


def test_no_module_is_named_after_nothing() -> None:
    assert not {"utils", "helpers", "common", "types"} & {path.stem for path in FILES}


def test_the_core_depends_on_two_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=!~\[; ]", dependency)[0] for dependency in project["dependencies"]]
    assert names == ["msgspec", "httptools"]


def test_pinned_versions_name_no_index() -> None:
    lines = (ROOT / "constraints.txt").read_text().rstrip("\n").split("\n")
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    assert {"msgspec", "httptools", "pytest", "mypy", "ruff"} <= pinned


def test_importing_zot_loads_nothing_else() -> None:
    heavy = "('zot.', 'msgspec', 'asyncio')"
    code = f"import sys, zot; print([name for name in sys.modules if name.startswith({heavy})])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "[]\n"


def test_the_events_are_there_before_anything_else_was_used() -> None:
    code = "import zot; print('events' in dir(zot), zot.events.Done.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "True Done\n"


def test_what_zot_offers_can_be_had() -> None:
    import zot

    offered = list(zot.__all__)
    assert "Runtime" in offered
    assert [name for name in offered if getattr(zot, name, None) is None] == []
    assert {*offered} <= {*dir(zot)}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        zot.nonsense  # noqa: B018


def test_what_the_readme_points_to_exists() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert any(target.startswith("docs/") for target in targets)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_no_two_parts_offer_a_function_of_the_same_name_for_the_same() -> None:
    """What makes text safe, and what writes files for their owner only, is each there once."""
    watched = re.compile(r"^def (one_line|printable_line|write_new|write_page|_diff|summary)\(", re.MULTILINE)
    found = [name for path in FILES for name in watched.findall(path.read_text())]
    assert len(found) == len({*found})


def test_make_mutants_changes_modules_that_exist_and_runs_tests_that_exist() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
    changed = script["modules"]([], namespace=True)
    assert all(script["area_of"](module) for module in changed)
    source = "def f(a: int = 1):\n    if a > 20 and not a:\n        raise ValueError(f'{a > 1}')\n    log.info(a)\n"
    assert [(one.line, one.before, one.after) for one in script["mutants"]("x.py", source)] == [
        (1, "1", "2"),
        (2, "a > 20 and not a", "((a > 20) or (not a))"),
        (2, "a > 20", "(a >= 20)"),
        (2, "a > 20", "(a <= 20)"),
        (2, "20", "600"),
        (2, "not a", "(a)"),
        (3, "raise ValueError(f'{a > 1}')", "pass"),
    ]
