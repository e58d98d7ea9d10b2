"""docs/reference/errors.md: every code, status and exception is in its table, and every exit code is as described."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_args

import pytest

import zot
from forked import ForkServer
from harness import environment, eventually
from zot import errors
from zot.serve.daemon.daemon import MAX_CLIENTS
from zot.wire import jsonrpc
from zot.wire.host import ErrorCode

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "errors.md"
TEXT = PAGE.read_text()
REQUEST = b'{"request_id":"1","session_id":"s","prompt":"!echo Hello"}\n'


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_codes_are_those_of_the_daemon() -> None:
    codes = {str(code) for name, code in vars(jsonrpc).items() if name.isupper() and isinstance(code, int)}
    assert {*re.findall(r"^\| `(-\d+)` \|", section("Daemon error codes"), re.MULTILINE)} == codes
    assert f"too many clients: {MAX_CLIENTS}, or fewer" in TEXT


def test_the_codes_are_those_of_the_host_protocol() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", section("Host error codes"), re.MULTILINE) == [*get_args(ErrorCode)]


def statuses_in_source() -> set[int]:
    """Return every HTTP status that the daemon's addresses answer with."""
    found: set[int] = set()
    for path in (ROOT / "src" / "zot" / "serve" / "web").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name.lower().lstrip("_") in ("refuse", "refusal", "answer"):
                    found |= {
                        one.value for one in node.args if isinstance(one, ast.Constant) and type(one.value) is int
                    }
            elif isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Tuple | ast.Dict):
                parts = node.value.elts[:1] if isinstance(node.value, ast.Tuple) else node.value.values
                values = [one.value for one in parts if isinstance(one, ast.Constant)]
                found |= {value for value in values if type(value) is int and 200 <= value < 600}
    return found


def test_the_http_statuses_are_those_of_the_source() -> None:
    described = {int(code) for code in re.findall(r"^\| (\d{3}) \|", section("HTTP statuses"), re.MULTILINE)}
    from_starlette = {405}  # A route that does not take the method.
    assert described == statuses_in_source() | from_starlette
    assert {200, 401, 413, 421, 431, 503} <= statuses_in_source()


