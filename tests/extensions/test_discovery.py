"""Which extensions run: those that were named, that are trusted, that are installed; each name once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from zot.config.trust import TrustStore
from zot.errors import ConfigError
from zot.extensions.discovery import discover
from zot.extensions.manifest import FIELD_RULES, SCOPE_RULES, Manifest, changeable, load, program
from zot.extensions.permissions import Permissions

from .stage import Extension, Stage, results
from .test_manager import TOOL


def put(place: Path, name: str, **fields: object) -> Path:
    directory = place / name
    directory.mkdir(parents=True)
    (directory / "extension.json").write_text(json.dumps({"name": name, "exec": "./run", **fields}))
    return directory


def everything(directory: str, data: Sequence[str]) -> bool:
    return True


def nothing(directory: str, data: Sequence[str]) -> bool:
    return False


def test_the_order_is_named_then_project_then_global_each_by_name(tmp_path: Path) -> None:
    project, installed = tmp_path / "cwd" / ".zot" / "extensions", tmp_path / "home" / "extensions"
    named = [put(tmp_path, name) for name in ("y", "x")]
    for place, names in ((project, "db"), (installed, "ca")):
        for name in names:
            put(place, name)
    found = discover(
        cwd=str(tmp_path / "cwd"),
        home=str(tmp_path / "home"),
        explicit=[str(one) for one in named],
        is_trusted=everything,
    )
    assert [(one.name, one.source) for one in found] == [
        ("y", "ext"), ("x", "ext"), ("b", "project"), ("d", "project"), ("a", "global"), ("c", "global"),
    ]  # fmt: skip
    assert {one.standing for one in found} == {"runs"}


def test_the_first_runnable_extension_of_a_name_wins(tmp_path: Path) -> None:
    project, installed = tmp_path / ".zot" / "extensions", tmp_path / "home" / "extensions"
    put(project, "same")
    put(project, "off", enabled=False)
    put(installed, "same")
    put(installed, "off")
    (installed / "broken").mkdir()

    def standings(*, trusted: bool) -> list[tuple[str, str, str]]:
        check = everything if trusted else nothing
        found = discover(cwd=str(tmp_path), home=str(tmp_path / "home"), is_trusted=check)
        return [(one.name, one.source, one.standing) for one in found]

    assert standings(trusted=True) == [
        ("off", "project", "disabled"), ("same", "project", "runs"), ("broken", "global", "broken"),
        ("off", "global", "runs"), ("same", "global", "shadowed"),
    ]  # fmt: skip
    assert ("same", "project", "untrusted") in standings(trusted=False)
    assert ("same", "global", "runs") in standings(trusted=False)


NAME = "letters, digits, `.`, `_` and `-`, at most 64 of them, the first a letter or a digit"
EXEC = 'the program to start, such as "./main.py"'
WRONG = {
    "": "is empty; it must be an object with at least `name` and `exec`",
    "{": "is not JSON: it ends too early, at line 1, column 2",
    '{"name": "x"\n "exec": "./run"}': "is not JSON, at line 2, column 2: Expecting ',' delimiter",
    "[]": "must be an object with at least `name` and `exec`, but is []",
    "{}": f"`name` is missing; it must be {NAME}",
    '{"name": "x"}': f"`exec` is missing; it must be {EXEC}",
    '{"name": "../x", "exec": "./run"}': f'`name` must be {NAME}; but it is "../x"',
    '{"name": "x", "exec": ""}': f'`exec` must be {EXEC}; but it is ""',
    '{"name": "x", "exec": null}': f"`exec` must be {EXEC}; but it is null",
    '{"name": "x", "exec": "./run", "args": "a"}': (
        '`args` must be a list of texts, such as ["--quiet"]; but it is "a"'
    ),
    '{"name": "x", "exec": "./run", "enabled": "yes"}': '`enabled` must be true or false; but it is "yes"',
    '{"name": "x", "exec": "./run", "on_failure": "stop"}': '`on_failure` must be "allow" or "block"; but it is "stop"',
    '{"name": "x", "exec": "./run", "intercept": ["all"]}': (
        "`intercept` must be a list of what it decides about: tool_call, turn_start, assistant_message; "
        'but it is ["all"]'
    ),
    '{"name": "x", "exec": "./run\\u0000"}': "`exec` and `args` must be without NUL characters",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_manifest_error_names_the_file_the_field_and_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "extension.json").write_text(text)
    with pytest.raises(ConfigError) as wrong:
        load(str(tmp_path))
    assert str(wrong.value) == f"{tmp_path}/extension.json: {WRONG[text]}"


def test_every_field_has_a_declared_type() -> None:
    assert FIELD_RULES.keys() == {*Manifest.__struct_fields__}
    assert SCOPE_RULES.keys() == {field.encode_name for field in msgspec.structs.fields(Permissions)}


def test_a_program_is_beside_the_manifest_or_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "beside").touch()
    where = {
        name: program(Manifest(name="x", exec=name), str(tmp_path))
        for name in ("./a", "b/c", "beside", "python3", "/bin/sh")
    }
    assert where == {
        "./a": f"{tmp_path}/./a", "b/c": f"{tmp_path}/b/c", "beside": f"{tmp_path}/beside", "python3": "python3",
        "/bin/sh": "/bin/sh",
    }  # fmt: skip


async def test_a_project_extension_runs_only_in_its_trusted_version(tmp_path: Path) -> None:
    project = tmp_path / "project"
    extension = Extension(project / ".zot" / "extensions", "finder", TOOL)
    store = TrustStore(str(tmp_path))

    async def runs(**settings: bool) -> bool:
        async with Stage(tmp_path, cwd=str(project), ext=(), **settings) as stage:
            [(_, is_error)] = results(await stage.prompt('call lookup {"q": "it"} ;; --- ;; say done'))
        return not is_error

    assert not await runs()
    assert await runs(trust_project=True)
    store.trust(str(extension.directory), load(str(extension.directory)).data)
    assert await runs()
    (extension.directory / "data").mkdir(exist_ok=True)
    (extension.directory / "data" / "settings.json").write_text("{}")
    assert await runs()
    (extension.directory / "more.py").write_text("")
    assert not await runs()
    assert not await runs(no_ext=True, trust_project=True)


@pytest.mark.parametrize(
    ("manifest", "runs"),
    [
        ({"exec": "./run.db", "data": ["data/**", "*.db"]}, "run.db"),
        ({"exec": "./run.json"}, "run.json"),
        ({"exec": "python3", "args": ["run.log"]}, "run.log"),
    ],
)
def test_program_files_count_even_where_a_pattern_says_data(
    tmp_path: Path, manifest: dict[str, Any], runs: str
) -> None:
    directory = put(tmp_path, "one", **manifest)
    (directory / runs).write_text("")
    store, described = TrustStore(str(tmp_path)), load(str(directory))
    store.trust(str(directory), changeable(described, str(directory)))
    assert store.is_trusted(str(directory), changeable(described, str(directory)))
    (directory / runs).write_text("changed")
    assert not store.is_trusted(str(directory), changeable(described, str(directory)))


@pytest.mark.parametrize(
    ("manifest", "where"),
    [
        ({"exec": "./data/run.py"}, "which is among its data"),
        ({"exec": "../outside.py"}, "which lies outside of it"),
        ({"exec": "python3", "args": ["../outside.py"]}, "which lies outside of it"),
    ],
)
def test_a_program_outside_the_checked_files_is_never_trusted(
    tmp_path: Path, manifest: dict[str, Any], where: str
) -> None:
    directory = put(tmp_path / ".zot" / "extensions", "one", **manifest)
    for path in (directory / "data" / "run.py", directory.parent / "outside.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    [found] = discover(cwd=str(tmp_path), home=None, is_trusted=everything)
    assert found.standing == "untrusted"
    assert found.problem.endswith(where)


@pytest.mark.parametrize("field", ["permisions", "on_faliure", "Intercept", "enable"])
def test_a_field_that_is_misspelt_is_an_error(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no field '{field}'; did you mean "):
        load(str(put(tmp_path, "one", **{field: {}})))
    assert load(str(put(tmp_path, "two", homepage="x", author="y", license="z"))).name == "two"


async def test_a_broken_manifest_s_guarded_tools_stay_blocked(tmp_path: Path) -> None:
    guarding = {"intercept": ["tool_call"], "on_failure": "block"}
    broken = put(tmp_path / "extensions", "guard", **guarding, version=3)
    async with Stage(tmp_path) as stage:
        [(text, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    assert (text, is_error) == ("extension guard, which guards this, is not running", True)
    [(name, why)] = stage.notices()
    assert (name, why) == (
        "guard",
        f'could not be started: {broken}/extension.json: `version` must be a text, such as "1.0.0"; but it is 3',
    )


ALL = ("tool_call", "turn_start", "assistant_message")
GUARDS = {
    '{"name":"x","exec":"./run","intercept":["tool_call","nope"],"on_failure":"block"}': ("x", ("tool_call",)),
    '{"name":"x","exec":"./run","intercept":"tool_call","on_failure":"block"}': ("x", ("tool_call",)),
    '{"exec":"./run","intercept":["tool_call"],"on_failure":"block"}': ("dir", ("tool_call",)),
    '{"name":"a b","exec":"./run","intercept":["turn_start"],"on_failure":"block"}': ("dir", ("turn_start",)),
    '{"name":"x","exec":"./run","intercept":["tool_call"],"on_failure":"Block"}': ("x", ("tool_call",)),
    '{"name":"x","exec":"./run","intercept":["tool_call"],"on_failur":"block"}': ("x", ("tool_call",)),
    '{"name":"x","exec":"./run","interccept":["tool_call"],"on_failure":"block"}': ("x", ("tool_call",)),
    '{"name":"x","exec":"./run","intercept":["Tool-Call"],"onFailure":"blocked"}': ("x", ("tool_call",)),
    '{"name":"x","exec":"./run","intercept":{"tool_call":true},"on_failure":"block"}': ("x", ALL),
    '{"name":"x","exec":"./run","intercept":["nope"],"on_failure":"block"}': ("x", ALL),
    '{"name":"x","on_failure":"block"}': ("x", ALL),
    '{"name":"x","exec":"./run","intercept":["tool_call"],"on_failure":"block",}': ("dir", ALL),
    '{"name":"x","exec":"./run","intercept":["tool_call"],"on_failure":"bl': ("dir", ALL),
    '{"name":"x","exec":"./run","intercept":["tool_call"],"on_failure":"allow",}': None,
    '{"name":"x","intercept":["tool_call"],"on_failure":"Allow"}': None,
    '{"name":"x","intercept":["tool_call"],"on_failure":"block","enabled":false}': None,
    '{"name":"x","intercept":["tool_call"]}': None,
    '{"name":"x","intercept":[],"on_failure":"block"}': None,
    '[]': None,
}  # fmt: skip


@pytest.mark.parametrize("text", GUARDS)
def test_an_unusable_guard_blocks_the_tools_it_names_or_all(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "extensions" / "dir"
    directory.mkdir(parents=True)
    (directory / "extension.json").write_text(text)
    [found] = discover(cwd=str(tmp_path), home=str(tmp_path), is_trusted=everything)
    guard = found.manifest
    assert (found.standing, found.counts) == ("broken", GUARDS[text] is not None)
    assert (guard and (guard.name, guard.intercept)) == GUARDS[text]
    assert guard is None or guard.on_failure == "block"


def test_a_dangling_link_affects_no_other_extension(tmp_path: Path) -> None:
    put(tmp_path / "extensions", "good")
    (tmp_path / "extensions" / "loop").symlink_to("loop")
    found = discover(cwd=str(tmp_path), home=str(tmp_path), is_trusted=everything)
    assert [(one.name, one.standing, one.counts) for one in found] == [
        ("good", "runs", True), ("loop", "broken", False),
    ]  # fmt: skip


async def test_an_unreadable_extension_may_have_been_a_guard(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for place in (home, project / ".zot"):
        place.mkdir(parents=True)
        (place / "extensions").symlink_to("extensions")
    async with Stage(home, cwd=str(project)) as stage:
        events = await stage.prompt('call read {"path": "."} ;; --- ;; say done')
    assert results(events) == []
    [blocked] = [event["error"] for event in events if event["type"] == "turn_end"]
    assert blocked == "extension extensions, which guards this, is not running"
    assert stage.notices() == [
        ("extensions", f"could not be started: {home}/extensions: Too many levels of symbolic links")
    ]
    async with Stage(home, cwd=str(project), no_ext=True) as stage:
        [(_, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    assert not is_error


def test_an_unreadable_manifest_blocks_everything(tmp_path: Path) -> None:
    for place in (tmp_path / "extensions", tmp_path / ".zot" / "extensions"):
        (place / "dir").mkdir(parents=True)
        (place / "dir" / "extension.json").symlink_to("x" * 300)
    of_project, installed = discover(cwd=str(tmp_path), home=str(tmp_path), is_trusted=everything)
    assert installed.manifest is not None
    assert (installed.manifest.name, installed.manifest.intercept, installed.counts) == ("dir", ALL, True)
    assert not of_project.counts


def test_a_named_copy_replaces_one_with_a_broken_manifest(tmp_path: Path) -> None:
    guarding = {"intercept": ["tool_call"], "on_failure": "block"}
    installed = put(tmp_path / "home" / "extensions", "guard", **guarding, version=3)
    named = put(tmp_path, "guard", **guarding)
    found = discover(cwd=str(tmp_path), home=str(tmp_path / "home"), explicit=[str(named)], is_trusted=everything)
    assert [(one.directory, one.standing, one.counts) for one in found] == [
        (str(named), "runs", True), (str(installed), "shadowed", False),
    ]  # fmt: skip


async def test_a_named_extension_that_is_broken_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: no such directory"):
        async with Stage(tmp_path, ext=(str(tmp_path / "nowhere"),)):
            pass
