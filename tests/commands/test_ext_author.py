"""`zot ext new`, `test` and `run`: tools for authors of extensions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from forked import ForkServer
from harness import PATIENCE_S, read_some
from optional import available, needs

from .ext_shell import Ext

#: The languages that can be run here, each by its program.
LANGUAGES = [
    language
    for language, program in (("python", "python3"), ("typescript", "node"), ("shell", "jq"), ("go", "go"))
    if available(program, f"what is begun in {language}")
]


@pytest.fixture
def shell(tmp_path: Path, fork_server: ForkServer) -> Ext:
    return Ext(tmp_path, fork_server)


def put(shell: Ext, script: str, **more: object) -> Path:
    """Write an extension in Python."""
    directory = shell.cwd / "one"
    directory.mkdir()
    manifest = {"name": "one", "exec": sys.executable, "args": ["-I", "main.py"], **more}
    (directory / "extension.json").write_text(json.dumps(manifest))
    prelude = (
        'import json, sys, os, time\ndef say(kind, **more): print(json.dumps({"type": kind, **more}), flush=True)\n'
    )
    (directory / "main.py").write_text(prelude + script)
    return directory


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_new_extension_works(shell: Ext, language: str) -> None:
    made = shell.ext("new", "--lang", language, "my.One", "--json")
    assert (made.err, made.code) == ("", 0)
    told = json.loads(made.out)
    assert {**told, "files": sorted(told["files"])} == {
        "name": "my.One", "directory": str(shell.cwd / "my.One"), "language": language, "built": True,
        "files": sorted(path.name for path in (shell.cwd / "my.One").iterdir() if path.is_file()),
    }  # fmt: skip
    assert shell.run("ext", "test", "--call-tools", "my.One") == (
        "ok     said hello as my.One 0.1.0\n"
        "ok     registered the command /my.One\n"
        "ok     registered the tool my_One_greet\n"
        "ok     command /my.One: answered with prompt\n"
        'ok     tool my_One_greet {"who":"text"}: answered\n'
        "ok     acknowledged the shutdown and exited\n",
        "",
        0,
    )
    typed = '/my.One Zoë \u2028 & "Bo"\n/other\n'.encode()
    said = shell.run("ext", "run", "my.One", typed=typed)
    assert said == (
        'prompt\n  Greet Zoë \\u2028 & "Bo" in one short sentence.\n',
        "zot: not a command: /other; there are: /my.One\n",
        0,
    )


def test_a_new_extension_can_be_installed_and_overwrites_nothing(shell: Ext) -> None:
    where = shell.cwd / "some" / "place"
    assert shell.ext("new", "one", "some/place").out == (
        f"created {where}: extension.json, main.py, README.md\ntry it: zot ext test some/place\n"
    )
    assert shell.ext("new", "one", "some/place") == (
        "",
        f"zot: {where} exists already; name another directory: zot ext new NAME DIR\n",
        1,
    )
    assert shell.ext("install", "some/place").code == 0
    wrong = "'../one' is not a valid name: use at most 64 letters, digits, dots, dashes and underscores"
    assert shell.ext("new", "../one") == ("", f"zot: {wrong}\n", 1)
    choice = "--lang cobol: must be one of python, typescript, shell, go. Try: zot ext new --help"
    assert shell.ext("new", "one", "--lang", "cobol") == ("", f"zot: {choice}\n", 2)


WRONG = """
say("hello", name="one", version="2")
print("Loading...", flush=True)
for time in range(3): say("register_command", name="mute")
say("register_command", name="panel")
say("register_tool", name="read", schema={})
say("register_tool", name="lost", description="Forgets.", schema={"type": "object", "required": ["n", "who", "list"],
    "properties": {"n": {"type": "integer", "minimum": 3}, "who": {"$ref": "#/$defs/name"},
                   "list": {"type": "array", "minItems": 1, "items": {"enum": ["a", "b"]}}},
    "$defs": {"name": {"type": ["null", "string"], "minLength": 6}}})
