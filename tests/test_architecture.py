"""Rules for the whole source tree: import direction, no import cycles, forbidden calls and words."""

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
#: The packages that each package may import, besides itself and the vocabulary. A row a package.
VOCABULARY = {
    "errors",
    "version",
    "text",
    "files",
    "encoding",
    "messages",
    "events",
    "store",
    "panels",
    "questions",
    "run_summary",
    "file_names",
}
MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "wire": set(),
    "journal": set(),
    # The queue of prompts for workers: it knows the database, and no session.
    "fleet": {"journal"},
    "tools": {"config"},
    "providers": {"config"},
    "agent": {"config", "providers", "tools"},
    "extensions": {"config", "wire", "tools", "agent"},
    # Servers run like extensions, and their logs are kept alike.
    "mcp": {"config", "wire", "tools", "providers", "extensions"},
    # Extensions run in processes of their own: the SDK for them knows the wire types only.
    "ext": {"wire"},
    "session": {"config", "tools", "agent"},
    # The only package that picks concrete parts.
    "runtime": {"config", "journal", "tools", "providers", "agent", "extensions", "mcp", "session"},
    "client": {"config", "wire"},
    "sdk": {"config", "providers", "session", "runtime"},
    "serve": {
        "config", "wire", "journal", "fleet", "tools", "providers", "extensions", "session", "runtime", "client",
    },
    "ui": {"config", "wire", "journal", "providers", "extensions", "session", "runtime", "client"},
    "commands": {
        "config", "wire", "journal", "fleet", "tools", "providers", "agent", "extensions", "mcp", "session", "runtime",
        "client", "serve", "ui",
    },
    # It imports the command that argv names, by name.
    "cli": {"serve"},
    "__main__": {"cli"},
    # Names of the public API, loaded when they are first used.
    "__init__": {"config", "wire", "session", "client", "sdk"},
}  # fmt: skip
#: Modules that see less than their package may.
NARROWER: dict[str, set[str]] = {
    # lab is a service at the other end of a connection: it knows the transport, and none of our decoders.
    "zot.providers.lab": {"zot.providers.base", "zot.providers.lab"},
    # The terminal sees conversations and events only.
    "zot.ui.terminal": {"zot.ui", "zot.session.history"},
    "zot.ui.conversation": {"zot.session.history"},
    # The agent knows no provider, no protocol and no user interface.
    "zot.agent": {"zot.agent", "zot.config.policy", "zot.providers.base", "zot.tools.base"},
}

#: Where modules import inside functions, as pairs of packages, by the reason. Elsewhere imports are at the top.
SEAMS: dict[str, set[tuple[str, str]]] = {
    "a command imports what it runs": {
        ("cli", "serve"), ("cli", "vocabulary"), ("commands", "commands"), ("commands", "serve"), ("commands", "ui"),
        ("commands", "providers"), ("commands", "runtime"), ("commands", "agent"),
        ("commands", "client"),
    },
    "the first answer comes before the rest of a protocol": {
        ("serve", "serve"), ("serve", "runtime"), ("serve", "wire"), ("serve", "client"), ("serve", "config"),
        ("wire", "wire"), ("ext", "ext"),
    },
    "settings and files that few users have": {("config", "config"), ("runtime", "config"), ("runtime", "agent")},
    "a session imports the parts that it uses": {
        ("runtime", "providers"), ("runtime", "tools"), ("runtime", "runtime"), ("runtime", "journal"),
        ("runtime", "vocabulary"), ("agent", "vocabulary"), ("tools", "vocabulary"), ("session", "session"),
        ("session", "agent"), ("mcp", "mcp"), ("mcp", "vocabulary"),
    },
    "protection, only under a lock": {("tools", "tools"), ("tools", "config")},
    "repair and failed runs": {("journal", "journal")},
    "an extra, or what is drawn after the first frame": {("client", "client"), ("ui", "ui")},
}  # fmt: skip
#: Libraries that are imported inside functions: slow to load, and few runs need them.
LATE_LIBRARIES = {
    "asyncio", "base64", "ctypes", "difflib", "email", "fnmatch", "hashlib", "hmac", "importlib", "inspect",
    "ipaddress", "json", "jsonschema_rs", "logging", "markdown_it", "ntpath", "pathlib", "queue", "random", "rich",
    "shlex", "signal", "tempfile", "textwrap", "tomllib", "traceback", "urllib", "webbrowser",
}  # fmt: skip


