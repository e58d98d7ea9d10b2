"""Extensions that declare permissions, in a sandbox that grants nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import zot
from harness import MARK, living
from optional import needs
from zot.config.config import Config
from zot.runtime.extensions import find_extensions

from .stage import Extension, Stage, results

#: Does what it is told to, and says what came of it.
PROBE = """
import signal, socket, subprocess
hello("tools")
say("register_tool", name="probe", schema={"type": "object"})
say("ready")
for frame in frames():
    if frame["type"] == "tool_call":
        outcome = []
        for attempt in frame["args"]["attempts"]:
            try:
                outcome.append(str(eval(attempt)))
            except Exception as problem:
                outcome.append(type(problem).__name__)
        say("tool_result", id=frame["id"], content=[{"type": "text", "text": json.dumps(outcome)}])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""
NO_BWRAP = (
    "it declares permissions, which need bubblewrap, and bwrap is not on the PATH; "
    "to run it without a sandbox: --unsandboxed-ext"
)


class Place:
    """Directories side by side: of zot, of the session, of extensions, and an unrelated one."""

    def __init__(self, top: Path) -> None:
        self.home, self.cwd, self.ext, self.outside = (top / name for name in ("zot", "cwd", "ext", "outside"))
        for directory in (self.home, self.cwd, self.ext, self.outside, top / "user", top / "shims"):
            directory.mkdir()
        (self.outside / "file").write_text("s3cret")
        (self.home / "auth.json").write_text("s3cret")
        # A version manager's directory on the PATH: it would start programs that the manifest does not name.
        shim = top / "shims" / "python3"
        shim.write_text("#!/bin/sh\nexec sort\n")
        shim.chmod(0o755)
        path = f"{shim.parent}:{os.path.dirname(os.path.abspath(sys.executable))}:{os.environ['PATH']}"
        self.env = {
            "ZOT_HOME": str(self.home), "HOME": str(top / "user"), "PATH": path, "MINE": "mine", "LANG": "C.UTF-8",
            "OPENAI_API_KEY": "s3cret", MARK: os.environ.get(MARK, ""),
        }  # fmt: skip

    def probe(self, permissions: dict[str, Any] | None = None, *, script: str = PROBE) -> Extension:
        return Extension(self.ext, "probe", script, permissions={"tools": True, **(permissions or {})})

    def stage(self, *extensions: Extension, **settings: Any) -> Stage:
        return Stage(self.home, *extensions, **{"cwd": str(self.cwd), "env": self.env, **settings})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def tried(stage: Stage, *attempts: str) -> list[str]:
    """Let the extension evaluate ``attempts`` and return the result of each."""
    [(text, is_error)] = results(
        await stage.prompt(f"call probe {json.dumps({'attempts': attempts})} ;; --- ;; say done")
    )
    assert not is_error, text
    outcome: list[str] = json.loads(text)
    return outcome


#: What each scope is for.
SCOPES: list[tuple[str, Any]] = [
    ("fs.read", ["{outside}"]),
    ("fs.write", ["{outside}"]),
    ("net", True),
    ("exec", ["sh"]),
    ("env", ["MINE"]),
    ("", None),
]


@needs("bwrap")
@pytest.mark.parametrize(("scope", "value"), SCOPES)
async def test_each_scope_allows_one_thing_and_nothing_else(place: Place, scope: str, value: Any) -> None:
    named = [str(item).format(outside=place.outside) for item in value] if isinstance(value, list) else value
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, place.stage(place.probe({scope: named} if scope else None)) as stage:
        outcome = await tried(
            stage,
            f"open('{place.outside}/file').read()",
            f"open('{place.outside}/new', 'w').write('x')",
            f"socket.create_connection(('127.0.0.1', {port}), 2).close()",
            "subprocess.run(['sh', '-c', 'exit 7']).returncode",
            "os.environ['MINE']",
        )
    refused = ["FileNotFoundError", "FileNotFoundError", "ConnectionRefusedError", "FileNotFoundError", "KeyError"]
    allowed = {
        "fs.read": ["s3cret", "OSError", *refused[2:]],
        "fs.write": ["s3cret", "1", *refused[2:]],
        "net": [*refused[:2], "None", *refused[3:]],
        "exec": [*refused[:3], "7", refused[4]],
        "env": [*refused[:4], "mine"],
    }
    assert outcome == allowed.get(scope, refused)
    assert (place.outside / "new").exists() is (scope == "fs.write")


