"""Start-up: errors take one line before the first answer, and few modules are loaded until then."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from harness import PATIENCE_S, command, environment

PING = b'{"type":"ping"}\n'
PONG = b'{"type":"response","command":"ping","success":true,"data":{"pong":true}}\n'


def start(
    directory: Path, *argv: str, env: dict[str, str] | None = None, given: bytes = PING
) -> subprocess.CompletedProcess[bytes]:
    """Run zot with these arguments to its end."""
    return forked.run(argv, cwd=directory, env=environment({}) if env is None else env, given=given)


# What the original zot takes is taken.


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("--with-skills", "--with-skills has no effect: skills are loaded unless --no-skill is given"),
        ("--with-skill", "--with-skill has no effect: skills are loaded unless --no-skill is given"),
        ("--no-yolo", "--no-yolo has no effect: zot asks for no confirmation by default; use --policy to limit tools"),
        ("--list-models", "--list-models has no effect: use: zot models"),
        ("hello there", "'hello' has no effect: zot rpc takes no words; it reads commands from standard input"),
    ],
)
@pytest.mark.parametrize("command", ["rpc", "--rpc"])
def test_flags_without_effect_are_named_and_accepted(tmp_path: Path, command: str, argv: str, told: str) -> None:
    done = start(tmp_path, command, "--provider", "lab", *argv.split())
    assert (done.returncode, done.stderr.decode()) == (0, f"zot: {told}\n")
    assert json.loads(done.stdout)["data"] == {"pong": True}


# What cannot work is said at once.

WRONG = {
    "an unknown provider": (["--provider", "acme"], r"unknown provider 'acme'; known: .*anthropic.*lab"),
    "an unknown model": (["--provider", "lab", "--model", "gpt-5"], r"unknown model 'gpt-5'.*known: .*lab-1"),
    "an unknown flag": (["--provider", "lab", "--frobnicate"], r"unknown flag --frobnicate"),
    "an unknown tool": (["--provider", "lab", "--tools", "read,teleport"], r"unknown tool 'teleport'; known: .*bash"),
    "a flag without its value": (["--provider"], r"--provider needs a value"),
    "a switch with a value": (["--provider", "lab", "--no-tools=yes"], r"--no-tools takes no value"),
    "no steps": (["--provider", "lab", "--max-steps", "0"], r"--max-steps 0: must be at least 1"),
    "steps that are no number": (["--provider", "lab", "--max-steps", "many"], r"--max-steps many: "),
    "unknown reasoning": (["--provider", "lab", "--reasoning", "deep"], r"--reasoning deep: must be one of off, low"),
    "no rule": (["--policy", "bogus"], r"--policy bogus: 'bogus' is not a rule; write TOOL"),
    "neither on nor off": (["--auto-compact", "maybe"], r"--auto-compact maybe: must be one of on, off"),
    "no key": (["--provider", "anthropic"], r"no key for anthropic: set ANTHROPIC_API_KEY.*provider lab"),
    "a missing directory": (["--provider", "lab", "--cwd", "nowhere"], r"nowhere is not a directory"),
    "a missing script": (["--provider", "lab", "--script", "nowhere.lab"], r"nowhere\.lab"),
    "a script for another provider": (
        ["--provider", "anthropic", "--api-key", "none", "--script", "broken.lab"],
        r"script needs the provider lab",
    ),
    "a broken configuration": (["--config-dir", "broken"], r"config\.toml: "),
    "an unknown setting": (["--config-dir", "unknown"], r"config\.toml: .*colour"),
    "a wrong setting": (["--config-dir", "wrong"], r"config\.toml: .*max_steps"),
    "a configuration that is not text": (["--config-dir", "binary"], r"config\.toml: "),
}
#: What no file and no service could make right.
MISUSED = [WRONG[name][1] for name in ("an unknown flag", "a flag without its value", "a switch with a value",
                                       "no steps", "steps that are no number", "unknown reasoning",
                                       "neither on nor off", "an unknown provider", "no rule")]  # fmt: skip
FILES = {
    "broken/config.toml": b"agents = [",
    "unknown/config.toml": b'[agents.default]\nprovider = "lab"\ncolour = "red"\n',
    "wrong/config.toml": b'[agents.default]\nprovider = "lab"\nmax_steps = "many"\n',
    "binary/config.toml": b"\xff\xfe",
    "good/config.toml": b'[agents.default]\nprovider = "lab"\nmax_steps = 1\n',
    "broken.lab": b"dance\n",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("startup")
    for name, content in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize(("flags", "reason"), WRONG.values(), ids=WRONG.keys())
def test_errors_are_one_line(directory: Path, flags: list[str], reason: str) -> None:
    done = start(directory, "rpc", *flags)
    errors = done.stderr.decode()
    assert re.search(rf"\Azot: .*{reason}.*\n\Z", errors), errors
    assert errors.count("\n") == 1
    assert (done.returncode, done.stdout) == (2 if reason in MISUSED else 1, b"")


def test_a_malformed_script_is_reported(directory: Path) -> None:
    done = start(directory, "rpc", "--provider", "lab", "--script", "broken.lab")
    assert done.returncode == 1
    assert re.fullmatch(rb"zot: broken\.lab:1: .*\n", done.stderr)


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *command()], cwd=gone, env=environment({}), input=PING,
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().splitlines() == ["zot: the current directory no longer exists; choose another cwd"]


def test_a_configuration_is_read_and_a_flag_wins_over_it(directory: Path) -> None:
    looped = b'{"type":"prompt","message":"!loop true"}\n'
    done = start(directory, "rpc", "--config-dir", "good", given=looped)
    assert done.stdout.count(b'"turn_start"') == 1
    done = start(directory, "rpc", "--config-dir", "good", "--max-steps", "3", given=looped)
    assert done.stdout.count(b'"turn_start"') == 3


def test_a_configuration_is_found_at_home(directory: Path, tmp_path: Path) -> None:
    done = start(tmp_path, "rpc", env=environment({"ZOT_HOME": str(directory / "good")}))
    assert (done.returncode, done.stdout) == (0, PONG)


def test_the_old_spelling_works(tmp_path: Path) -> None:
    assert start(tmp_path, "--rpc", "--provider", "lab").stdout == PONG


@pytest.mark.parametrize("flags", [["--no-tools"], ["--tools", "read"], ["--tools", ""]])
def test_tools_that_were_not_given_are_not_run(tmp_path: Path, flags: list[str]) -> None:
    """The scripted model calls bash even if it is not offered."""
    given = b'{"type":"prompt","message":"!script call bash {\\"command\\": \\"touch made\\"} ;; --- ;; say done"}\n'
    done = start(tmp_path, "rpc", "--provider", "lab", *flags, given=given)
    assert b'"is_error":true' in done.stdout
    assert b"there is no tool named 'bash'" in done.stdout
    assert list(tmp_path.iterdir()) == []


# Little is needed.


def test_an_empty_environment_is_enough(tmp_path: Path) -> None:
    done = start(
        tmp_path, "rpc", "--provider", "lab", env={}, given=b'{"type":"prompt","message":"!bash echo $HOME-"}\n'
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"text":"-\\n"' in done.stdout
    assert done.stdout.endswith(b'{"type":"done"}\n')


def test_a_directory_that_cannot_be_written_is_enough() -> None:
    # /proc/self refuses new files to every user.
    done = start(Path("/proc/self"), "rpc", "--provider", "lab", given=b'{"type":"prompt","message":"!write x y"}\n')
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"is_error":true' in done.stdout
    assert done.stdout.endswith(b'{"type":"done"}\n')


@pytest.mark.parametrize("locale", ["C", "POSIX", "tr_TR.UTF-8", "nonsense"])
def test_the_locale_does_not_matter(tmp_path: Path, locale: str) -> None:
    env = {"PATH": os.environ["PATH"], "LC_ALL": locale, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    given = '{"type":"prompt","message":"!bash printf \'İı 😀\'"}\n'.encode()
    done = start(tmp_path, "rpc", "--provider", "lab", env=env, given=given)
    assert (done.returncode, done.stderr) == (0, b"")
    assert '"text":"İı 😀"'.encode() in done.stdout


# Little is loaded.


def loaded_at(moment: str, *argv: str, given: bytes = b'{"type":"hello"}\n', **env: str) -> set[str]:
    """Return the modules that are loaded when ``moment``, a function of os, is called for the last time before exit."""
    probe = (
        "import sys\n"
        "at_start = set(sys.modules)\n"
        "import os\n"
        f"real = os.{moment}\n"
        "def spy(*args):\n"
        "    global seen\n"
        "    seen = set(sys.modules) - at_start\n"
        "    return real(*args)\n"
        "seen = set()\n"
        f"os.{moment} = spy\n"
        "def leave(code):\n"
        "    real_write(2, ' '.join(sorted(seen)).encode())\n"
        "    real_exit(0)\n"
        "real_write, real_exit, os._exit = os.write, os._exit, leave\n"
        f"if '{moment}' == 'write': real_write = real\n"
        "from zot.cli import run\n"
        f"run({list(argv)!r})\n"
        "seen = set(sys.modules) - at_start\n"
        "leave(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment(env), input=given, capture_output=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stderr.decode().split())


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (("rpc", "--session", "s"), b'{"type":"prompt","message":"!bash true"}\n'),
        (("-p", "!bash true", "--session", "s"), b""),
        (("host",), b'{"protocol_version":1,"type":"run","request_id":"r","session_id":"s","prompt":"!echo hi"}'),
        (("sessions", "list", "--all"), b""),
    ],
    ids=["rpc", "prompt", "host", "sessions"],
)
def test_nothing_of_a_fleet_is_loaded_without_a_store(tmp_path: Path, argv: tuple[str, ...], given: bytes) -> None:
    provider = () if argv[0] == "sessions" else ("--provider", "lab")
    loaded = loaded_at("write", *argv, *provider, given=given, HOME=str(tmp_path), ZOT_HOME=str(tmp_path))
    assert "zot.journal.journal" in loaded
    found = {one for one in loaded if one.startswith(("psycopg", "procrastinate", "zot.fleet", "zot.journal.postgres"))}
    assert found == set()


HEAVY = {"asyncio", "argparse", "logging", "ssl", "socket", "subprocess", "json", "pathlib", "httptools", "tomllib"}


def test_hello_is_answered_before_the_heavy_parts_are_loaded() -> None:
    loaded = loaded_at("write", "rpc", "--provider", "lab")
    assert "zot.wire.rpc_greeting" in loaded
    assert loaded & HEAVY == set()
    needed = {
        "zot.cli", "zot.commands", "zot.commands.rpc", "zot.config", "zot.config.config", "zot.config.credentials",
        "zot.config.flags", "zot.config.vendors", "zot.encoding", "zot.errors", "zot.providers", "zot.providers.models",
        "zot.runtime", "zot.runtime.check", "zot.runtime.provider_choice", "zot.serve", "zot.serve.stdio", "zot.text",
        "zot.version", "zot.wire", "zot.wire.lines", "zot.wire.rpc_greeting",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("zot.")} - needed == set()


def test_initialize_of_an_editor_is_answered_before_the_heavy_parts_are_loaded() -> None:
    given = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    loaded = loaded_at("write", "acp", "--provider", "anthropic", given=given)
    assert "zot.wire.acp_greeting" in loaded
    assert loaded & HEAVY == set()
    needed = {
        "zot.cli", "zot.commands", "zot.commands.acp", "zot.config", "zot.config.config", "zot.config.credentials",
        "zot.config.flags", "zot.config.vendors", "zot.encoding", "zot.errors", "zot.providers", "zot.providers.models",
        "zot.runtime", "zot.runtime.check", "zot.runtime.provider_choice", "zot.serve", "zot.serve.stdio", "zot.text",
        "zot.version", "zot.wire", "zot.wire.lines", "zot.wire.acp_greeting", "zot.wire.jsonrpc",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("zot.")} - needed == set()


def test_the_first_delta_needs_few_modules_of_each_package() -> None:
    loaded = loaded_at("write", "rpc", "--provider", "lab", given=b'{"type":"prompt","message":"!script say hi"}\n')
    needed = {
        "agent": "approvals compaction hooks loop run transcript",
        "commands": "rpc",
        "config": "config credentials flags policy skills vendors",
        "providers": "anthropic api_errors base mask models service sse",
        "runtime": "check open provider_assembly provider_choice shared system_prompt toolbox",
        "serve": "rpc stdio streams",
        "session": "history queue recovery session transcripts worker",
        "tools": "base specs",
        "wire": "lines rpc rpc_greeting",
    }
    vocabulary = "cli encoding errors events files messages run_summary store text version"
    names = {f"zot.{name}" for name in (*needed, *vocabulary.split())}
    names |= {f"zot.{package}.{name}" for package, modules in needed.items() for name in modules.split()}
    assert {
        one for one in loaded if one.startswith("zot.") and not one.startswith("zot.providers.lab")
    } - names == set()
    assert loaded & {"difflib", "fnmatch", "hashlib", "json", "random", "sqlite3", "urllib.parse", "zlib"} == set()


@pytest.mark.parametrize(
    "given",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n',
        b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{'
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}\n',
    ],
)
def test_the_greeting_of_an_mcp_client_is_answered_before_the_heavy_parts_are_loaded(given: bytes) -> None:
    loaded = loaded_at("write", "mcp", "serve", "--provider", "anthropic", given=given)
    assert "zot.wire.mcp_server" in loaded
    assert loaded & HEAVY == set()
    needed = {
        "zot.cli", "zot.commands", "zot.commands.mcp_serve", "zot.config", "zot.config.config",
        "zot.config.credentials", "zot.config.flags", "zot.config.vendors", "zot.encoding", "zot.errors",
        "zot.providers", "zot.providers.models", "zot.runtime", "zot.runtime.check", "zot.runtime.provider_choice",
        "zot.serve", "zot.serve.stdio", "zot.text", "zot.version", "zot.wire", "zot.wire.lines", "zot.wire.jsonrpc",
        "zot.wire.mcp_server",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("zot.")} - needed == set()


def test_tools_are_loaded_for_their_first_call() -> None:
    prompt = b'{"type":"prompt","message":"%s"}\n'
    spoken = loaded_at("write", "rpc", "--provider", "lab", given=prompt % b"!script say hi")
    looked = loaded_at("write", "rpc", "--provider", "lab", given=prompt % b"!read nowhere")
    tools = {"bash", "command_output", "edit", "file_access", "guardian", "process", "read", "skill", "write"}
    assert {f"zot.tools.{name}" for name in tools} & spoken == set()
    assert {f"zot.tools.{name}" for name in tools} & looked == {"zot.tools.file_access", "zot.tools.read"}


def test_a_stored_key_is_looked_up_by_two_small_modules_and_its_command_not_run(tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text(f'{{"anthropic": {{"command": "touch {tmp_path}/ran; echo k"}}}}')
    (tmp_path / "auth.json").chmod(0o600)
    usual = loaded_at("write", "rpc", "--provider", "lab")
    loaded = loaded_at("write", "rpc", "--provider", "anthropic", ZOT_HOME=str(tmp_path))
    assert {name for name in loaded - usual if name.startswith("zot.")} == {"zot.config.auth_file", "zot.files"}
    assert loaded & HEAVY == set()
    assert not (tmp_path / "ran").exists()


def test_the_version_is_printed_without_loading_anything() -> None:
    loaded = loaded_at("stat", "--version")
    assert loaded - {"__future__", "collections.abc", "gc", "typing", "zot", "zot.cli", "zot.version"} == set()


def test_the_version_is_one_line(tmp_path: Path) -> None:
    done = start(tmp_path, "--version")
    assert re.fullmatch(rb"zot \d+\.\d+\.\d+\S*\n", done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("argv", [["--help"], ["rpc", "--help"], ["rpc", "-h"]])
def test_help_is_given(tmp_path: Path, argv: list[str]) -> None:
    done = start(tmp_path, *argv)
    assert done.stdout.startswith(b"Usage: zot")
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(("argv", "hint"), [([], b"Usage: zot"), (["frobnicate"], b"Try: zot --help")])
def test_wrong_usage_is_exit_code_two(tmp_path: Path, argv: list[str], hint: bytes) -> None:
    done = start(tmp_path, *argv)
    assert (done.returncode, done.stdout) == (2, b"")
    assert hint in done.stderr


def loaded_when_greeted(directory: Path) -> set[str]:
    """Return the modules that a daemon has loaded when it answers `initialize` of a client that was there before it."""
    probe = (
        "import asyncio.selector_events as events, os, socket, sys\n"
        "listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)\n"
        "listener.bind('d.sock')\n"
        "listener.listen()\n"
        "client.connect('d.sock')\n"
        'client.sendall(b\'{"jsonrpc":"2.0","method":"initialize","id":1}\\n\')\n'
        "listener.fileno() == 3 or os.dup2(listener.fileno(), 3)\n"
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n"
        "def write(transport, data):\n"
        "    os.write(1, data + ' '.join(sys.modules).encode())\n"
        "    os._exit(0)\n"
        "events._SelectorSocketTransport.write = write\n"
        "from zot.cli import run\n"
        "run(['daemon', '--provider', 'lab', '--config-dir', '.'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=directory, env=environment({}), capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer, names = done.stdout.decode().split("\n")
    assert json.loads(answer)["result"]["protocolVersion"] == 1
    return set(names.split())


def test_a_daemon_greets_before_it_loads_what_any_other_method_needs(tmp_path: Path) -> None:
    loaded = loaded_when_greeted(tmp_path)
    assert "zot.wire.daemon" in loaded
    dear = {
        "hashlib",
        "json",
        "tomllib",
        "pathlib",
        "httptools",
        "importlib.metadata",
        "zot.session.session",
        "zot.agent.loop",
    }
    assert loaded & dear == set()
    needed = {
        "zot.cli", "zot.client", "zot.client.endpoint", "zot.commands", "zot.commands.daemon",
        "zot.serve.daemon.daemon_process", "zot.config", "zot.config.configured_agents",
        "zot.config.config", "zot.config.file",
        "zot.config.flags", "zot.config.paths", "zot.config.vendors", "zot.encoding", "zot.errors", "zot.events",
        "zot.files", "zot.journal", "zot.journal.answers", "zot.journal.chunks", "zot.journal.journal",
        "zot.journal.connection", "zot.journal.lease", "zot.journal.opening", "zot.journal.queries",
        "zot.journal.record", "zot.journal.schema", "zot.journal.session_store", "zot.journal.recorded_sessions",
        "zot.journal.writer", "zot.journal.writer_thread",
        "zot.messages", "zot.providers", "zot.runtime", "zot.runtime.open", "zot.runtime.shared",
        "zot.serve", "zot.serve.daemon", "zot.serve.daemon.audit", "zot.serve.daemon.backlog",
        "zot.serve.daemon.client_connection", "zot.serve.daemon.daemon", "zot.serve.daemon.claim",
        "zot.serve.daemon.lifecycle", "zot.serve.daemon.logs", "zot.serve.daemon.metrics",
        "zot.serve.daemon.sockets", "zot.serve.stdio", "zot.store", "zot.text", "zot.version", "zot.wire",
        "zot.wire.daemon", "zot.wire.jsonrpc", "zot.wire.lines", "zot.wire.spelling",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("zot.")} - needed == set()


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (("rpc",), b'{"type":"prompt","message":"!script say hi"}\n'),
        (("-p", "!script say hi"), b""),
        (
            ("host",),
            b'{"protocol_version":1,"type":"run","request_id":"r","session_id":"s","agent":"default",'
            b'"prompt":"!script say hi"}\n',
        ),
    ],
    ids=["rpc", "print", "host"],
)
def test_without_servers_no_module_of_mcp_is_loaded(tmp_path: Path, argv: tuple[str, ...], given: bytes) -> None:
    flags = ("--provider", "lab", "--cwd", str(tmp_path))
    loaded = loaded_at("write", *argv, *flags, given=given, ZOT_HOME=str(tmp_path / "home"))
    assert "zot.agent.loop" in loaded
    assert of_mcp(loaded) == []


def test_without_servers_the_daemon_loads_no_module_of_mcp(tmp_path: Path) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "zot", "daemon", "--provider", "lab"]
    env = environment({"ZOT_HOME": str(tmp_path)})
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        said = list[str]()
        for line in daemon.stderr:
            said.append(line)
            if "listens at" in line:
                break
        daemon.terminate()
        said += daemon.stderr
    loaded = {line.rpartition("|")[2].strip() for line in said}
    assert "zot.serve.daemon" in loaded
    assert of_mcp(loaded) == []


#: Modules that know the settings of servers and their cached tools, and none that talks to a server.
LISTS_OF_MCP = [
    "zot.mcp", "zot.mcp.launch", "zot.mcp.server_settings", "zot.mcp.servers", "zot.mcp.source", "zot.mcp.tool_cache",
    "zot.runtime.mcp",
]  # fmt: skip


def test_a_session_with_servers_opens_with_their_lists_alone(tmp_path: Path) -> None:
    flags = ("--provider", "lab", "--cwd", str(tmp_path), "--mcp", "s=sleep", "--mcp", "w=http://127.0.0.1:1/mcp")
    loaded = loaded_at("write", "rpc", *flags, given=b'{"type":"get_state"}\n', ZOT_HOME=str(tmp_path / "home"))
    assert "zot.agent.loop" in loaded
    assert of_mcp(loaded) == LISTS_OF_MCP
    assert loaded & {"hashlib", "shutil", "httptools", "urllib.parse", "zot.tools.process"} == set()


def test_cached_tools_are_offered_without_what_talks_to_servers(tmp_path: Path) -> None:
    server = Path(__file__).parent.parent / "mcp_client" / "server.py"
    flags = ("--cwd", str(tmp_path), "--mcp", f"s={sys.executable} {server} good")
    env = {"ZOT_HOME": str(tmp_path / "home")}
    tested = start(tmp_path, "mcp", "test", *flags, given=b"", env=environment(env))
    assert tested.returncode == 0, tested.stderr
    prompt = b'{"type":"prompt","message":"!script say hi"}\n'
    loaded = loaded_at("write", "rpc", "--provider", "lab", *flags, given=prompt, **env)
    assert of_mcp(loaded) == LISTS_OF_MCP


def of_mcp(loaded: set[str]) -> list[str]:
    """Return the modules of MCP and of questions to the user."""
    strange = ("zot.mcp", "zot.wire.mcp", "zot.runtime.mcp", "zot.questions", "zot.agent.pending_questions")
    return [name for name in sorted(loaded) if name.startswith(strange)]
