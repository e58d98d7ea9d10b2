"""What zot keeps for itself: every path of the one list, for every tool and every confined program."""

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


def _config(top: str, **settings: Any) -> Config:
    """Return a configuration that names everything, in a home that is also the working directory."""
    home = f"{top}/home"
    env = {
        "HOME": home, "ZOT_HOME": f"{home}/zot", "XDG_STATE_HOME": f"{home}/state", "PATH": os.environ["PATH"],
        "ZEROCLAW_CONFIG_DIR": f"{home}/claw", "ZEROCLAW_DATA_DIR": f"{home}/claw-data",
        "ZEROCLAW_SOCKET": f"{home}/claw.sock", MARK: os.environ.get(MARK, ""),
    }  # fmt: skip
    return Config(
        provider="lab", cwd=home, env=env, data=f"{home}/own-data", journal=f"{home}/kept.db",
        record=f"{home}/record.jsonl", private=(f"{home}/daemon-data", f"{home}/key.pem"), **settings,
    )  # fmt: skip


def _entries(top: str) -> tuple[PrivatePath, ...]:
    config = _config(top)
    assert config.cwd is not None
    return private_paths(config, config.cwd)


#: The whole list, by name.
NAMES = [os.path.relpath(one.path, "/top/home") for one in _entries("/top")]


class _Attempts:
    """A home with something at each private path, and the paths that were reached, by who tried."""

    def __init__(self, top: str) -> None:
        self.home = f"{top}/home"
        self.config = _config(top)
        self._servers: list[socket.socket] = []
        for one in _entries(top):
            if one.path != self.config.record:  # The session writes that.
                self._fill(one)
        self.paths = [path for one in _entries(top) for path in self._ways(one)]
        self.reached: dict[str, list[str]] = {}

    def _ways(self, one: PrivatePath) -> list[str]:
        return [f"{one.path}/secret", f"{one.path}/daemon.sock"] if os.path.isdir(one.path) else [one.path]

    def _fill(self, one: PrivatePath) -> None:
        if one.path.endswith(".sock"):
            self._listen(one.path)
        elif one.is_directory and not one.path.endswith(".pem"):
            os.makedirs(one.path, exist_ok=True)
            Path(one.path, "secret").write_text("s3cret")
            self._listen(f"{one.path}/daemon.sock")
        else:
            os.makedirs(os.path.dirname(one.path), exist_ok=True)
            Path(one.path).write_text("s3cret")

    def _listen(self, path: str) -> None:
        # By a relative name, since that of a socket must be short.
        here = os.open(".", os.O_RDONLY)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.chdir(os.path.dirname(path))
            server = socket.socket(socket.AF_UNIX)
            server.bind(os.path.basename(path))
            server.listen(1)
            self._servers.append(server)
        finally:
            os.fchdir(here)
            os.close(here)

    async def try_all(self) -> None:
        python = os.path.realpath(sys.executable)
        script = "import json\nprint(json.dumps([path for path in json.load(open('paths.json')) if reached(path)]))"
        Path(self.home, "reach.py").write_text(f"{_REACH}\n{script}")
        Path(self.home, "paths.json").write_text(json.dumps([*self.paths, f"{self.home}/paths.json"]))
        with tempfile.TemporaryDirectory() as place:
            permissions = {"tools": True, "fs.read": ["~/"]}
            probe = Extension(Path(place), "probe", _PROBE, permissions=permissions)
            settings: dict[str, Any] = {
                "env": self.config.env, "data": self.config.data, "private": self.config.private, "cwd": place,
                "journal": self.config.journal, "record": self.config.record,
            }  # fmt: skip
            async with Stage(Path(f"{self.home}/zot"), probe, **settings) as stage:
                asked = json.dumps({"paths": [*self.paths, f"{self.home}/paths.json"]})
                [(said, failed)] = results(await stage.prompt(f"call probe {asked} ;; --- ;; say done"))
                assert not failed, said
                self.reached["a confined extension"] = json.loads(said)
        hidden = private_paths(self.config, self.home)
        text = await locked(f"{python} reach.py", self.home, env=self.config.env, hidden=hidden)
        self.reached["a locked command"] = json.loads(text.split("\n")[2])

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture(scope="module")
def attempts() -> Iterator[_Attempts]:
    with tempfile.TemporaryDirectory() as top:
        found = _Attempts(top)
        try:
            asyncio.run(found.try_all())
            yield found
        finally:
            found.close()


@needs("bwrap")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("who", ["a locked command", "a confined extension"])
def test_no_sandboxed_command_reaches_it(name: str, who: str, attempts: _Attempts) -> None:
    reached = attempts.reached[who]
    assert f"{attempts.home}/paths.json" in reached  # What is not private is there, or this would prove nothing.
    assert [path for path in reached if f"{path}/".startswith(f"{attempts.home}/{name}/")] == []


@pytest.mark.parametrize("name", NAMES)
async def test_no_file_tool_reaches_it_under_a_lock(name: str, tmp_path: Path) -> None:
    config = _config(str(tmp_path), lock=True, tools=("read", "write", "edit"))
    (tmp_path / "home" / "x").mkdir(parents=True)
    (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
    resources = SharedResources()
    toolbox = Toolbox(config, resources, cwd=str(tmp_path / "home"), key="k")
    writable, readable = toolbox._paths()
    assert writable is not None
    assert readable is not None
    for paths in (writable, readable):
        for path in (name, f"./x/../{name}", str(tmp_path / "home" / name)):
            with pytest.raises(ToolFailed, match="zot keeps its own files"):
                paths.find(path, str(tmp_path / "home"))
    await toolbox.close()
    await resources.close()


@pytest.mark.parametrize("name", [*NAMES, "/proc/self/environ", "/dev/mem", "/sys/kernel"])
def test_no_file_tool_reaches_it_for_a_stranger(name: str, tmp_path: Path) -> None:
    """Whatever the policy: the one here allows everything."""
    config = _config(str(tmp_path), policy=("*=allow",))
    home = str(tmp_path / "home")
    policy: Policy = approvals_of(OpenRequest(config=config, guarded=True), cwd=home, key="k").policy
    for path in (name, f"{name}/below", f"./../home/{name}" if not name.startswith("/") else f"/usr/..{name}"):
        for tool in ("read", "write", "of-an-extension"):
            assert policy.action(tool, subject_of({"path": path}, home)) == "deny"
    assert policy.action("read", subject_of({"path": "notes.txt"}, home)) == "allow"


def test_the_list_has_every_place_that_settings_can_name() -> None:
    assert {*NAMES} == {
        "zot", "state/zot", ".local/state/zot", "Library/Application Support/zot", ".zeroclaw", "claw", "claw-data",
        "own-data", "daemon-data", "key.pem", "claw.sock", "claw.sock.lock", "kept.db", "kept.db-wal", "kept.db-shm",
        "kept.db-journal", "kept.db.lock", "record.jsonl",
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