say("subscribe", events=["turn_end", "lunch"], intercept=["tool_call", "assistant_message"])
say("ready")
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "event_intercept" and frame["event"] == "assistant_message":
        say("event_intercept_response", id=frame["id"], replace_text="Hi.")
    if frame.get("name") == "panel":
        say("command_response", id=frame["id"], action="open_panel", open_panel={"id": "mine", "lines": ["a"]})
    if frame["type"] == "panel_key":
        say("panel_render", panel_id=frame["key"])
"""


def test_every_problem_is_reported(shell: Ext) -> None:
    put(shell, WRONG)
    limits = [f"--ext-deadline={name}=0.2" for name in ("tool", "shutdown", "terminate")]
    said = shell.run(
        "ext", "test", "one", "--call-tools", "--ext-deadline=intercept=1.5", "--ext-deadline=command=1.5", *limits
    )
    lines = (
        "ok     said hello as one 2\n"
        "wrong  wrote a line that is not a frame: not a JSON object: JSON is malformed: invalid character (byte 0): "
        "Loading...\n"
        "wrong  register_command: mute is already registered\n"
        "wrong  subscribe: no such event: lunch\n"
        "ok     registered the command /mute\n"
        "ok     registered the command /panel\n"
        "wrong  registered the tool read, but zot has one of that name, which is used\n"
        "note   the tool read has no description: the model will not know what it is for\n"
        "ok     registered the tool lost\n"
        "wrong  intercept tool_call: extension one did not answer within 1.5 s: intercept tool_call\n"
        "ok     intercept assistant_message: changes it\n"
        "wrong  command /mute: extension one did not answer within 1.5 s: command mute\n"
        "ok     command /panel: answered with open_panel\n"
        "wrong  panel_render: no panel down is open\n"
        "wrong  tool read {}: extension one did not answer within 0.2 s: tool read\n"
        'wrong  tool lost {"n":3,"who":"textxx","list":["a"]}: extension one did not answer within 0.2 s: tool lost\n'
        "wrong  did not say shutdown_ack\n"
        "wrong  did not exit within 0.2 s of shutdown, and had to be killed\n"
    )
    # Only its answers wait for each other.
    assert sorted(said.out.split("\n")) == sorted(lines.split("\n"))
    assert (said.err, said.code) == ("zot: one failed 11 checks\n", 1)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("time.sleep(60)", "did not say hello within 0.3 s (--ext-deadline hello=SECONDS changes that)"),
        ('say("hello", name="two"); time.sleep(60)', "says it is 'two', but its manifest says 'one'"),
        ('say("ready"); time.sleep(60)', "did not say hello first, but ready"),
        ("sys.exit(3)", "exited with 3 before it said hello"),
    ],
)
def test_an_extension_that_fails_early_is_distinguished_from_the_others(shell: Ext, script: str, told: str) -> None:
    put(shell, script)
    patience = "0.3" if "within" in told else "10"
    said = shell.run("ext", "test", "one", "--json", f"--ext-deadline=hello={patience}")
    assert [json.loads(line) for line in said.out.split("\n")[:-1]] == [{"verdict": "wrong", "text": told}]
    assert (said.err, said.code) == ("zot: one failed 1 check\n", 1)


def test_leftovers_of_an_extension_are_reported(shell: Ext) -> None:
    leaving = """
import subprocess
say("hello", name="one"); say("ready")
subprocess.Popen(["sleep", "60"])
for line in sys.stdin:
    if "shutdown" in line: say("shutdown_ack"); break