def test_the_close_codes_are_those_of_websockets() -> None:
    source = (ROOT / "src" / "zot" / "serve" / "web" / "websocket.py").read_text()
    codes = {*re.findall(r"\b(10\d\d)\b", source)}
    assert {*re.findall(r"^\| (10\d\d) \|", TEXT, re.MULTILINE)} == codes


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = spec_from_file_location("reference_script", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_exceptions_are_those_of_the_source(script: ModuleType) -> None:
    assert script.errors_page(TEXT) == TEXT, "run: python scripts/reference.py"
    for name in (name for name, kind in vars(errors).items() if isinstance(kind, type)):
        assert f"`{name}` |" in TEXT or f"`zot.{name}` |" in TEXT


def test_the_description_of_the_sdk_is_current_and_complete(script: ModuleType) -> None:
    assert script.API_PATH.read_text() == script.api(), "run: python scripts/reference.py"
    described = {value.__name__ for values in script.SECTIONS.values() for value in values}
    exceptions = {
        name for name in zot.__all__ if isinstance(kind := getattr(zot, name), type) and issubclass(kind, Exception)
    }
    assert {*zot.__all__} - exceptions - script.ELSEWHERE <= described


class Case(NamedTuple):
    """A command line that ends with a code: its input, and the signal that ends it after its first output."""

    argv: str
    given: bytes = b""
    signal: int = 0


LAB = "--provider lab"
#: A case for every row of the table. A daemon runs in $RUNNING, and none in $HOME.
CASES = {
    ("zot", "0"): Case("--version"),
    ("zot", "2"): Case("frobnicate"),
    ("zot -p", "0"): Case(f"-p {LAB}", b"!echo Hello"),
    ("zot -p", "1"): Case(f"-p {LAB}", b"!status 401"),
    ("zot -p", "2"): Case(f"-p {LAB}"),
    ("zot -p", "128+N"): Case(f"--json {LAB}", b"!stall", signal.SIGTERM),
    ("zot rpc", "0"): Case(f"rpc {LAB}", b'{"type":"prompt","message":"!status 401"}\n'),
    ("zot rpc", "1"): Case("rpc --provider anthropic"),
    ("zot rpc", "2"): Case("rpc --provider acme"),
    ("zot acp", "0"): Case(f"acp {LAB}", b"{}\n"),
    ("zot acp", "1"): Case(f"acp {LAB} --script missing.lab"),
    ("zot acp", "2"): Case("acp --session s"),
    ("zot host", "0"): Case(f"host {LAB}", REQUEST.replace(b"!echo Hello", b"!status 401")),
    ("zot host", "2"): Case(f"host {LAB}", b"hello?\n"),
    ("zot host", "3"): Case("host --provider anthropic", REQUEST),
    ("zot host", "4"): Case(f"host {LAB}", REQUEST),
    ("zot daemon", "0"): Case(f"daemon {LAB} --config-dir $HOME", b"", signal.SIGTERM),
    ("zot daemon", "1"): Case(f"daemon {LAB} --config-dir $HOME/file"),
    ("zot daemon", "2"): Case("daemon --frobnicate"),
    ("zot daemon", "3"): Case(f"daemon {LAB} --config-dir $RUNNING"),
    ("zot daemon status", "0"): Case("daemon status --config-dir $RUNNING"),
    ("zot daemon status", "1"): Case("daemon token revoke nobody --config-dir $HOME"),
    ("zot daemon status", "2"): Case("daemon status --frobnicate"),
    ("zot daemon status", "3"): Case("daemon status --config-dir $HOME"),
    ("zot attach", "0"): Case("attach --new --config-dir $RUNNING", b"!echo Hello\n"),
    ("zot attach", "1"): Case("attach --new --config-dir $RUNNING", b"!status 401\n"),
    ("zot attach", "2"): Case("attach --frobnicate"),
    ("zot attach", "3"): Case("attach --config-dir $HOME"),
    ("zot call", "0"): Case("call status --config-dir $RUNNING"),
    ("zot call", "1"): Case("call frobnicate --config-dir $RUNNING"),
    ("zot call", "2"): Case("call"),
    ("zot call", "3"): Case("call status --config-dir $HOME"),
    ("zot config", "0"): Case("config check --config-dir $HOME"),
    ("zot config", "1"): Case("config --config-dir $HOME/bad"),
    ("zot config", "2"): Case("config frobnicate"),
    ("zot config", "3"): Case("config check --config-dir $HOME/bad"),
    ("zot doctor", "0"): Case(f"doctor --offline {LAB}"),
    ("zot doctor", "1"): Case("doctor --offline --provider anthropic"),
    ("zot doctor", "2"): Case("doctor frobnicate"),
    ("zot login", "0"): Case("login anthropic --no-probe", b"sk-example\n"),
    ("zot login", "1"): Case("logout openai"),
    ("zot login", "2"): Case("login"),
    ("zot sessions", "0"): Case("sessions list"),
    ("zot sessions", "1"): Case("sessions show nothing"),
    ("zot sessions", "2"): Case("sessions frobnicate"),
    ("zot ext", "0"): Case("ext list"),
    ("zot ext", "1"): Case("ext remove nothing"),
    ("zot ext", "2"): Case("ext frobnicate"),
    ("zot web", "0"): Case("web devices --config-dir $RUNNING"),
    ("zot web", "1"): Case("web start --config-dir $RUNNING"),
    ("zot web", "2"): Case("web frobnicate"),
    ("zot web", "3"): Case("web status --config-dir $HOME"),
    ("zot mcp", "0"): Case("mcp list"),
    ("zot mcp", "1"): Case("mcp test nothing"),
    ("zot mcp", "2"): Case("mcp frobnicate"),
    ("zot worker", "1"): Case("worker --store postgresql://127.0.0.1:1/zot"),
    ("zot worker", "2"): Case("worker"),
    ("zot skills", "0"): Case("skills list"),
    ("zot skills", "1"): Case("skills untrust nothing"),
    ("zot skills", "2"): Case("skills frobnicate"),
}


def rows() -> list[tuple[str, str]]:
    found = re.findall(r"^\| `(.*?)`(?:, .*?)? \| ([\d+N]+) \|", section("Exit codes"), re.MULTILINE)
    return [(command, code) for command, code in found]


def test_every_exit_code_has_a_case() -> None:
    assert rows() == [*CASES]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Path]:
    """The directory of a daemon that runs."""
    home = tmp_path_factory.mktemp("running")
    daemon = fork_server.fork(
        ["daemon", "--provider", "lab", "--config-dir", str(home)], home, environment({"HOME": str(home)})
    )
    try:
        assert eventually(lambda: os.path.exists(home / "data" / "daemon.sock"))
        yield home
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate()


@pytest.mark.parametrize(
    ("row", "case"), [*CASES.items()], ids=lambda value: " ".join(value) if len(value) == 2 else ""
)
def test_an_exit_code_is_as_described(
    row: tuple[str, str], case: Case, tmp_path: Path, running: Path, fork_server: ForkServer
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.toml").write_text("[agents.default]\nmodle = 1\n")
    places = {"$HOME": str(tmp_path), "$RUNNING": str(running)}
    words = [re.sub(r"\$[A-Z]+", lambda name: places[name[0]], word) for word in case.argv.split()]
    process = fork_server.fork(words, tmp_path, environment({"HOME": str(tmp_path)}))
    begun = b""
    if case.signal:
        process.stdin.write(case.given)
        process.stdin.close()
        begun = os.read((process.stdout if case.given else process.stderr).fileno(), 1)
        process.send_signal(case.signal)
    if row == ("zot host", "4"):
        process.stdout.close()
    out, err = process.communicate(b"" if begun else case.given)
    expected = 128 + case.signal if row[1] == "128+N" else int(row[1])
    assert process.returncode == expected, (out, err)