def part_of(name: str) -> str:
    """Return the package, or the module at the top, that a module belongs to."""
    return name.removeprefix("zot").removeprefix(".").partition(".")[0] or "__init__"


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imported(path: Path) -> tuple[str, ...]:
    """Return the modules of ours that a file imports: at the top, inside functions, and for the type checker only."""
    return seen(path)[0]


def calls(path: Path) -> tuple[tuple[str, int], ...]:
    """Return the calls in a file, by their last name, with their lines."""
    return seen(path)[1]


@cache
def seen(path: Path) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    # Not the tree itself: every later garbage collection would have to visit a million nodes.
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


def test_every_module_has_a_row_in_the_import_table() -> None:
    assert {part_of(module) for module in MODULES} == MAY_IMPORT.keys() | VOCABULARY


def test_every_import_points_inward() -> None:
    allowed = {part: {*may, part, *VOCABULARY} for part, may in MAY_IMPORT.items()}
    wrong = [(who, whom) for who, whom in sorted(import_edges()) if who in allowed and whom not in allowed[who]]
    assert wrong == []


def test_the_vocabulary_imports_nothing_but_itself() -> None:
    assert [edge for edge in sorted(import_edges()) if edge[0] in VOCABULARY and edge[1] not in VOCABULARY] == []


def test_every_permission_is_used() -> None:
    used = import_edges()
    assert [(who, whom) for who, allowed in MAY_IMPORT.items() for whom in allowed if (who, whom) not in used] == []


def test_the_table_has_no_cycle() -> None:
    placed: set[str] = set()
    while ready := {part for part, needs in MAY_IMPORT.items() if part not in placed and needs <= placed}:
        placed |= ready
    assert placed == MAY_IMPORT.keys()