@needs("bwrap")
async def test_its_directory_can_be_read_its_data_written_and_the_rest_is_empty(place: Place) -> None:
    probe = place.probe()
    async with place.stage(probe) as stage:
        outcome = await tried(
            stage,
            "json.load(open('extension.json'))['name']",
            "open('extension.json', 'a')",
            "open('new', 'w')",
            "open('data/kept', 'w').write('kept')",
            "os.listdir(os.path.expanduser('~'))",
            "open(os.path.expanduser('~/mine'), 'w').write('x')",
            "sorted(os.environ)",
            "[name for name in os.listdir('/proc') if name.isdigit()][2:]",
            "sorted({*os.listdir('/usr/bin')} - {'env'}) == sorted(n for n in os.listdir('/usr/bin') if 'python' in n)",
        )
    assert outcome == [
        "probe", "OSError", "OSError", "4", "[]", "1", "['HOME', 'LANG', 'PATH', 'PWD', 'TMPDIR']", "[]", "True"
    ]  # fmt: skip
    assert (probe.directory / "data" / "kept").read_text() == "kept"
    [ack] = [json.loads(line) for line in (probe.directory / "data/heard").read_text().splitlines() if "_ack" in line]
    assert (ack["extension_dir"], ack["data_dir"]) == (str(probe.directory), str(probe.directory / "data"))


@needs("bwrap")
async def test_zot_s_own_files_are_hidden_inside_allowed_directories(place: Place) -> None:
    (place.cwd / "zot").mkdir()
    (place.cwd / "zot" / "auth.json").write_text("s3cret")
    (place.cwd / "notes").write_text("notes")
    env = {**place.env, "ZOT_HOME": str(place.cwd / "zot")}
    probe = place.probe({"fs.write": ["$CWD"], "env": True})
    async with place.stage(probe, env=env) as stage:
        assert await tried(
            stage,
            f"open('{place.cwd}/notes').read()",
            f"os.listdir('{place.cwd}/zot')",
            "'OPENAI_API_KEY' in os.environ",
        ) == ["notes", "[]", "False"]


@needs("bwrap")
@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["{home}/auth.json"], "permissions: fs.read: {home}/auth.json is where zot keeps its own files"),
        (["{outside}/proc"], "permissions: fs.read: {outside}/proc belongs to the kernel"),
        (["{outside}/root"], "permissions: fs.read: {outside}/root is everything; name what is needed"),
        (["$CWD/link"], "permissions: fs.read: $CWD/link leads out of there"),
        (["$CWD/../outside"], "permissions: fs.read: $CWD/../outside leads out of there"),
        (["../../outside"], "permissions: fs.read: ../../outside leads out of there"),
        (["extension.json"], "permissions: fs.read: extension.json is what says so, and stays as it is"),
    ],
)
async def test_an_impossible_permission_prevents_its_start(place: Place, paths: list[str], problem: str) -> None:
    (place.outside / "proc").symlink_to("/proc/self")
    (place.outside / "root").symlink_to("/")
    (place.cwd / "link").symlink_to(place.outside)
    named = {"home": place.home, "outside": place.outside}
    probe = place.probe({"fs.read": [path.format(**named) for path in paths]})
    async with place.stage(probe, unsandboxed_ext=True) as stage:
        await stage.prompt("say done")
    assert stage.notices() == [("probe", f"could not be started: {problem.format(**named)}")]


@needs("bwrap")
async def test_a_data_directory_that_is_a_link_prevents_its_start(place: Place) -> None:
    probe = place.probe()
    (probe.directory / "data").rmdir()
    (probe.directory / "data").symlink_to(place.outside)
    async with place.stage(probe) as stage:
        await stage.prompt("say done")
    [(_, notice)] = stage.notices()
    assert notice.startswith(f"could not be started: {probe.directory}/data is a link, and data must be in")


@needs("bwrap")
async def test_a_data_directory_outside_prevents_its_start(place: Place) -> None:
    probe = Extension(place.ext, "probe", PROBE, permissions={"tools": True}, data=["data/**", "../x/**"])
    async with place.stage(probe) as stage:
        await stage.prompt("say done")
    told = "could not be started: data: ../x/** leads out of its directory, where its data must be"
    assert stage.notices() == [("probe", told)]


