"""zot's private paths: every path of the one list, for every tool and every confined program."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import running
from extensions.stage import Extension, Stage, results
from harness import MARK
from optional import needs
from zot.config.config import Config
from zot.config.policy import Policy, subject_of
from zot.config.private_paths import OWN_NAMES, PrivatePath, private_paths
from zot.errors import ToolFailed
from zot.runtime.open import OpenRequest, approvals_of
from zot.runtime.shared import SharedResources
from zot.runtime.toolbox import Toolbox

from .sandboxed import locked

#: Reads every path that it is told, or connects to it if it is a socket; says which of them had something to say.
_REACH = """
import os, socket, sys
def reached(path):
    try:
        if os.path.isdir(path):
            return os.listdir(path) != []
        try:
            return open(path).read() != ""
        except OSError:
            one = socket.socket(socket.AF_UNIX); one.settimeout(2); one.connect(path)
            return True
    except OSError:
        return False
"""
_PROBE = f"""{_REACH}
hello("tools")
say("register_tool", name="probe", schema={{"type": "object"}})
say("ready")
for frame in frames():
    if frame["type"] == "tool_call":
        text = json.dumps([path for path in frame["args"]["paths"] if reached(path)])
        say("tool_result", id=frame["id"], content=[{{"type": "text", "text": text}}])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""
#: The same as a locked command, which looks each time that it is asked to.
_LOOK = f"""{_REACH}
import json, time
paths = json.load(open("paths.json"))
for turn in sys.argv[1:]:
    while not os.path.exists(f"look-{{turn}}"):
        time.sleep(0.005)
    with open("found", "w") as file:
        json.dump([path for path in paths if reached(path)], file)
    os.rename("found", f"found-{{turn}}")
"""


def _config(top: str, **settings: Any) -> Config:
    """Return a configuration that names everything, in a home that is also the working directory."""
    home = f"{top}/home"
    env = {
        "HOME": home, "ZOT_HOME": f"{home}/zot", "XDG_STATE_HOME": f"{home}/state", "PATH": os.environ["PATH"],
        "ZEROCLAW_CONFIG_DIR": f"{home}/claw", "ZEROCLAW_DATA_DIR": f"{home}/claw-data",
        "ZEROCLAW_SOCKET": f"{home}/run/claw.sock", MARK: os.environ.get(MARK, ""),
    }  # fmt: skip
    return Config(
        provider="lab", cwd=home, env=env, data=f"{home}/own-data", journal=f"{home}/kept/kept.db",
        record=f"{home}/record.jsonl", private=(f"{home}/daemon-data", f"{home}/keys/key.pem"), **settings,
    )  # fmt: skip


def _entries(top: str) -> tuple[PrivatePath, ...]:
    config = _config(top)
    assert config.cwd is not None
    return private_paths(config, config.cwd)


#: The whole list, by name.
NAMES = [os.path.relpath(one.path, "/top/home") for one in _entries("/top")]
#: When something is at a private path, as a program in a sandbox sees it.
BEFORE, LATER, REPLACED = "before the sandbox", "after the sandbox has started", "replaced after that"