@pytest.mark.parametrize("package", NARROWER)
def test_some_modules_see_less_than_their_package_may(package: str) -> None:
    def below(name: str, prefixes: set[str]) -> bool:
        return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)

    wrong = [
        f"{module_of(path)} imports {name}"
        for path in FILES
        if below(module_of(path), {package})
        for name in imported(path)
        if part_of(name) not in VOCABULARY and not below(name, NARROWER[package])
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Imports inside functions count; those for the type checker do not."""
    needs = {module_of(path): {*run_time_imports(path)} - {module_of(path)} for path in FILES}
    while ready := [module for module, needed in needs.items() if not needed & needs.keys()]:
        for module in ready:
            del needs[module]
    assert sorted(needs) == [], "these modules, or modules that they import, form a cycle"


def run_time_imports(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return _imported([node for node in ast.walk(tree) if node not in typing_only], path)


def late_imports(path: Path) -> Iterator[str]:
    """Return the modules that a file imports inside functions."""
    functions = [
        one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in [inner for function in functions for inner in ast.walk(function)]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from (inner if inner <= MODULES else {node.module})


def test_imports_inside_functions_are_at_the_named_seams() -> None:
    late = {(part_of(module_of(path)), name) for path in FILES for name in late_imports(path)}
    ours = {(who, part_of(whom)) for who, whom in late if part_is_ours(whom)}
    pairs = {(who, "vocabulary" if whom in VOCABULARY else whom) for who, whom in ours}
    assert pairs == {pair for seam in SEAMS.values() for pair in seam}
    assert sum(len(seam) for seam in SEAMS.values()) == len(pairs), "each pair is at one seam"
    assert {whom.partition(".")[0] for _, whom in late if not part_is_ours(whom)} == LATE_LIBRARIES


def test_the_helpers_of_this_file_find_their_cases() -> None:
    assert ("runtime", "providers") in import_edges()
    assert ("agent", "tools") in import_edges()
    assert part_of("zot.providers.lab.script") == "providers"
    assert part_of("zot") == "__init__"
    assert "append" in {name for path in FILES for name, _ in calls(path)}
    assert "zot.serve.daemon.daemon_process" in {*run_time_imports(SRC / "commands" / "daemon.py")}


def test_types_are_compiled_by_one_thread_at_a_time() -> None:
    """Two that meet a class for the first time would crash the process: see `thread_safe_type` in `zot/encoding.py`."""
    plain = {"dict", "list", "str", "int", "float", "Any", "Raw", "msgspec", "datetime", "ExtensionName", "wire"}
    wrong = [
        f"{path.relative_to(SRC)}:{kind.lineno}"
        for path in FILES
        if path != SRC / "encoding.py" and "msgspec" in path.read_text()
        for kind in read_kinds(path)
        if not ast.unparse(kind).startswith("thread_safe_type(") and not words(kind) <= plain
    ]
    assert wrong == []


def read_kinds(path: Path) -> Iterator[ast.expr]:
    """Return the types that functions in a file pass to msgspec; code at module level runs once, in one thread."""
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


FORBIDDEN_CALLS = {
    "splitlines": "it also cuts at U+2028 and friends",
    "readline": "it fails beyond 64 KiB",
    "print": "stdout is the wire",
}


@pytest.mark.parametrize("name", FORBIDDEN_CALLS)
def test_no_module_calls_this(name: str) -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in FILES for called, line in calls(path) if called == name]
    assert found == [], FORBIDDEN_CALLS[name]


FORBIDDEN_TEXT = {
    r"\bpypi\b|pythonhosted|artifactory|\bnexus\b": "no package index is named",
    r"# type: ignore(?!\[[\w,-]+\]  # )": "a suppression carries its reason",
}


@pytest.mark.parametrize("pattern", FORBIDDEN_TEXT)
def test_no_module_contains_this(pattern: str) -> None:
    found = [str(path.relative_to(ROOT)) for path in FILES if re.search(pattern, path.read_text(), re.IGNORECASE)]
    assert found == [], FORBIDDEN_TEXT[pattern]


def test_no_module_has_an_empty_name() -> None:
    assert not {"utils", "helpers", "common", "types"} & {path.stem for path in FILES}


#: A test name states a behaviour: it begins with the thing that acts, and uses the verbs of the field.
OBLIQUE_NAME = re.compile(
    r"test_(what|who|whoever|whose|that)_"
    r"|_(who|whoever|nobody|somebody|everybody|anybody|hears?|heard|told|said|behind|mended|stands)(?=_|$)"
    r"|_(goes?_on|gone_on|let_go|by_the_way|for_ever|as_it_was|all_the_same)(?=_|$)"
)


def test_test_names_are_plain_sentences() -> None:
    oblique = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        if OBLIQUE_NAME.search(name)
    ]
    assert oblique == []


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


def test_the_events_are_available_before_anything_else_is_used() -> None:
    code = "import zot; print('events' in dir(zot), zot.events.Done.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout == "True Done\n"


def test_every_public_name_of_zot_can_be_imported() -> None:
    import zot

    offered = list(zot.__all__)
    assert "Runtime" in offered
    assert [name for name in offered if getattr(zot, name, None) is None] == []
    assert {*offered} <= {*dir(zot)}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        zot.nonsense  # noqa: B018


def test_every_path_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert any(target.startswith("docs/") for target in targets)
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_no_two_packages_define_the_same_function() -> None:
    """The code that makes text safe and the code that writes private files each exist once."""
    watched = re.compile(r"^def (one_line|printable_line|write_new|write_page|_diff|summary)\(", re.MULTILINE)
    found = [name for path in FILES for name in watched.findall(path.read_text())]
    assert len(found) == len({*found})


def test_make_mutants_changes_modules_that_exist_and_runs_tests_that_exist() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
    changed = script["modules"]([], namespace=True)
    assert all(script["area_of"](module) for module in changed)
    assert [place for place in script["DANGEROUS"] if not (SRC / place).exists()] == []
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