"""
    put(shell, leaving)
    said = shell.ext("test", "one")
    assert (said.out, said.err, said.code) == (
        "ok     said hello as one\nwrong  left processes behind, which were ended: sleep 60\n"
        "ok     acknowledged the shutdown and exited\n",
        "zot: one failed 1 check\n",
        1,
    )


def test_a_crashing_extension_is_not_checked_further(shell: Ext) -> None:
    put(shell, 'say("hello", name="one"); say("register_command", name="c"); say("ready")\nsys.stdin.readline()\n'
               'sys.stdin.readline(); print("oops", file=sys.stderr); sys.exit(4)')  # fmt: skip
    assert shell.run("ext", "test", "one") == (
        "ok     said hello as one\n"
        "ok     registered the command /c\n"
        "wrong  exited with 4\n"
        "wrong  command /c: extension one exited with 4\n",
        "oops\nzot: one failed 2 checks\n",
        1,
    )
    (shell.cwd / "one" / "extension.json").write_text('{"name": "one", "exec": "./missing"}')
    said = shell.run("ext", "run", "one")
    assert (said.out, said.code) == ("", 1)
    assert said.err.startswith("zot: one could not be started: ")
    assert "./missing" in said.err
    for program, advice in (
        ("./main.py", f"try: chmod +x {shell.cwd}/one/./main.py"),
        ("/bin/sh -c true", "`exec` names the program alone; its arguments belong in `args`"),
    ):
        (shell.cwd / "one" / "extension.json").write_text(json.dumps({"name": "one", "exec": program}))
        assert shell.run("ext", "run", "one").err.endswith(f"; {advice}\n")
    (shell.cwd / "one" / "extension.json").unlink()
    missing = f"zot: {shell.cwd}/one is not an extension directory: it has no extension.json\n"
    assert shell.run("ext", "test", "one") == ("", missing, 1)


HELD = """
say("hello", name="one", version=str(os.path.exists(HOME)))
say("register_tool", name="t", description="d")
say("ready")
for line in sys.stdin:
    if json.loads(line)["type"] == "shutdown":
        say("shutdown_ack"); break
"""


@needs("bwrap")
def test_an_extension_with_permissions_is_confined_to_them(shell: Ext) -> None:
    put(shell, f"HOME = {str(shell.user)!r} + '/secret'" + HELD, exec="python3", permissions={})
    (shell.user / "secret").touch()
    out, err, code = shell.run("ext", "test", "one")
    assert (out, err, code) == (
        "ok     said hello as one False\n"
        "wrong  register_tool: its permissions do not include the tool t\n"
        "ok     acknowledged the shutdown and exited\n",
        "zot: one failed 1 check\n",
        1,
    )


TALKER = """
say("hello", name="one"); say("register_command", name="c"); say("ready")
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "command_invoked":
        say("notify", message="\\u001b[2Jworking")
        say("command_response", id=frame["id"], action="display", display="a\\nb")
    if frame["type"] == "shutdown":
        say("shutdown_ack"); break
"""


def test_frames_are_shown_as_they_arrive_until_the_input_ends(shell: Ext) -> None:
    where = put(shell, TALKER)
    process = shell.start("ext", "run", "one", "--trace", stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        said = until(process, b'< {"type": "ready"}\n')
        process.stdin.write(b"/c  x y \n")
        process.stdin.flush()
        said += until(process, b'"display": "a\\nb"}\n')
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    ack = {"protocol_version": 1, "zot_version": "0.1.0", "provider": "lab", "model": "lab", "cwd": str(shell.cwd),
           "extension_dir": str(where), "data_dir": str(where)}  # fmt: skip
    told, heard = ([line[2:] for line in (said + out).decode().split("\n") if line[:1] == way] for way in "><")
    assert [json.loads(line) for line in told] == [
        {"type": "hello_ack", **ack},
        {"type": "command_invoked", "id": "1", "name": "c", "args": "x y"},
        {"type": "shutdown"},
    ]
    assert heard == [
        '{"type": "hello", "name": "one"}',
        '{"type": "register_command", "name": "c"}',
        '{"type": "ready"}',
        '{"type": "notify", "message": "\\u001b[2Jworking"}',
        '{"type": "command_response", "id": "1", "action": "display", "display": "a\\nb"}',
        '{"type": "shutdown_ack"}',
    ]
    assert (err, process.returncode) == (b"", 0)
    first = shell.run("ext", "run", "one", "--json").out.split("\n")[0]
    assert json.loads(first) == {"way": "<", "line": '{"type": "hello", "name": "one"}'}
    assert shell.run("ext", "run", "one", typed=b"/c").out == "info: \\x1b[2Jworking\ndisplay\n  a\n  b\n"


@pytest.mark.parametrize(("command", "told", "code"), [("run", b"", 0), ("test", b"zot: interrupted\n", 1)])
def test_an_interrupt_ends_the_extension_too(shell: Ext, command: str, told: bytes, code: int) -> None:
    put(shell, 'print(os.getpid(), file=sys.stderr, flush=True); say("hello", name="one")\ntime.sleep(60)')
    process = shell.start("ext", command, "one", "--ext-deadline=shutdown=0.1", stdin=subprocess.PIPE)
    assert process.stderr is not None
    try:
        pid = int(until(process, b"\n", process.stderr.fileno()))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (err, process.returncode) == (told, code)
    assert not os.path.exists(f"/proc/{pid}")


def until(process: subprocess.Popen[bytes], end: bytes, descriptor: int | None = None) -> bytes:
    """Return its output up to ``end``."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + PATIENCE_S
    while end not in said:
        data = read_some(process.stdout.fileno() if descriptor is None else descriptor, deadline)
        assert data, said
        said += data
    return said


