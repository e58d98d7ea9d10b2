"""The units and the Dockerfile: valid, and a daemon that is started with their own lines answers and has its key."""

from __future__ import annotations

import configparser
import http.server
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import PATIENCE_S, environment
from optional import needs
from zot.config.paths import locate

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "service"
ZOT = Path(sys.executable).parent / "zot"
KEY = "sk-from-a-credential"


@pytest.fixture
def place() -> Iterator[Path]:
    """A short directory: the path of a socket must be."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign] # the way to keep the case of keys
    parser.read(SERVICE / name)
    return parser


# What systemd thinks of the units.


@needs("systemd-analyze")
@pytest.mark.parametrize(
    ("name", "scope"),
    [("user/zot.service", "--user"), ("user/zot.socket", "--user"), ("system/zot.service", "--system")],
)
def test_systemd_finds_no_fault_in_a_unit(name: str, scope: str, place: Path) -> None:
    for file in (SERVICE / name).parent.iterdir():
        text = re.sub(r"[^\s=]*/bin/zot\b", str(ZOT), file.read_text())  # systemd looks whether the program exists
        (place / file.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", scope, place / Path(name).name],
        env=environment({"HOME": str(place), "XDG_RUNTIME_DIR": str(place)}),
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


# A daemon, started as the files say.


class Heard(NamedTuple):
    """A request to the model service."""

    url: str
    keys: list[str]


@pytest.fixture
def service() -> Iterator[Heard]:
    """A model service that notes the keys it is shown, and refuses them."""
    keys: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers["x-api-key"])
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Heard(f"http://127.0.0.1:{server.server_port}", keys)
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def supervised(command: str, env: Mapping[str, str], cwd: Path, **popen: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a service as systemd does and wait until it reports that it is ready. It must end well on SIGTERM."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(cwd / "notify"))
        ear.settimeout(PATIENCE_S)
        process = subprocess.Popen(
            ["bash", "-c", f"LISTEN_PID=$$ exec {command}"], cwd=cwd, env={**env, "NOTIFY_SOCKET": str(cwd / "notify")},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **popen,
        )  # type: ignore[call-overload] # fmt: skip
        try:
            assert b"READY=1" in ear.recv(4096)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors


def call(env: Mapping[str, str], method: str, **params: object) -> subprocess.CompletedProcess[bytes]:
    words = [str(ZOT), "call", method, json.dumps(params)]
    return subprocess.run(words, env=env, capture_output=True, timeout=PATIENCE_S, check=False)


def prompt(env: Mapping[str, str]) -> None:
    """Prompt the daemon once."""
    assert call(env, "session/new", agentAlias="default", sessionId="s1").returncode == 0
    failed = call(env, "session/prompt", sessionId="s1", prompt="hi")
    assert b"http 401" in failed.stderr


def test_the_unit_of_a_server_starts_a_daemon_that_has_the_credential(place: Path, service: Heard) -> None:
    section = unit("system/zot.service")["Service"]
    name, _, file = section["LoadCredential"].partition(":")
    assert file == "/etc/zot/anthropic.key"
    (place / "credentials").mkdir()
    (place / "credentials" / name).write_text(f"{KEY}\n")
    for directory in section["StateDirectory"].split():
        (place / directory).mkdir(parents=True, mode=int(section["StateDirectoryMode"], 8))

    def meant(text: str) -> str:
        return text.replace("%S", str(place)).replace("/opt/zot/bin/zot", str(ZOT)).replace("$$", "$")

    env = environment(dict(word.split("=", 1) for word in shlex.split(meant(section["Environment"]))))
    env |= {"CREDENTIALS_DIRECTORY": str(place / "credentials"), "ANTHROPIC_BASE_URL": service.url}
    # systemd replaces variables in a line, but not those whose dollar is doubled: those are for the command.
    before = shlex.split(meant(section["ExecStartPre"]))
    subprocess.run(before, env=env, check=True, capture_output=True, timeout=PATIENCE_S)
    assert KEY not in (place / "zot" / "home" / "auth.json").read_text()

    command = meant(section["ExecStart"]).replace(":7777", ":0")
    with supervised(command, env, Path(meant(section["WorkingDirectory"]))):
        prompt(env)
        assert service.keys == [KEY]
        [address] = json.loads(call(env, "status").stdout)["listens"]
        assert address.startswith("ws://127.0.0.1:")


def test_the_units_of_a_user_start_a_daemon_on_their_socket(place: Path) -> None:
    listen, section = unit("user/zot.socket")["Socket"], unit("user/zot.service")["Service"]
    program = place / ".local" / "bin" / "zot"
    program.parent.mkdir(parents=True)
    program.symlink_to(ZOT)
    env = environment({"HOME": str(place)})
    path = Path(listen["ListenStream"].replace("%h", str(place)))
    assert str(path) == locate(env, platform="linux").socket
    path.parent.mkdir(parents=True, mode=int(listen["DirectoryMode"], 8))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(int(listen["SocketMode"], 8))
        listener.listen(int(listen["Backlog"]))
        command = section["ExecStart"].replace("%h", str(place)) + f" 3<&{listener.fileno()}"
        with supervised(command, env | {"LISTEN_FDS": "1"}, place, pass_fds=[listener.fileno()]) as process:
            assert json.loads(call(env, "status").stdout)["serverPid"] == process.pid
        assert path.exists(), "the socket is systemd's"


def test_a_unit_is_not_restarted_where_a_restart_would_not_help() -> None:
    for name in ("user/zot.service", "system/zot.service"):
        section = unit(name)["Service"]
        assert (section["Type"], section["RestartPreventExitStatus"]) == ("notify", "2 3")


# The Dockerfile.

INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n", " ", (SERVICE / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]


def values(instruction: str) -> list[str]:
    """Return the arguments of every instruction of a kind."""
    return [argument for name, argument in INSTRUCTIONS if name == instruction]


def test_the_dockerfile_uses_only_known_instructions() -> None:
    names = [name for name, _ in INSTRUCTIONS]
    assert names[0] == "FROM"
    assert set(names) <= {
        "FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert (names.count("ENTRYPOINT"), names.count("CMD")) == (1, 1)
    assert all(re.fullmatch(r"[\w/.-]+:[\w.-]+", image) for image in values("FROM")), "an image without a version"
    for line in values("RUN"):
        subprocess.run(["sh", "-n"], input=line.encode(), check=True)


def test_the_image_has_what_the_clone_has() -> None:
    for line in values("COPY"):
        *sources, target = line.split()
        assert all((ROOT / source).exists() for source in sources), line
        assert target.startswith("/src")
    assert not [line for line in values("ENV") if re.search("KEY|TOKEN|SECRET|PASSWORD", line)], "secrets in the image"


def test_the_container_does_not_run_as_root() -> None:
    names = [name for name, _ in INSTRUCTIONS]
    assert values("USER") == ["10001"]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_container_s_own_lines_start_a_daemon_that_has_the_secret(place: Path, service: Heard) -> None:
    secret, state = place / "secret", place / "state"
    secret.write_text(f"{KEY}\n")
    variables = dict(line.split("=", 1) for line in values("ENV"))
    assert variables == {"ZOT_HOME": "/home/zot/state"}
    env = environment(
        {"ZOT_HOME": str(state), "ANTHROPIC_BASE_URL": service.url, "PATH": f"{ZOT.parent}:/usr/bin:/bin"}
    )
    [login] = [line for line in values("RUN") if line.startswith("zot ")]
    assert "/run/secrets/anthropic" in login
    login = login.replace("/run/secrets/anthropic", str(secret))
    subprocess.run(["sh", "-c", login], env=env, check=True, capture_output=True, timeout=PATIENCE_S)

    words = [*json.loads(values("ENTRYPOINT")[0]), *json.loads(values("CMD")[0])]
    with supervised(shlex.join(words), env, place):
        prompt(env)
        assert service.keys == [KEY]
        assert is_healthy(env)
    assert not is_healthy(env), "a daemon that has ended is not healthy"
    assert json.loads(values("VOLUME")[0]) == [variables["ZOT_HOME"], values("WORKDIR")[0]]


def is_healthy(env: Mapping[str, str]) -> bool:
    words = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    return subprocess.run(words, env=env, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
