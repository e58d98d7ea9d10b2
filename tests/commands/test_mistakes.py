"""The most common mistakes of a new user: each has one exact answer, which names the next step, and an exit code."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from forked import ForkServer
from harness import eventually
from shell import Shell
from zot import cli
from zot.commands import completion
from zot.config.config import Config
from zot.config.flags import MCP_NAME_RULE
from zot.errors import ExtraMissing
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources

LAB = "--provider lab"
PROVIDERS = "anthropic, deepseek, gemini, groq, kimi, lab, mistral, ollama, openai, openrouter, xai"
WITH_KEYS = "anthropic, openai, gemini, deepseek, kimi, openrouter, ollama, groq, mistral, xai"
NO_KEY = (
    "no key for anthropic: set ANTHROPIC_API_KEY, or run: zot login anthropic. "
    'The provider lab needs none: --provider lab (in Python: provider="lab")'
)
NO_DAEMON = "No daemon is running at $HOME/.zeroclaw/data/daemon.sock. Start one with: zot daemon"
NO_PROMPT = "no prompt; give it as words or on standard input: zot -p PROMPT"
NO_SESSION = "no session matches 'x': none has been recorded in $HOME/.local/state/zot/journal.db yet"
NO_SERVERS = "there are no MCP servers"
ROLES = "view, prompt, approve, self_approve, extend"


class Mistake(NamedTuple):
    """A command line, its input, the answer on standard error after "zot: ", and the exit code."""

    line: str
    told: str
    code: int
    typed: bytes = b""


PROMPTS = (
    Mistake("-p", NO_PROMPT, 2),
    Mistake(f"-p {LAB} --resume x", f"{NO_PROMPT}; 'x' was read as the id of a session", 2),
    Mistake("-p hi", NO_KEY, 1),
    Mistake(LAB, "standard input is not a terminal; to ask the agent: zot -p PROMPT", 2),
    Mistake(f"{LAB} hi", "unknown command 'hi' after the flags; to ask the agent: zot -p PROMPT", 2),
    Mistake("rcp", "unknown command 'rcp'; did you mean rpc?\nTry: zot --help", 2),
    Mistake("frobnicate", "unknown command 'frobnicate'; to ask the agent: zot -p 'frobnicate'\nTry: zot --help", 2),
    Mistake("--model x rpc", "the command comes first: zot rpc --model ...\nTry: zot --help", 2),
    Mistake("-p --json hi", "--print and --json exclude each other", 2),
    Mistake(f"-p {LAB} -c hi", "no session of $CWD to continue; list all with: zot sessions list --all", 1),
    Mistake(f"-p {LAB} --resume x hi", "no session of $CWD to continue; list all with: zot sessions list --all", 1),
    Mistake(f"-p {LAB} --policy bash=ask", "bash was not run: the policy asks for approval, and zot -p cannot ask. "
            "Allow it with: --policy bash=allow, before any other --policy", 1, b"!bash echo hi"),
    Mistake("deamon --help", "unknown command 'deamon'; did you mean daemon?\nTry: zot --help", 2),
)  # fmt: skip
VALUES = (
    Mistake("-p hi --provder lab", "unknown flag --provder; did you mean --provider?", 2),
    Mistake("-p hi --frobnicate", "unknown flag --frobnicate; --help-all lists every flag", 2),
    Mistake("-p hi --provider", "--provider needs a value: --provider NAME", 2),
    Mistake("-p hi --no-tools=1", "--no-tools takes no value", 2),
    Mistake("-p hi --provider antropic", f"--provider antropic: unknown provider 'antropic'; known: {PROVIDERS}; "
            "did you mean anthropic?", 2),
    Mistake(f"-p hi {LAB} --model lab1", "unknown model 'lab1' (provider 'lab'); known: lab-1; did you mean lab-1?", 1),
    Mistake("-p hi --provider ollama", "ollama has no default model; name one. To list them: "
            "zot models --live --provider ollama", 1),
    Mistake(f"-p hi {LAB} --max-steps none", "--max-steps none: must be a whole number", 2),
    Mistake(f"-p hi {LAB} --reasoning much", "--reasoning much: must be one of off, low, medium, high", 2),
    Mistake(f"-p hi {LAB} --policy bash", "--policy bash: 'bash' is not a rule; write TOOL[:PATTERN]=allow, =deny or "
            "=ask, such as 'bash=ask'", 2),
    Mistake(f"-p hi {LAB} --policy bsh=ask", "policy: no tool is named 'bsh'; did you mean bash?", 1),
    Mistake(f"-p hi {LAB} --tools raed", "unknown tool 'raed'; known: bash, edit, read, skill, write; "
            "did you mean read?", 1),
    Mistake(f"-p hi {LAB} --approval-timeout 0", "--approval-timeout 0: must be above 0 and at most 31622400", 2),
    Mistake(f"-p hi {LAB} --session a --no-session", "--session and --no-session exclude each other", 2),
    Mistake(f"-p hi {LAB} --agent reviewer", "no agent 'reviewer' in config.toml; known: default", 1),
    Mistake("models --live", "--live needs a provider: zot models --live --provider NAME", 2),
    Mistake("models gpt", "zot models takes no words, only flags: 'gpt'", 2),
    Mistake("completion", "name a shell: zot completion bash, zsh or fish", 2),
    Mistake("completion bsh", "name a shell: zot completion bash, zsh or fish; did you mean bash?", 2),
)  # fmt: skip
FILES = (
    Mistake(f"-p hi {LAB} --cwd $CWD/nowhere", "$CWD/nowhere is not a directory; choose another cwd", 1),
    Mistake(f"-p hi {LAB} --script nowhere.lab", "nowhere.lab: no such file", 1),
    Mistake("-p hi --provider ollama --model x --script bad.lab", "script needs the provider lab, not ollama", 1),
    Mistake(f"-p hi {LAB} --output-schema nowhere.json",
            "the output schema nowhere.json cannot be read: No such file or directory", 1),
    Mistake(f"-p hi {LAB} --output-schema half.json", "half.json: not JSON: the JSON ends too early", 1),
    Mistake(f"-p hi {LAB} --ext nowhere", "$CWD/nowhere: no such directory", 1),
    Mistake(f"-p hi {LAB} --ext empty", "$CWD/empty is not an extension directory: it has no extension.json", 1),
    Mistake(f"-p hi {LAB} --skill empty", "$CWD/empty/SKILL.md: No such file or directory", 1),
    Mistake(f"-p hi {LAB} --config-dir nowhere", "--config-dir nowhere: no such directory", 1),
    Mistake(f"-p hi {LAB} --config-dir typo", "typo/config.toml: [agents.default] modle: unknown setting; "
            "did you mean model?", 1),
    Mistake(f"-p hi {LAB} --config-dir key", "key/config.toml: [agents.default] api_key: a key does not belong in this "
            "file: run `zot login PROVIDER`, or set the provider's variable", 1),
    Mistake("config check --config-dir typo", "typo/config.toml: [agents.default] modle: unknown setting; "
            "did you mean model?", 3),
    Mistake("config chek", "zot config has no subcommand 'chek'; known: agents, daemon, check; did you mean check?", 2),
    Mistake("lab check --script nowhere.lab", "cannot read the lab script nowhere.lab: No such file or directory", 1),
    Mistake("lab serv", "name what to do: zot lab serve, or zot lab check --script FILE; did you mean serve?", 2),
    Mistake("lab", "name what to do: zot lab serve, or zot lab check --script FILE", 2),
    Mistake("sessions import nowhere.jsonl", "nowhere.jsonl: No such file or directory", 1),
)  # fmt: skip
COMMANDS = (
    Mistake("login", f"name a provider: zot login PROVIDER; known: {WITH_KEYS}", 2),
    Mistake("login antropic", f"unknown provider; use zot login and one of these: {WITH_KEYS}; did you mean anthropic?",
            2),
    Mistake("login lab", "lab needs no key: use --provider lab", 2),
    Mistake("login anthropic --no-probe", "no key was given; nothing was stored", 1),
    Mistake("logout openai", "nothing is stored for openai in $HOME/.local/state/zot/auth.json", 1),
    Mistake("sessions", "zot sessions needs a subcommand: list, show, search, export, import, move, fork, rewind, "
            "diff, rename, delete, gc, check, backup. Try: zot sessions --help", 2),
    Mistake("sessions shwo x", "zot sessions has no subcommand 'shwo'; did you mean show? Try: zot sessions --help", 2),
    Mistake("sessions show", "zot sessions show takes ID. Try: zot sessions show --help", 2),
    Mistake("sessions show x", NO_SESSION, 1),
    Mistake("ext lsit", "zot ext has no subcommand 'lsit'; did you mean list? Try: zot ext --help", 2),
    Mistake("ext new a/b", "'a/b' is not a valid name: use at most 64 letters, digits, dots, dashes and "
            "underscores", 1),
    Mistake("ext new typo", "$CWD/typo exists already; name another directory: zot ext new NAME DIR", 1),
    Mistake("ext test empty", "$CWD/empty is not an extension directory: it has no extension.json", 1),
    Mistake("ext enable greet", "no extension is named 'greet'; known: none", 1),
    Mistake("skills trust nowhere", "$CWD/nowhere/SKILL.md: No such file or directory", 1),
    Mistake("rpc", NO_KEY, 1),
    Mistake(f"rpc hi {LAB}", "'hi' has no effect: zot rpc takes no words; it reads commands from standard input", 0),
)  # fmt: skip
DAEMON = (
    Mistake("attach", NO_DAEMON, 3),
    Mistake("call status", NO_DAEMON, 3),
    Mistake("call", "name a method: zot call METHOD [JSON]", 2),
    Mistake("call status {", "the parameters are not a JSON object: the JSON ends too early", 2),
    Mistake("daemon sttaus", "zot daemon has no subcommand 'sttaus'; did you mean status? Try: zot daemon --help", 2),
    Mistake("daemon logs", "no log exists at $HOME/.zeroclaw/data/logs/daemon.log: no daemon has written one yet", 1),
    Mistake("daemon audit verfy", "zot daemon audit has no 'verfy'; use: verify or access. "
            "Try: zot daemon audit --help", 2),
    Mistake("daemon token new a --role admin", f"--role: unknown role 'admin'; known: {ROLES}. "
            "Try: zot daemon token --help", 2),
    Mistake("daemon token revoke a", "no token is named 'a'; list them with: zot daemon token list", 1),
    Mistake(f"daemon {LAB} --listen ws://0.0.0.0:7777", "ws://0.0.0.0:7777: others could read unencrypted traffic. On "
            "this machine, use ws://127.0.0.1:7777; elsewhere, use wss:// with --tls-cert and --tls-key", 1),
    Mistake(f"daemon {LAB} --listen wss://0.0.0.0:7777", "wss://0.0.0.0:7777: wss:// needs a certificate: --tls-cert "
            "FILE and --tls-key FILE", 1),
    Mistake(f"daemon {LAB} --listen 7777", "cannot listen at 7777: expected addresses such as ws://127.0.0.1:7777, "
            "without a user, a query or a token", 1),
)  # fmt: skip
DATABASE = "add --store postgresql://…, or set ZOT_STORE"
SERVERS = (
    Mistake("acp --mode aks", "--mode aks: must be one of ask, accept_edits, allow_all, plan; did you mean ask?", 2),
    Mistake("acp hello", "'hello' has no effect: prompts come from the editor", 0),
    Mistake("acp --session x", "unknown flag --session; --help-all lists every flag", 2),
    Mistake("mcp", "zot mcp needs a subcommand: serve, list, add, remove, enable, disable, import, login, logout, "
            "test, tools, call, logs, trust, untrust. Try: zot mcp --help", 2),
    Mistake("mcp lst", "zot mcp has no subcommand 'lst'; did you mean list? Try: zot mcp --help", 2),
    Mistake("mcp list", f"{NO_SERVERS}; add one with: zot mcp add NAME COMMAND", 0),
    Mistake("mcp test", f"{NO_SERVERS}; add one with: zot mcp add NAME COMMAND", 0),
    Mistake("mcp test files", "no MCP server is named 'files'; list them with: zot mcp list", 1),
    Mistake("mcp call files x {", "the arguments are not a JSON object: the JSON ends too early", 1),
    Mistake("mcp add files", "zot mcp add takes NAME COMMAND|URL. Try: zot mcp add --help", 2),
    Mistake("mcp add my.files cmd", f"'my.files' is not a valid server name: {MCP_NAME_RULE}", 1),
    Mistake("mcp add files ftp://files.example", "'ftp://files.example' is not an address of http or https", 1),
    Mistake("mcp remove files", "config.toml has no server 'files'; list the servers with: zot mcp list", 1),
    Mistake("mcp trust", "$CWD/.mcp.json: no such file, or it has no servers", 1),
    Mistake(f"-p hi {LAB} --mcp files", "--mcp files: expected NAME=COMMAND or NAME=URL, such as files='mcp-files "
            "--root .'", 2),
    Mistake("mcp serve hi", "zot mcp serve takes no words, not 'hi'", 2),
    Mistake("web opne", "zot web has no subcommand 'opne'; known: start, pair, status, devices, revoke, stop. "
            "Try: zot web --help", 2),
    Mistake("web pair", "No daemon is running at $HOME/.zeroclaw/data/daemon.sock. "
            "Start the dashboard with: zot web", 3),
    Mistake("web pair --role admin", "--role: unknown role 'admin'; known: view, prompt, approve, self_approve. "
            "Try: zot web pair --help", 2),
    Mistake("web start --port 99999", "--port: '99999' is not a port. Try: zot web start --help", 2),
    Mistake("web revoke x", "no device is named 'x'; list them with: zot web devices", 1),
    Mistake("worker", f"a worker needs a database: {DATABASE}", 2),
    Mistake("worker --store sessions.db", f"a worker needs a database: {DATABASE}", 2),
    Mistake("fleet stats", "zot fleet has no subcommand 'stats'; did you mean status? Try: zot fleet --help", 2),
    Mistake("fleet status", f"zot fleet needs a database: {DATABASE}. Try: zot fleet status --help", 2),
    Mistake("sessions list --store mysql://db", "--store mysql://db: must be an address that begins with "
            "postgresql://, or the path of a file. Try: zot sessions list --help", 2),
    Mistake("sessions move", "zot sessions move takes ID... Try: zot sessions move --help", 2),
    Mistake("sessions move x --to other.db", NO_SESSION, 1),
)  # fmt: skip
MISTAKES = (*PROMPTS, *VALUES, *FILES, *COMMANDS, *DAEMON, *SERVERS)


@pytest.fixture
def newcomer(shell: Shell) -> Shell:
    """A shell with an empty home, no keys, and some files that are wrong."""
    shell.env.pop("ZOT_HOME")
    (shell.cwd / "empty").mkdir()
    for name, text in (("typo", "modle = 'x'"), ("key", "api_key = 'sk-1'")):
        (shell.cwd / name).mkdir()
        (shell.cwd / name / "config.toml").write_text(f"[agents.default]\n{text}\n")
    (shell.cwd / "bad.lab").write_text('sya "x"\n')
    (shell.cwd / "half.json").write_text("{")
    return shell


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.line)
def test_a_mistake_is_answered_with_its_text_and_exit_code(mistake: Mistake, newcomer: Shell) -> None:
    places = {"$HOME": str(newcomer.user), "$CWD": str(newcomer.cwd)}

    def placed(text: str) -> str:
        return re.sub(r"\$(HOME|CWD)", lambda name: places[name[0]], text)

    said = newcomer.run(*placed(mistake.line).split(), typed=mistake.typed)
    assert (said.err, said.code) == (f"zot: {placed(mistake.told)}\n", mistake.code)


def test_the_table_has_sixty_mistakes_or_more_and_none_twice() -> None:
    assert len({(one.line, one.typed) for one in MISTAKES}) == len(MISTAKES) >= 60


def test_no_answer_has_a_raw_error_or_a_period_after_one_sentence() -> None:
    for one in MISTAKES:
        assert "Errno" not in one.told
        assert not one.told.endswith(".")


def _misspelt(name: str) -> str:
    """Return a name without its second-last letter."""
    return f"{name[:-2]}{name[-1]}"


def _typos() -> Iterator[tuple[str, str]]:
    """Yield a command line for each command, subcommand and flag, with one letter missing, and the right word."""
    for entry in completion.entries():
        begin = " ".join(filter(None, (entry.command, entry.subcommand)))
        for word, _ in entry.words:
            if len(word) > 3:
                yield f"{begin} {_misspelt(word)}".strip(), word
        for flag in entry.flags if begin != "host" else ():  # It answers a request with the mistake.
            if len(flag.name) > 7 and _misspelt(flag.name) not in {one.name for one in entry.flags}:
                yield f"{begin or '-p hi'} {_misspelt(flag.name)}".strip(), flag.name


def test_every_command_suggests_the_right_word_for_a_misspelt_one(capsys: pytest.CaptureFixture[str]) -> None:
    typos = [*_typos()]
    wrong = {}
    for line, right in typos:
        code, told = cli.run(line.split()), capsys.readouterr().err
        if code != 2 or f"; did you mean {right}?" not in told:
            wrong[line] = told
    assert wrong == {}
    assert {line.split()[0] for line, _ in typos} >= {*completion.COMMANDS} - {"host", "logout"}
    assert len(typos) > 300


def test_a_misspelt_command_of_an_extension_is_not_sent_to_the_model(newcomer: Shell) -> None:
    assert newcomer.run("ext", "new", "greet").code == 0
    flags = ("--provider", "lab", "--ext", str(newcomer.cwd / "greet"))
    assert newcomer.run("-p", "/greet Ada", *flags).code == 0
    said = newcomer.run("-p", "/gret Ada", *flags)
    told = "zot: unknown command /gret; did you mean /greet? To send it as a prompt, put a space before the slash\n"
    assert (said.out, said.err, said.code) == ("", told, 1)
    assert newcomer.run("-p", " /gret Ada", *flags).code == 0
    assert newcomer.run("-p", "/etc is a directory", *flags).code == 0


def test_a_misspelt_session_agent_or_mcp_server_is_suggested(newcomer: Shell) -> None:
    assert newcomer.run("-p", "!echo hi", "--provider", "lab", "--session", "release-notes").code == 0
    for line, told in (
        ("sessions show relaese-notes", "no session matches 'relaese-notes'; did you mean release-notes?"),
        (
            "-p hi --provider lab --agent defualt",
            "no agent 'defualt' in config.toml; known: default; did you mean default?",
        ),
        ("mcp tools flies --mcp files=true", "no MCP server is named 'flies'; did you mean files?"),
    ):
        said = newcomer.run(*line.split())
        assert (said.out, said.err, said.code) == ("", f"zot: {told}\n", 1)


def test_a_command_of_the_terminal_is_not_sent_to_the_model(newcomer: Shell) -> None:
    advice = "To send it as a prompt, put a space before the slash\n"
    for prompt, told in (
        ("/model opus", "/model is a command of the terminal; here, use: --model ID."),
        ("/modle", "unknown command /modle; did you mean /model?"),
    ):
        said = newcomer.run("-p", prompt, "--provider", "lab")
        assert (said.out, said.err, said.code) == ("", f"zot: {told} {advice}", 1)
    assert newcomer.run("-p", " /model", "--provider", "lab").code == 0


def test_every_command_of_the_terminal_has_a_counterpart_for_one_prompt() -> None:
    from zot.serve.once import TERMINAL_COMMANDS
    from zot.ui.terminal.slash import COMMANDS as TYPED

    assert TERMINAL_COMMANDS.keys() == TYPED.keys()


@pytest.mark.parametrize("flags", ["--ext nowhere", "--skill empty", "--tools raed", "--model lab1"])
def test_wrong_settings_leave_no_empty_session(flags: str, newcomer: Shell) -> None:
    for prompt in ((("hi",), b""), ((), b"hi")):  # As a word, and piped.
        said = newcomer.run("-p", *prompt[0], "--provider", "lab", *flags.split(), typed=prompt[1])
        assert said.code == 1
    assert newcomer.run("sessions", "list", "--all").out == ""
    assert newcomer.run("-p", "!echo hi", "--provider", "lab").code == 0
    wrong = newcomer.run("-p", "-c", "hi", "--provider", "lab", *flags.split())
    assert wrong.code == 1
    assert newcomer.run("sessions", "list", "--all").out.count("\n") == 2, "the earlier session stays"


@pytest.mark.parametrize(("mark", "command"), [("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")])
def test_a_missing_extra_names_the_tool_that_installed_zot(
    mark: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / mark).touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    told = f"--listen needs uvicorn; in a clone of zot, run: {command} install --force '.[web]'"
    assert str(ExtraMissing("--listen needs uvicorn", "web")) == told


@pytest.mark.parametrize(
    ("line", "typed", "told"),
    [
        ("rpc", b"hello\n", "not a JSON object: JSON is malformed: invalid character (byte 0)"),
        ("rpc", b'{"type":"promt"}\n', "unknown command 'promt'; did you mean prompt?"),
        ("rpc", b'{"type":"prompt"}\n', "the prompt is empty; give it a message or images"),
    ],
)
def test_a_wrong_line_is_answered_in_rpc(line: str, typed: bytes, told: str, newcomer: Shell) -> None:
    said = newcomer.run(*line.split(), "--provider", "lab", typed=typed)
    assert (f'"success":false,"error":"{told}"' in said.out, said.err, said.code) == (True, "", 0)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (b"", "there is no request: the input is empty"),
        (b"hello?\n", "not a request: JSON is malformed: invalid character (byte 0); "
         "it must be one JSON object, on one line"),
        (b'{"request_id":"1","session_id":"s"}\n', "prompt is missing"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_answered_by_host(typed: bytes, told: str, newcomer: Shell) -> None:
    said = newcomer.run("host", "--provider", "lab", typed=typed)
    assert (f'"error_code":"INVALID_REQUEST","error_message":"{told}"' in said.out, said.code) == (True, 2)


def test_keys_that_others_can_read_are_not_used(newcomer: Shell) -> None:
    assert newcomer.run("login", "anthropic", "--no-probe", typed=b"sk-1\n").code == 0
    path = Path(newcomer.user, ".local", "state", "zot", "auth.json")
    path.chmod(0o644)
    said = newcomer.run("-p", "hi", "--provider", "anthropic")
    told = f"{path} is open to others (mode 0644), so zot reads no key from it; try: chmod 600 {path}"
    assert (said.err, said.code) == (f"zot: {told}\n", 1)


@pytest.mark.parametrize("flag", ["-p", "--json"])
def test_a_tool_that_needs_an_approval_is_reported_once_and_the_answer_printed(flag: str, newcomer: Shell) -> None:
    script = newcomer.cwd / "twice.lab"
    script.write_text('shell "echo 1"\nshell "echo 2"\n---\nsay "Done."\n')
    said = newcomer.run(flag, "go", "--provider", "lab", "--script", str(script), "--policy", "bash=ask")
    told = "zot: bash was not run: the policy asks for approval, and zot -p cannot ask. "
    told += "Allow it with: --policy bash=allow, before any other --policy\n"
    assert ("Done." in said.out, said.err, said.code) == (True, told, 1)
    allowed = newcomer.run(flag, "go", "--provider", "lab", "--script", str(script), "--policy", "bash=allow")
    assert ("Done." in allowed.out, allowed.err, allowed.code) == (True, "", 0)
    # The first rule that matches decides: the advised one helps only before the others.
    rules = ("--policy", "bash=allow", "--policy", "bash:echo *=ask")
    first = newcomer.run(flag, "go", "--provider", "lab", "--script", str(script), *rules)
    assert ("Done." in first.out, first.err, first.code) == (True, "", 0)
    denied = newcomer.run(flag, "go", "--provider", "lab", "--script", str(script), "--policy", "bash=deny")
    assert ("Done." in denied.out, denied.err, denied.code) == (True, "", 0)


MISSING = "--lock: bash cannot run: bwrap is not on the PATH. Install bubblewrap, or start without --lock\n"
NOT_RUN = (
    "zot: bash was not run: --lock needs a sandbox, and bwrap is not on the PATH. "
    "Install bubblewrap, or run without --lock\n"
)


@pytest.fixture
def unconfined(newcomer: Shell) -> Shell:
    """A shell without bubblewrap."""
    programs = newcomer.user / "programs"
    programs.mkdir()
    newcomer.env["PATH"] = str(programs)
    return newcomer


@pytest.mark.parametrize("flag", ["-p", "--json"])
def test_without_bubblewrap_a_locked_command_is_reported_in_text_and_exit_code(flag: str, unconfined: Shell) -> None:
    said = unconfined.run(flag, "!bash echo hi", "--provider", "lab", "--lock")
    assert ("finished." in said.out, said.err, said.code) == (True, MISSING + NOT_RUN, 1)
    calm = unconfined.run(flag, "!echo hi", "--provider", "lab", "--lock")
    assert ("hi" in calm.out, calm.err, calm.code) == (True, MISSING, 0)
    without = unconfined.run(flag, "!echo hi", "--provider", "lab", "--lock", "--tools", "read")
    assert (without.err, without.code) == ("", 0)


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("rpc", b'{"type":"prompt","message":"!echo hi"}\n'),
        ("host", b'{"request_id":"1","session_id":"s","prompt":"!echo hi"}\n'),
        ("host --single-request false", b'{"request_id":"1","session_id":"s","prompt":"!echo hi"}\n'
         b'{"request_id":"2","session_id":"t","prompt":"!echo hi"}\n'),
    ],
)  # fmt: skip
def test_without_bubblewrap_every_agent_warns_once_at_its_start(line: str, typed: bytes, unconfined: Shell) -> None:
    said = unconfined.run(*line.split(), "--provider", "lab", "--lock", typed=typed)
    assert (said.err + said.out).count(MISSING.strip()) == 1, said


async def test_without_bubblewrap_an_embedded_agent_logs_it(
    unconfined: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Config(provider="lab", lock=True, cwd=str(unconfined.cwd), env=unconfined.env)
    async with SharedResources() as resources:
        for _ in range(2):
            session = await open_session(OpenRequest(config=settings), resources)
            await session.close()
    assert [record.getMessage() for record in caplog.records] == [MISSING.strip()]


def test_without_bubblewrap_a_daemon_warns_at_its_start(unconfined: Shell, fork_server: ForkServer) -> None:
    daemon = fork_server.fork(["daemon", "--provider", "lab", "--lock"], unconfined.cwd, unconfined.env)
    try:
        log = unconfined.user / ".zeroclaw" / "data" / "logs" / "daemon.log"
        assert eventually(lambda: log.exists() and MISSING.strip() in log.read_text())
    finally:
        daemon.send_signal(signal.SIGTERM)
        _, err = daemon.communicate()
    assert err.decode().count(MISSING.strip()) == 1