@needs("bwrap")
async def test_a_bubblewrap_that_it_could_have_written_is_not_used(place: Place) -> None:
    (place.outside / "bwrap").write_text(f"#!/bin/sh\ntouch {place.outside}/ran; exit 1\n")
    (place.outside / "bwrap").chmod(0o755)
    env = {**place.env, "PATH": f"{place.outside}:{place.env['PATH']}"}
    async with place.stage(place.probe({"fs.write": [str(place.outside)]}), env=env) as stage:
        assert await tried(stage, f"sorted(os.listdir('{place.outside}'))") == ["['bwrap', 'file']"]


@needs("bwrap")
async def test_a_bubblewrap_in_a_writable_directory_is_the_reason_given(place: Place) -> None:
    bwrap = os.path.realpath(shutil.which("bwrap") or "")
    lies = f"{bwrap} is not used: it is in {{}}, where a confined program could have put it"
    here = f"it declares permissions, which need bubblewrap, and {lies.format('/')}; start zot in another directory"
    greedy = place.probe({"fs.write": [os.path.dirname(bwrap)]})
    over = f"permissions: fs.write: {lies.format(os.path.dirname(bwrap))}"
    config = Config(env=place.env, ext=(str(greedy.directory),))
    assert [find_extensions(config, cwd)[0].problem for cwd in ("/", str(place.cwd))] == [here, over]
    # Nor can it be had by a flag for where there is no bubblewrap.
    async with place.stage(greedy, unsandboxed_ext=True) as stage:
        await stage.prompt("say done")
    assert stage.notices() == [("probe", f"could not be started: {over}")]


@needs("bwrap")
async def test_all_programs_are_found_if_all_are_allowed(place: Place) -> None:
    (place.outside / "bin").mkdir()
    tool = place.outside / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho tooled | cat\n")
    tool.chmod(0o755)
    (place.outside / "bin" / "linked").symlink_to("tool")
    (place.outside / "bin" / "loop").symlink_to("loop")
    env = {**place.env, "PATH": f"{place.env['PATH'].partition(':')[2]}:{tool.parent}"}
    async with place.stage(place.probe({"exec": True}), env=env) as stage:
        outcome = await tried(stage, "subprocess.check_output(['linked'])", f"open('{place.outside}/file')")
    assert outcome == ["b'tooled\\n'", "FileNotFoundError"]


@needs("bwrap")
async def test_a_named_script_brings_its_interpreter(place: Place) -> None:
    for directory in ("bin", "libs"):
        (place.outside / directory).mkdir()
    script = place.outside / "bin" / "tool-of-mine"
    script.write_text("#!/usr/bin/env -S sh -e\necho scripted\n")
    script.chmod(0o755)
    env = {**place.env, "PATH": f"{place.env['PATH']}:{script.parent}"}
    async with place.stage(place.probe({"exec": ["tool-of-mine", "gone"]}), env=env) as stage:
        outcome = await tried(stage, "subprocess.check_output(['tool-of-mine'])", f"os.listdir('{place.outside}')")
    assert outcome == ["b'scripted\\n'", "['bin']"]