def elsewhere(place: Path) -> Path:
    """Copy zot and the modules that its SDK needs into ``place``."""
    for name in ("zot", "msgspec"):
        source = find_spec(name)
        assert source is not None
        assert source.origin is not None
        shutil.copytree(Path(source.origin).parent, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


@pytest.mark.parametrize("kind", ["a virtual environment", "a directory that only its process knows"])
def test_a_python_extension_runs_with_the_interpreter_of_zot_however_that_was_installed(
    shell: Ext, tmp_path: Path, kind: str
) -> None:
    """As with pipx: neither that interpreter nor zot is on the PATH, and the python3 that is there knows no zot."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "system", symlinks=True)
    env = {"PATH": f"{tmp_path / 'system' / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "ZOT_HOME": str(shell.home)}
    bare = subprocess.run(["python3", "-c", "import zot"], env=env, capture_output=True, check=False)
    assert b"No module named 'zot'" in bare.stderr
    if kind == "a virtual environment":
        elsewhere(next((tmp_path / "venv" / "lib").glob("python*/site-packages")))
        zot = [str(python), "-m", "zot"]
    else:
        libraries = elsewhere(tmp_path / "libraries")
        start = f"import sys; sys.path.insert(0, {str(libraries)!r}); from zot.cli import main; main()"
        zot = [str(python), "-c", start]

    def run(*words: str) -> tuple[str, str, int]:
        done = subprocess.run(
            [*zot, *words], cwd=shell.cwd, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        return done.stdout, done.stderr, done.returncode

    assert run("ext", "new", "greet")[1:] == ("", 0)
    assert "import zot.ext\n" in (shell.cwd / "greet" / "main.py").read_text()
    told, errors, code = run("ext", "test", "--call-tools", "greet")
    assert (errors, code) == ("", 0)
    assert "ok     command /greet: answered with prompt\n" in told
    assert run("-p", "/greet Ada", "--provider", "lab", "--no-session", "--ext", "greet")[1:] == ("", 0)


def test_zot_python_runs_a_script_as_python_does(shell: Ext) -> None:
    directory = put(
        shell,
        'import beside\nassert __name__ == "__main__" and __file__ == os.path.abspath("main.py")\n'
        'assert sys.argv == ["main.py", "-x", "y"], sys.argv\n'
        'assert sys.modules["__main__"].say is say and "places" not in globals()\n'
        'say("hello", name=beside.NAME)\nsys.stdin.readline()\nraise RuntimeError("seen")\n',
        exec="zot-python",
        args=["main.py", "-x", "y"],
    )
    (directory / "beside.py").write_text('NAME = "one"\n')
    said = shell.run("ext", "test", "one")
    assert "ok     said hello as one" in said.out
    assert f'  File "{directory}/main.py", line 9, in <module>' in said.err
    assert "RuntimeError: seen" in said.err


@pytest.mark.parametrize("command", ["run", "test"])
def test_an_extension_that_runs_without_a_sandbox_is_announced(shell: Ext, command: str) -> None:
    script = 'say("hello", name="one")\nsay("ready")\nfor line in sys.stdin:\n    if "shutdown" in line: break\n'
    put(shell, f'{script}say("shutdown_ack")\n', permissions={})
    (shell.cwd / "bin").mkdir()
    shell.env["PATH"] = str(shell.cwd / "bin")  # It has no bubblewrap.
    said = shell.run("ext", command, "--unsandboxed-ext", "one")
    assert (said.code, said.err.partition(":")[2].partition(":")[0]) == (0, " runs without a sandbox")