class _Attempts:
    """A home with a file at each private path, and the paths reached, by program and moment."""

    def __init__(self, top: str) -> None:
        self.home = f"{top}/home"
        os.makedirs(f"{self.home}/daemon-data")  # A daemon that runs has it.
        self.config = _config(top)
        self._servers: list[socket.socket] = []
        self._private = _entries(top)
        self.paths = [path for one in self._private for path in self._ways(one)]
        self.reached: dict[tuple[str, str], list[str]] = {}

    def _ways(self, one: PrivatePath) -> list[str]:
        return [f"{one.path}/secret", f"{one.path}/daemon.sock"] if one.is_directory else [one.path]

    def fill(self) -> None:
        """Create everything, or replace all files."""
        for one in self._private:
            if one.path == self.config.record:  # The session writes that.
                continue
            for path in self._ways(one):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if os.path.lexists(path):
                    os.unlink(path)
                if path.endswith(".sock"):
                    self._listen(path)
                else:
                    Path(path).write_text("s3cret")

    def _listen(self, path: str) -> None:
        # By a relative name, since that of a socket must be short.
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(os.path.dirname(path))
            server = socket.socket(socket.AF_UNIX)
            server.bind(os.path.basename(path))
            server.listen(1)
            self._servers.append(server)
        finally:
            os.fchdir(here)
            os.close(here)

    async def try_all(self, *times: str) -> None:
        """Start a confined extension and a locked command, and let both try at these ``times``."""
        python = os.path.realpath(sys.executable)
        Path(self.home, "look.py").write_text(_LOOK)
        Path(self.home, "paths.json").write_text(json.dumps([*self.paths, f"{self.home}/paths.json"]))
        with tempfile.TemporaryDirectory() as place:
            permissions = {"tools": True, "fs.read": ["~/"]}
            probe = Extension(Path(place), "probe", _PROBE, permissions=permissions)
            settings: dict[str, Any] = {
                "env": self.config.env, "data": self.config.data, "private": self.config.private, "cwd": place,
                "journal": self.config.journal, "record": self.config.record,
            }  # fmt: skip
            async with Stage(Path(f"{self.home}/zot"), probe, **settings) as stage, asyncio.TaskGroup() as tasks:
                hidden = private_paths(self.config, self.home)
                command = f"touch running; {python} look.py {' '.join(map(str, range(len(times))))}"
                running = tasks.create_task(locked(command, self.home, env=self.config.env, hidden=hidden))
                await stage.prompt("say started")
                await self._made("running", running)
                for turn, when in enumerate(times):
                    if when != BEFORE:
                        self.fill()
                    asked = json.dumps({"paths": [*self.paths, f"{self.home}/paths.json"]})
                    [(said, failed)] = results(await stage.prompt(f"call probe {asked} ;; --- ;; say done"))
                    assert not failed, said
                    self.reached["a confined extension", when] = json.loads(said)
                    Path(self.home, f"look-{turn}").touch()
                    found = await self._made(f"found-{turn}", running)
                    self.reached["a locked command", when] = json.loads(found.read_text())

    async def _made(self, name: str, running: asyncio.Task[str]) -> Path:
        """Return a file of the command once it is there."""
        made = Path(self.home, name)
        while not made.exists():
            assert not running.done(), running.result()
            await asyncio.sleep(0.005)
        return made

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture(scope="module")
def attempts() -> Iterator[dict[str, _Attempts]]:
    """Return the attempts by when they were made."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        there, missing = _Attempts(first), _Attempts(second)
        try:
            there.fill()
            asyncio.run(there.try_all(BEFORE))
            asyncio.run(missing.try_all(LATER, REPLACED))
            yield {BEFORE: there, LATER: missing, REPLACED: missing}
        finally:
            there.close()
            missing.close()


@needs("bwrap")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", [BEFORE, LATER, REPLACED])
@pytest.mark.parametrize("who", ["a locked command", "a confined extension"])
def test_no_sandboxed_program_reaches_it(name: str, when: str, who: str, attempts: dict[str, _Attempts]) -> None:
    home, reached = attempts[when].home, attempts[when].reached[who, when]
    assert f"{home}/paths.json" in reached  # Files that are not private are visible; otherwise this proves nothing.
    assert [path for path in reached if f"{path}/".startswith(f"{home}/{name}/")] == []


@pytest.mark.parametrize("name", NAMES)
async def test_no_file_tool_reaches_it_under_a_lock(name: str, tmp_path: Path) -> None:
    config = _config(str(tmp_path), lock=True, tools=("read", "write", "edit"))
    home = tmp_path / "home"
    (home / "x").mkdir(parents=True)
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    resources = SharedResources()
    toolbox = Toolbox(config, resources, cwd=str(home), key="k")
    writable, readable = toolbox._paths()
    assert writable is not None
    assert readable is not None
    for later in (False, True):  # Whether or not it is there, and also once it has appeared.
        if later:
            (home / name).write_text("s3cret")
            (home / "link").symlink_to(home / name)
        for paths in (writable, readable):
            for path in (name, f"./x/../{name}", str(home / name), *(["link"] if later else [])):
                with pytest.raises(ToolFailed, match="zot keeps its own files"):
                    paths.find(path, str(home))
    await toolbox.close()
    await resources.close()


@pytest.mark.parametrize("name", [*NAMES, "/proc/self/environ", "/dev/mem", "/sys/kernel"])
def test_no_file_tool_reaches_it_for_a_stranger(name: str, tmp_path: Path) -> None:
    """The policy does not matter: the one here allows everything."""
    config = _config(str(tmp_path), policy=("*=allow",))
    home = str(tmp_path / "home")
    policy: Policy = approvals_of(OpenRequest(config=config, guarded=True), cwd=home, key="k").policy
    for later in (False, True):  # Whether or not it is there, and also once it has appeared.
        if later and not name.startswith("/"):
            (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "home" / name).write_text("s3cret")
            (tmp_path / "home" / "link").symlink_to(name)
            assert policy.action("read", subject_of({"path": "link"}, home)) == "deny"
        for path in (name, f"{name}/below", f"./../home/{name}" if not name.startswith("/") else f"/usr/..{name}"):
            for tool in ("read", "write", "of-an-extension"):
                assert policy.action(tool, subject_of({"path": path}, home)) == "deny"
    assert policy.action("read", subject_of({"path": "notes.txt"}, home)) == "allow"


def test_the_list_has_every_place_that_settings_can_name() -> None:
    assert {*NAMES} == {
        "zot", "state/zot", ".local/state/zot", ".zeroclaw", "claw", "claw-data",
        "own-data", "daemon-data", "keys/key.pem", "run/claw.sock", "run/claw.sock.lock", "kept/kept.db",
        "kept/kept.db-wal", "kept/kept.db-shm", "kept/kept.db-journal", "kept/kept.db.lock", "record.jsonl",
    }  # fmt: skip


def test_a_session_in_zots_own_directory_reaches_nothing_that_zot_keeps_there(tmp_path: Path) -> None:
    config = Config(provider="lab", cwd=str(tmp_path), env={"ZOT_HOME": str(tmp_path)})
    found = {one.path for one in private_paths(config, str(tmp_path))}
    assert found == {str(tmp_path / name) for name in OWN_NAMES}


async def test_no_locked_command_runs_where_it_could_create_files_of_zot(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    config = Config(provider="lab", cwd=str(tmp_path), env={"ZOT_HOME": str(tmp_path)})
    for cwd in (tmp_path, tmp_path / "below"):
        hidden = private_paths(config, str(cwd))
        said = await locked(f"echo x > {tmp_path}/config.toml; echo x > trust.json", cwd, hidden=hidden)
        assert said == f"not run: under --lock no command runs in {tmp_path}, where zot keeps its own files"
        assert [path.name for path in cwd.iterdir() if path.is_file()] == []


@needs("bwrap")
async def test_no_extension_writes_where_it_could_create_files_of_zot(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    place.mkdir()
    probe = Extension(place, "probe", _PROBE, permissions={"tools": True, "fs.write": ["$CWD"]})
    env = {"HOME": str(home), "PATH": os.environ["PATH"], MARK: os.environ.get(MARK, "")}
    (home / ".zeroclaw").mkdir(parents=True)
    async with Stage(tmp_path / "zot", probe, env=env, cwd=str(home / ".zeroclaw")) as stage:
        events = await stage.prompt("say hi")
    assert "is where zot keeps its own files" in str(events)


def test_every_name_that_the_source_joins_to_a_home_is_known() -> None:
    """A file that zot keeps in its home and that is not in the list would be reachable from there."""
    source = Path(sys.modules["zot"].__file__ or "").parent
    joined = {match for path in source.rglob("*.py") for match in _joined_names(path.read_text())}
    assert joined - {*OWN_NAMES} == set()


def _joined_names(text: str) -> set[str]:
    import re

    return set(
        re.findall(r"join\((?:os\.path\.abspath\()?(?:self\._)?(?:home|data_dir|kept|_kept_in)\)?, \"([^\"]+)\"", text)
    )


@needs("bwrap")
async def test_a_daemon_that_starts_later_is_hidden_from_an_extension_that_runs(tmp_path: Path) -> None:
    """The extension sees the home as it becomes, not as it was."""
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    probe = Extension(place, "probe", _PROBE, permissions={"tools": True, "fs.read": ["~/"]})
    env = {"HOME": str(home), "PATH": os.environ["PATH"], MARK: os.environ.get(MARK, "")}
    async with Stage(tmp_path / "zot", probe, env=env, cwd=str(place)) as stage:
        await stage.prompt("say started")
        late = [home / ".zeroclaw" / "data" / "token", home / ".local" / "state" / "zot" / "auth.json", home / "seen"]
        for path in late:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("s3cret")
        asked = json.dumps({"paths": [str(path) for path in late]})
        [(said, failed)] = results(await stage.prompt(f"call probe {asked} ;; --- ;; say done"))
    assert not failed, said
    assert json.loads(said) == [str(home / "seen")]


#: Settings that put a file of zot into the directory in which it works.
_BESIDE_WORK: dict[str, dict[str, Any]] = {
    "claw.sock": {"env": {"ZEROCLAW_SOCKET": "{home}/claw.sock"}},
    "kept.db": {"journal": "{home}/kept.db"},
    "key.pem": {"private": ("{home}/key.pem",)},
}


def _beside_work(name: str, home: Path, **more: Any) -> dict[str, Any]:
    """Return settings, among them those of ``name``."""
    env = {"HOME": str(home), "ZOT_HOME": f"{home}-zot", "PATH": os.environ["PATH"], MARK: os.environ.get(MARK, "")}
    found: dict[str, Any] = json.loads(json.dumps(_BESIDE_WORK[name]).replace("{home}", str(home)))
    return {"provider": "lab", **found, **more, "env": {**env, **found.get("env", {})}}


@needs("bwrap")
@pytest.mark.parametrize("name", _BESIDE_WORK)
@pytest.mark.parametrize("there", [False, True])
async def test_no_locked_command_runs_beside_a_file_that_it_could_see_later(
    name: str, tmp_path: Path, *, there: bool
) -> None:
    """One file cannot be hidden for good: the next one of its name would be seen."""
    home = tmp_path / "home"
    home.mkdir()
    if there:
        (home / name).write_text("s3cret")
    hidden = private_paths(Config(**_beside_work(name, home, cwd=str(home))), str(home))
    said = await locked("echo ran; ls", home, hidden=hidden)
    assert said.startswith(f"not run: under --lock, {home}/{name} is zot's own (")
    assert said.endswith(f"{home} would show it: move it to a directory of its own")


@needs("bwrap")
@pytest.mark.parametrize("name", _BESIDE_WORK)
async def test_no_extension_reads_a_directory_where_it_could_see_a_file_of_zot_later(name: str, tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    probe = Extension(place, "probe", _PROBE, permissions={"tools": True, "fs.read": ["~/"]})
    async with Stage(tmp_path / "zot", probe, **_beside_work(name, home, cwd=str(place))) as stage:
        events = await stage.prompt("say hi")
    assert f"{home} would show it: move it to a directory of its own" in str(events)


@needs("bwrap")
async def test_a_recording_that_begins_later_is_hidden_and_cannot_be_put_there(tmp_path: Path) -> None:
    config = Config(
        provider="lab", cwd=str(tmp_path), record=str(tmp_path / "r.jsonl"), env={"ZOT_HOME": f"{tmp_path}-z"}
    )
    spoil = "echo mine > r.jsonl; rm r.jsonl; mv r.jsonl x; cat r.jsonl"
    command = f"{spoil}; touch ready; until [ -e go ]; do :; done; cat r.jsonl"
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(locked(command, tmp_path, hidden=private_paths(config, str(tmp_path))))
        while not (tmp_path / "ready").exists():
            assert not running.done(), running.result()
            await asyncio.sleep(0.005)
        assert (tmp_path / "r.jsonl").read_bytes() == b""
        (tmp_path / "r.jsonl").write_text("s3cret")
        (tmp_path / "go").touch()
    assert "s3cret" not in running.result()
    assert (tmp_path / "r.jsonl").read_text() == "s3cret"


#: Connects to a daemon, and says what it answers. With "dies", the process that connected is gone when it asks.
_CALL = """
import os, socket, sys
one = socket.socket(socket.AF_UNIX); one.settimeout(20)
if sys.argv[2] == "dies":
    if (child := os.fork()) == 0:
        one.connect(sys.argv[1]); os._exit(0)
    os.waitpid(child, 0)
else:
    one.connect(sys.argv[1])
try:
    one.sendall(b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}' + bytes([10]))
    print("answered" if b"result" in one.recv(100) else "refused")
except OSError:
    print("refused")
"""


@needs("bwrap", "python3")
@pytest.mark.parametrize("how", ["lives", "dies"])
async def test_a_daemon_refuses_callers_in_a_sandbox_wherever_its_socket_is(how: str, tmp_path: Path) -> None:
    """The session of this sandbox does not know the daemon's socket: it was named on another command line."""
    (tmp_path / "call.py").write_text(_CALL)
    python = os.path.realpath(sys.executable)
    async with running(tmp_path) as daemon:
        said = await locked(f"{python} call.py {daemon.path} {how}", tmp_path, env={"PATH": os.environ["PATH"]})
    assert "\nrefused\n" in said


@needs("bwrap")
@pytest.mark.parametrize("around", [[], ["bwrap", "--unshare-pid", "--bind", "/", "/", "--proc", "/proc"]])
async def test_a_daemon_serves_callers_outside_and_in_containers(around: list[str], tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        command = [*around, os.path.realpath(sys.executable), "-c", _CALL, daemon.path, "lives"]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await child.communicate()
    assert said == b"answered\n"