@needs("bwrap")
async def test_an_interpreter_that_starts_others_needs_their_permission(place: Place, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bwrap", "sh"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    env = {**place.env, "PATH": f"{tmp_path}/shims:{tmp_path}/bin"}
    async with place.stage(place.probe(), env=env) as stage:
        await stage.prompt("say done")
    assert stage.notices() == [
        ("probe", "could not be started: python3 is not a program, or only a script that starts others, "
         "which its permissions for exec would have to include")
    ]  # fmt: skip


@needs("bwrap")
async def test_zot_itself_can_be_imported_wherever_it_is(place: Place) -> None:
    async with place.stage(place.probe()) as stage:
        outcome = await tried(stage, "__import__('zot.ext').__file__", f"open({zot.__file__!r}, 'a')")
    assert outcome == [zot.__file__, "OSError"]


@needs("bwrap")
async def test_an_extension_that_falls_silent_may_lack_a_permission_it_did_not_declare(place: Place) -> None:
    async with place.stage(place.probe(script="import subprocess; subprocess.run(['sort'])")) as stage:
        await stage.prompt("say done")
    hint = "its permissions show it no programs but those in exec, and no files but those in fs.read"
    [(name, notice)] = stage.notices()
    assert (name, notice.partition(": ")[0]) == ("probe", f"exited with 1 before it said hello; {hint}")
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'sort'" in notice


@needs("bwrap")
async def test_no_process_remains_and_it_has_time_to_end(place: Place) -> None:
    script = """
import signal, subprocess
stubborn = ["sh", "-c", "trap '' TERM; sleep 600 & echo up; wait; sleep 600"]
subprocess.Popen(stubborn, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
def ended(*_):
    open("data/ended", "w").write("gracefully")
    os._exit(0)
signal.signal(signal.SIGTERM, ended)
hello("commands"); say("ready")
while True:
    time.sleep(600)
"""
    probe = place.probe({"exec": ["sh", "sleep"], "env": [MARK]}, script=script)
    mark = "scopes-" + os.urandom(8).hex()
    deadlines = {"shutdown": 0.05, "terminate": 0.5}
    async with place.stage(probe, env={**place.env, MARK: mark}, ext_deadlines=deadlines) as stage:
        await stage.session.agent.extensions.ready()
        assert len(living(mark)) > 3
    assert living(mark) == []
    assert (probe.directory / "data" / "ended").read_text() == "gracefully"


# Where there is no bubblewrap.


def without_bwrap(place: Place, top: Path) -> dict[str, str]:
    """An environment in which only Python is found."""
    (top / "bin").mkdir()
    (top / "bin" / "python3").symlink_to(sys.executable)
    return {**place.env, "PATH": str(top / "bin")}


async def test_without_bubblewrap_it_is_refused_and_its_guard_stays_closed(place: Place, tmp_path: Path) -> None:
    env = without_bwrap(place, tmp_path)
    guard = Extension(
        place.ext, "guard", PROBE, permissions={"intercept": True}, on_failure="block", intercept=["tool_call"]
    )
    [located] = find_extensions(Config(env=env, ext=(str(guard.directory),)), str(place.cwd))
    assert (located.standing, located.problem) == ("refused", NO_BWRAP)
    async with place.stage(guard, place.probe(), env=env) as stage:
        [(text, is_error)] = results(await stage.prompt('call read {"path": "."} ;; --- ;; say done'))
    refused = f"could not be started: {NO_BWRAP}"
    assert stage.notices() == [("guard", refused), ("probe", refused)]
    assert (text, is_error) == ("extension guard, which guards this, is not running", True)
    assert guard.heard() == []


async def test_a_bubblewrap_that_does_not_work_runs_nothing(place: Place, tmp_path: Path) -> None:
    env = without_bwrap(place, tmp_path)
    fake = tmp_path / "bin" / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces >&2; exit 1\n")
    fake.chmod(0o755)
    probe = place.probe()
    async with place.stage(probe, env=env) as stage:
        await stage.prompt("say done")
    [(_, notice)] = stage.notices()
    assert "which need bubblewrap, which does not work here: no namespaces; to run it without" in notice
    assert probe.heard() == []


async def test_it_can_run_without_a_sandbox_within_the_limits_that_zot_enforces(place: Place, tmp_path: Path) -> None:
    env = without_bwrap(place, tmp_path)
    noisy = PROBE.replace('say("ready")', 'say("notify", message="hi"); say("ready")')
    probe = place.probe(script=noisy)
    async with place.stage(probe, env=env, unsandboxed_ext=True) as stage:
        outcome = await tried(stage, f"open('{place.outside}/file').read()", "os.environ.get('MINE')")
    assert outcome == ["s3cret", "None"]
    assert stage.notices() == [("probe", "notify: its permissions do not include ui")]
    assert f"runs without a sandbox: {NO_BWRAP}" in stage.log("probe")


async def test_an_unconfined_extension_lacks_no_permission(place: Place, tmp_path: Path) -> None:
    env = without_bwrap(place, tmp_path)
    async with place.stage(place.probe(script="sys.exit(3)"), env=env, unsandboxed_ext=True) as stage:
        await stage.prompt("say done")
    assert stage.notices() == [("probe", "exited with 3 before it said hello")]
