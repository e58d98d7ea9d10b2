"""`zot host` as a bridge starts it: always one object, in time, with the right exit code."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from extensions.stage import Extension
from harness import PATIENCE_S, environment, eventually, living
from hosts import NOTHING, Hosts, Json, checked, failure, request, told
from timing import Stopwatch, longer, slowness
from zot.encoding import encode
from zot.events import UserMessage


def wait_for_tool(hosts: Hosts) -> None:
    """Wait until the tool that writes `begun` has begun."""
    assert eventually((hosts.directory / "begun").exists)


# What a bridge sends, and how.

SPELLINGS = [
    [],
    ["--single-request", "true", "--bridge-compat"],
    ["--single-request=true", "--bridge-compat=false"],
    ["--protocol", "v1", "--bridge-compat", "--single-request"],
]


@pytest.mark.parametrize("flags", SPELLINGS, ids=" ".join)
def test_one_request_is_answered_with_one_object(hosts: Hosts, flags: list[str]) -> None:
    assert hosts.say("!echo Hello", *flags) == (
        {
            "ok": True, "request_id": "r", "session_id": "s", "text": "Hello", "error_code": None,
            "error_message": None, "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
        }, 0, "",
    )  # fmt: skip


@pytest.mark.parametrize("flag", ["--with-skills", "--no-yolo", "--list-models", "hello"])
def test_flags_of_the_original_are_named_and_have_no_effect(hosts: Hosts, flag: str) -> None:
    got = hosts.say("!echo Hello", flag)
    assert (got.answer["text"], got.code) == ("Hello", 0)
    assert got.errors.startswith(f"zot: {flag if flag.startswith('-') else repr(flag)} has no effect: ")


def test_a_bridge_may_pass_all_arguments_as_one(hosts: Hosts) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zot", "host --protocol v1 --bridge-compat --single-request --provider lab"],
        cwd=hosts.directory, env=environment({"ZOT_HOME": str(hosts.home)}), capture_output=True, timeout=PATIENCE_S,
        input=json.dumps(request("!echo Hello")).encode(), check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["text"] == "Hello"


def test_the_line_may_lack_its_end_and_follow_blank_ones_and_precede_others(hosts: Hosts) -> None:
    wanted = json.dumps(request("!echo Hello")).encode()
    for given in (wanted, b"\r\n \n" + wanted + b"\r\n", wanted + b'\n{"request_id":"another"}\n'):
        assert hosts.ask(given).answer["text"] == "Hello"


def test_it_does_not_wait_for_the_end_of_the_input(hosts: Hosts) -> None:
    process = hosts.fork()
    process.stdin.write(json.dumps(request("!echo Hello")).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.read())["text"] == "Hello"
    assert process.wait(PATIENCE_S) == 0
    process.communicate()


def test_a_session_is_kept_by_its_id_whatever_that_is(hosts: Hosts) -> None:
    strange = "../../etc/\x00:qq:private:Ω"
    hosts.say("!echo one", session_id=strange)
    answer = hosts.say("!echo two", session_id=strange).answer
    assert (answer["text"], answer["session_id"]) == ("two", strange)
    assert hosts.transcript() == []
    hosts.say("!echo three", channel_id="qq")
    assert hosts.transcript() == [("user", "!echo three"), ("assistant", "three")]


def test_the_channel_is_kept_with_its_messages(hosts: Hosts) -> None:
    for number, channel in enumerate(("group 7", "group 8", None)):
        assert hosts.say(f"!echo {number}", channel_id=channel).code == 0
    export = [sys.executable, "-m", "zot", "sessions", "export", "host:s"]
    lines = subprocess.check_output(export, env=environment({"ZOT_HOME": str(hosts.home)}), timeout=PATIENCE_S)
    changes = [line["change"] for line in map(json.loads, lines.split(b"\n")[:-1]) if line["type"] == "change"]
    messages = [change["message"] for change in changes if change["type"] == "said"]
    said = [message.get("origin") for message in messages if message["role"] == "user"]
    assert said == ["group 7", "group 8", None]


def test_notices_of_extensions_go_to_standard_error(hosts: Hosts, tmp_path: Path) -> None:
    script = 'hello(); say("notify", level="warn", message="mind this"); say("ready")\n'
    directory = Extension(
        tmp_path, "a", script + 'next(one for one in frames() if one["type"] == "shutdown")'
    ).directory
    answer, code, errors = hosts.say("!echo Hello", "--ext", str(directory))
    assert (answer["text"], code, errors) == ("Hello", 0, "[a] warn: mind this\n")


GUARD = """
hello("events")
say("subscribe", intercept=["assistant_message"])
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        answer(frame, {decision})
    elif frame["type"] == "shutdown":
        break
"""
#: What a guard decides about a message, and what is answered, and shown of it later.
DECISIONS = {
    "rewritten": ('replace_text="[redacted]"', ("[redacted]", None, 0), [("assistant", "[redacted]")]),
    "refused": ('block=True, reason="not for you"', ("", "not for you", 0), []),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_text_blocked_by_a_guard_is_neither_answered_nor_recorded_as_shown(
    hosts: Hosts, tmp_path: Path, name: str
) -> None:
    decision, expected, shown = DECISIONS[name]
    directory = Extension(tmp_path, "guard", GUARD.replace("{decision}", decision)).directory
    answer, code, errors = hosts.say("!script say the se ;; say cret", "--ext", str(directory))
    assert (answer["text"], answer["error_message"], code) == expected
    assert "cret" not in errors
    assert hosts.transcript()[1:] == shown
    recorded = [encode(event).decode() for event in hosts.events() if not isinstance(event, UserMessage)]
    assert [line for line in recorded if "cret" in line] == []


def test_a_session_of_the_user_cannot_be_named(hosts: Hosts) -> None:
    assert hosts.transcript("mine") == []
    hosts.say("!echo hello", session_id="mine")
    assert hosts.transcript("mine") == []
    assert hosts.transcript("host:mine") == [("user", "!echo hello"), ("assistant", "hello")]


def test_the_agent_is_chosen_by_name_and_an_unknown_one_is_the_default(hosts: Hosts) -> None:
    hosts.home.mkdir()
    (hosts.directory / "one.lab").write_text('say "one: $model"')
    config = '[agents.default]\nprovider = "lab"\nmax_steps = 1\n[agents.busy]\nprovider = "lab"\nmax_steps = 2\n'
    (hosts.home / "config.toml").write_text(config)
    flags = ("--config-dir", str(hosts.home))
    default = hosts.say("!loop true", *flags)
    assert failure(default.answer)[1] == "stopped after 1 steps, the limit set by max-steps"
    assert (default.code, default.errors.count("\n")) == (0, 1)  # what the policy denied
    assert "after 2 steps" in failure(hosts.say("!loop true", *flags, agent="busy").answer)[1]
    unknown = hosts.say("!loop true", *flags, agent="nobody")
    assert "after 1 steps" in failure(unknown.answer)[1]
    assert "no agent 'nobody' in config.toml: the default agent answers\n" in unknown.errors


# Permissions.

ADVICE = "the operator of zot can allow more with --policy, such as --policy '*=allow', or in config.toml"


def test_strangers_may_only_read_unless_an_operator_allows_more(hosts: Hosts) -> None:
    (hosts.directory / "a.txt").write_text("hello")
    script = '!script call bash {"command":"touch made"} ;; call read {"path":"a.txt"} ;; --- ;; say done'
    kept = hosts.say(script)
    assert kept.answer["text"] == "done"
    assert not (hosts.directory / "made").exists()
    assert kept.errors == f"session 's', request 'r': bash was denied: touch made; {ADVICE}\n"
    results = [text for _, text in hosts.transcript()]
    assert results[-3:] == ["tool_result", "tool_result", "done"]
    allowed = hosts.say(script, "--policy", "bash:touch made=allow")
    assert (allowed.answer["text"], allowed.errors) == ("done", "")
    assert (hosts.directory / "made").exists()


def test_a_rule_allows_one_thing_only(hosts: Hosts) -> None:
    script = '!script call write {"path":"b.txt","content":"x"} ;; --- ;; say done'
    assert "write was denied" in hosts.say(script, "--policy", "bash=allow").errors
    assert hosts.say(script, "--policy", "*=allow").errors == ""
    assert (hosts.directory / "b.txt").read_text() == "x"


def test_a_denial_is_reported_once_in_a_line_without_keys_and_control_characters(hosts: Hosts) -> None:
    command = "curl -H secret-key \\u001b[2J\\n x"
    calls = f'call bash {{"command":"{command}"}} ;; ' * 2 + 'call write {"path":"b.txt","content":"x"}'
    got = hosts.ask(
        request(f"!script {calls} ;; --- ;; say done", session_id="a\nb"),
        "--policy", "bash=ask", env={"ANTHROPIC_API_KEY": "secret-key"},
    )  # fmt: skip
    assert got.errors == (
        f"session 'a b', request 'r': bash was denied: curl -H [key] \\x1b[2J x; {ADVICE}\n"
        f"session 'a b', request 'r': write was denied: b.txt (1 bytes); {ADVICE}\n"
    )


@pytest.mark.parametrize("policy", [[], ["--policy", "*=allow"], ["--policy", "read=allow", "--policy", "*=ask"]])
def test_strangers_cannot_read_keys_and_other_conversations(hosts: Hosts, policy: list[str]) -> None:
    (hosts.home / "skills" / "mine").mkdir(parents=True)
    (hosts.home / "skills" / "mine" / "notes.md").write_text("a note")
    (hosts.home / "auth.json").write_text('{"anthropic": {"key": "secret-key"}}')
    (hosts.home / "auth.json").chmod(0o600)
    (hosts.directory / "link").symlink_to(hosts.home / "auth.json")
    paths = ["home/auth.json", "link", "home/journal.db", "home/skills/mine/notes.md"]
    calls = " ;; ".join(f'call read {{"path":"{path}"}}' for path in paths)
    got = hosts.say(f"!script {calls} ;; --- ;; say done", *policy)
    denied = ["home/auth.json", "home/journal.db"]
    assert got.answer["text"] == "done"
    assert got.errors == "".join(
        f"session 's', request 'r': read was denied: {path}; no policy allows that\n" for path in denied
    )
    data = b"".join(path.read_bytes() for path in hosts.home.glob("journal.db*"))
    assert (b"secret-key" in data, b"a note" in data) == (False, True)


def test_strangers_cannot_change_zot_s_files(hosts: Hosts) -> None:
    (hosts.home / "skills").mkdir(parents=True)
    (hosts.home / "config.toml").write_text("")
    calls = (
        'call write {"path":"home/skills/new/SKILL.md","content":"x"} ;; '
        'call write {"path":"home/auth.json","content":"x"} ;; '
        'call edit {"path":"home/config.toml","edits":[{"oldText":"","newText":"x"}]}'
    )
    got = hosts.say(f"!script {calls} ;; --- ;; say done", "--policy", "*=allow")
    assert (got.answer["text"], got.errors.count("; no policy allows that\n")) == ("done", 3)
    assert not (hosts.home / "auth.json").exists()


# Errors have the same form.

WRONG: dict[str, tuple[bytes, list[str], int, str, str]] = {
    "nothing": (b"", [], 2, "INVALID_REQUEST", "there is no request: the input is empty"),
    "blank lines": (b"\n \r\n", [], 2, "INVALID_REQUEST", "there is no request: the input is empty"),
    "no JSON": (b"hello\n", [], 2, "INVALID_REQUEST", "not a request: .*; it must be one JSON object, on one line"),
    "more than one line": (
        b'{\n"request_id":1}\n', [], 2, "INVALID_REQUEST", "not a request: .*; it must be one JSON object, on one line",
    ),
    "a byte order mark": (b"\xef\xbb\xbf{}", [], 2, "INVALID_REQUEST", "not a request: it begins with a byte order.*"),
    "a number": (
        b'{"request_id":1}', [], 2, "INVALID_REQUEST", "not a request: request_id must be a string, not a whole number",
    ),
    "no time": (
        b'{"timeout_ms":0}', [], 2, "INVALID_REQUEST", "not a request: timeout_ms must be a number of at least 1",
    ),
    "too much": (b"x" * 300_000, ["--max-input-bytes", "100"], 2, "INVALID_REQUEST", "the request is longer than .*"),
    "too much, as other commands say it": (
        b"x" * 300_000, ["--max-line-bytes", "100"], 2, "INVALID_REQUEST", "the request is longer than 100 bytes",
    ),
    "another protocol": (b"", ["--protocol", "v2"], 2, "INVALID_REQUEST", ".*"),
    "a cancel": (
        b'{"type":"cancel","request_id":"r","target_request_id":"x"}', [], 2, "INVALID_REQUEST",
        "no request 'x' is running",
    ),
    "an unknown flag": (b"", ["--frobnicate"], 2, "INVALID_REQUEST", "there is no request.*"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "flags", "code", "error", "message"), WRONG.values(), ids=WRONG)
def test_bad_input_is_an_answer(
    hosts: Hosts, given: bytes, flags: list[str], code: int, error: str, message: str
) -> None:
    got = hosts.ask(given, *flags)
    assert (got.code, got.answer["error_code"], got.answer["usage"], got.errors) == (code, error, NOTHING, "")
    assert re.fullmatch(message, got.answer["error_message"])


def test_the_exit_code_can_always_be_zero(hosts: Hosts) -> None:
    got = hosts.ask(b"", "--exit-zero")
    assert (got.code, got.answer["error_code"]) == (0, "INVALID_REQUEST")
    assert hosts.say("hi", "--exit-zero", "--frobnicate").code == 0


SETUPS: dict[str, tuple[list[str], str, str]] = {
    "no key": (["--provider", "anthropic"], "PROVIDER_AUTH", "no key for anthropic: set ANTHROPIC_API_KEY.*"),
    "an unknown model": (["--provider", "lab", "--model", "x"], "INTERNAL", "unknown model 'x'.*"),
    "an unknown flag": (["--frobnicate"], "INTERNAL", "unknown flag --frobnicate.*"),
    "a session": (["--session", "x"], "INTERNAL", "unknown flag --session.*"),
    "events of one request": (["--events"], "INTERNAL", "--events needs --single-request false.*"),
    "a wrong spelling": (["--single-request=maybe"], "INTERNAL", "--single-request maybe: must be one of true, false"),
    "a wrong word": (["--single-request", "no"], "INTERNAL", "--single-request no: must be one of true, false"),
    "a negative time": (["--idempotency-ttl", "-1"], "INTERNAL", "--idempotency-ttl -1: must be at least 0 and.*"),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "error", "message"), SETUPS.values(), ids=SETUPS)
def test_a_bad_set_up_is_an_answer_to_the_request(hosts: Hosts, flags: list[str], error: str, message: str) -> None:
    got = hosts.say("hi", *flags)
    assert (got.code, got.answer["error_code"], got.answer["request_id"], got.errors) == (3, error, "r", "")
    assert re.fullmatch(message, got.answer["error_message"])


@pytest.mark.parametrize("flags", [[], ["--single-request=false"]], ids=["one", "many"])
def test_an_unknown_protocol_is_reported_to_the_caller(hosts: Hosts, flags: list[str]) -> None:
    got = hosts.say("hi", "--protocol=v2", *flags)
    assert (got.code, failure(got.answer)) == (2, ("INVALID_REQUEST", "--protocol must be v1"))
    assert got.answer["request_id"] == "r"


def test_a_request_that_never_arrives_ends_at_the_deadline(hosts: Hosts) -> None:
    process = hosts.start("--stdin-timeout-ms", "50")
    assert process.stdout is not None
    answer = json.loads(process.stdout.read())
    assert (process.wait(PATIENCE_S), failure(answer)) == (2, ("INVALID_REQUEST", "no request within 0.05 s"))
    process.communicate()
    process = hosts.start("--stdin-timeout-ms", "300")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"request_id":')
    process.stdin.flush()
    message = "no request within 0.3 s, only a part of one: a line feed ends it"
    assert failure(json.loads(process.stdout.read())) == ("INVALID_REQUEST", message)
    process.communicate()


def test_a_ping_and_a_close_need_no_model(hosts: Hosts) -> None:
    ping = hosts.ask({"type": "ping", "request_id": "p"}, "--provider", "anthropic")
    assert (ping.answer["text"], ping.code) == ("pong", 0)
    close = hosts.ask({"type": "session_close", "request_id": "p", "session_id": "s"}, "--provider", "anthropic")
    assert (close.answer["text"], close.code) == ("closed", 0)


# The model service.

FAULTS: dict[str, str | None] = {
    "!status 400": "INTERNAL",
    "!status 401": "PROVIDER_AUTH",
    "!status 403": "PROVIDER_AUTH",
    "!status 404": "INTERNAL",
    "!script status 429 retry-after=0 ;; repeat": "PROVIDER_RATE_LIMIT",
    "!script status 500 retry-after=0 ;; repeat": "PROVIDER_DOWN",
    "!script status 529 retry-after=0 ;; repeat": "PROVIDER_DOWN",
    "!stall-mid": "TIMEOUT",
    "!pings": "TIMEOUT",
    "!slow 1000 0.1": "TIMEOUT",
    "!cut": "PROVIDER_DOWN",
    "!cut-utf8": "PROVIDER_DOWN",
    "!cut-json": "PROVIDER_DOWN",
    "!no-end": "PROVIDER_DOWN",
    "!error": "PROVIDER_DOWN",
    "!length": "INTERNAL",
    "!refusal": "INTERNAL",
    '!script say " "': "INTERNAL",
    "!script usage input=5": "INTERNAL",
    "!refuse": "PROVIDER_DOWN",
    "!status 500": "PROVIDER_DOWN",
    "!status 503": "PROVIDER_DOWN",
    "!stall": "TIMEOUT",
    "!loop true": "INTERNAL",
    # Runs that do not fail in the end.
    "!retry 1": None,
    "!limit 0.01": None,
    "!bad-args": None,
    "!usage-twice": None,
    "!tools": None,
    "!bytes hi": None,
}


def test_each_model_failure_has_its_code(hosts: Hosts) -> None:
    """All of it at a time, each in a session of its own: one process is enough for that."""
    process = hosts.fork("--single-request", "false", "--max-concurrency", "50")
    times = {prompt: 2000 if code == "TIMEOUT" else 14_000 for prompt, code in FAULTS.items()}
    asked = [request(prompt, request_id=prompt, session_id=prompt, timeout_ms=ms) for prompt, ms in times.items()]
    out, _ = process.communicate(b"".join(json.dumps(one).encode() + b"\n" for one in asked), timeout=PATIENCE_S)
    answers = [checked(json.loads(line)) for line in out.decode().rstrip("\n").split("\n")]
    assert {answer["request_id"]: answer["error_code"] for answer in answers} == FAULTS
    assert (process.returncode, len(answers)) == (0, len(FAULTS))


def test_a_retry_delay_beyond_the_deadline_is_reported_at_once(hosts: Hosts) -> None:
    watch = Stopwatch()
    got = hosts.say("!limit 30", timeout_ms=20_000)
    assert (failure(got.answer)[0], got.code) == ("PROVIDER_RATE_LIMIT", 0)
    assert watch.read_s() < 5


def small_window(hosts: Hosts) -> None:
    """Let the model hold so little that the longest request is too long for it."""
    hosts.home.mkdir()
    own = {"providers": {"lab": {"models": [{"id": "lab-1", "contextWindow": 2000, "maxTokens": 500}]}}}
    (hosts.home / "models.json").write_text(json.dumps(own))


def test_a_prompt_too_large_for_the_window_is_refused_and_not_kept(hosts: Hosts) -> None:
    small_window(hosts)
    got = hosts.say("x " * 300_000)
    assert got.answer["error_code"] is None, "a token may well stand for so many bytes"
    got = hosts.say("x" * 600_000, session_id="other")
    message = "the prompt is too long: it takes at least 2343 tokens, and the model's window holds 2000"
    assert (got.code, got.answer["error_code"], got.answer["error_message"]) == (2, "INVALID_REQUEST", message)
    assert hosts.transcript("other") == []


@pytest.mark.parametrize("prompt", ["x " * 390_000, "=" * 900_000, " " * 900_000 + "x"])
def test_a_prompt_that_only_seems_too_long_is_sent(hosts: Hosts, prompt: str) -> None:
    got = hosts.say(prompt)
    assert (got.code, got.answer["error_code"]) == (0, None)
    assert hosts.transcript()[0] == ("user", prompt)


def test_a_prompt_that_the_service_finds_too_long_is_withdrawn(hosts: Hosts) -> None:
    hosts.say("!echo hi")
    got = hosts.say("!status 413", key="k")
    assert (failure(got.answer)[0], got.code) == ("INTERNAL", 0)
    assert hosts.transcript() == [("user", "!echo hi"), ("assistant", "hi")]
    assert failure(hosts.say("!status 413", key="k").answer) == failure(got.answer)


def test_a_model_failure_is_not_an_internal_error(hosts: Hosts) -> None:
    got = hosts.say("!status 401")
    assert (failure(got.answer)[0], got.code) == ("PROVIDER_AUTH", 0)


def test_tokens_are_estimated_where_none_were_reported(hosts: Hosts) -> None:
    script = '!script say "Hello there" ;; usage input=0 output=0'
    usage = hosts.say(script, "--api", "chat").answer["usage"]
    assert usage == {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14}


# The deadline, and other ends.


def test_a_deadline_ends_a_tool_that_does_not_end(hosts: Hosts) -> None:
    mark = f"ZOT_HOST_MARK_{os.getpid()}_{time.monotonic_ns()}"
    command = f"touch begun; export {mark}=1; setsid sleep 600 & trap '' TERM; while :; do sleep 600; done"
    for timeout_s in longer(2.5):
        watch, before = Stopwatch(), time.monotonic()
        got = hosts.say(f"!bash {command}", "--policy", "*=allow", timeout_ms=timeout_s * 1000)
        assert watch.read_s() < timeout_s + 2.5
        assert time.monotonic() - before > timeout_s - 0.1
        if (hosts.directory / "begun").exists():
            break
    assert (failure(got.answer), got.code) == (("TIMEOUT", "request exceeded timeout_ms"), 0)
    assert got.answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    assert eventually(lambda: not living(mark), within_s=3.0 * slowness())


def test_a_deadline_needs_no_event_loop(hosts: Hosts, tmp_path: Path) -> None:
    """Anything may hang in the main thread: here, reading a file."""
    os.mkfifo(tmp_path / "pipe.lab")
    got = hosts.say("hi", "--script", str(tmp_path / "pipe.lab"), timeout_ms=800)
    assert (failure(got.answer)[0], got.code) == ("TIMEOUT", 0)


def test_an_expired_deadline_is_reported(hosts: Hosts) -> None:
    assert failure(hosts.say("!stall", timeout_ms=1).answer)[0] == "TIMEOUT"


def test_a_session_run_by_another_process_is_awaited_until_the_deadline(hosts: Hosts) -> None:
    first = hosts.fork("--policy", "*=allow")
    first.stdin.write(json.dumps(request("!bash touch begun; sleep 600", timeout_ms=60_000)).encode() + b"\n")
    first.stdin.flush()
    wait_for_tool(hosts)
    assert failure(hosts.say("!echo hi", timeout_ms=4000).answer) == (
        "TIMEOUT",
        "request exceeded timeout_ms: it was still waiting for its session, or for requests before it",
    )
    waiting = hosts.fork()
    waiting.stdin.write(json.dumps(request("!echo hi", timeout_ms=20_000)).encode() + b"\n")
    waiting.stdin.flush()
    first.send_signal(signal.SIGTERM)
    assert json.loads(first.communicate(timeout=PATIENCE_S)[0])["error_code"] == "INTERNAL"
    assert json.loads(waiting.communicate(timeout=PATIENCE_S)[0])["text"] == "hi"


def test_a_signal_before_the_request_is_an_answer(hosts: Hosts) -> None:
    process = hosts.fork()
    assert eventually(lambda: _catches(process.pid, signal.SIGHUP))  # the last that it learns to catch
    process.send_signal(signal.SIGINT)
    got = told(process, b"")
    message = "zot was ended by SIGINT before there was a request"
    assert (failure(got.answer), got.code) == (("INTERNAL", message), 2)


@pytest.mark.parametrize("module", ["zot.serve", "zot.commands.host"])
def test_a_signal_during_start_up_is_an_answer(hosts: Hosts, module: str) -> None:
    """The signal comes when the first module after the command line's, or the command itself, is looked for."""
    probe = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from zot.cli import main\nsys.argv = ['zot', 'host']\nmain()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", probe], env=environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    got = told(process, b"")
    message = "zot was ended by SIGTERM before there was a request"
    assert (failure(got.answer), got.code) == (("INTERNAL", message), 2)


def test_a_signal_blocked_by_the_bridge_at_the_start_is_an_answer(hosts: Hosts) -> None:
    """Before its first line runs, no program can answer; a mask is inherited, so a bridge can see to it."""
    process = hosts.start(preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))
    process.send_signal(signal.SIGTERM)
    got = told(process, b"")
    message = "zot was ended by SIGTERM before there was a request"
    assert (failure(got.answer), got.code) == (("INTERNAL", message), 2)


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(re.findall(r"^SigCgt:\t(\w+)$", status, re.MULTILINE)[0], 16)
    return bool(mask >> (number - 1) & 1)


def test_a_signal_during_a_run_is_an_answer_and_leaves_no_process(hosts: Hosts) -> None:
    mark = f"ZOT_HOST_MARK_{time.monotonic_ns()}"
    process = hosts.start("--policy", "*=allow", env={mark: "1"})
    assert process.stdin is not None
    process.stdin.write(json.dumps(request("!bash touch begun; sleep 600", timeout_ms=60_000)).encode() + b"\n")
    process.stdin.flush()
    wait_for_tool(hosts)
    process.send_signal(signal.SIGTERM)
    got = told(process, b"")
    assert (failure(got.answer), got.code) == (("INTERNAL", "zot was ended by SIGTERM"), 0)
    assert eventually(lambda: not living(mark), within_s=3.0 * slowness())


def test_it_stops_when_the_output_is_closed(hosts: Hosts) -> None:
    process = hosts.fork("--policy", "*=allow")
    process.stdin.write(json.dumps(request("!bash touch begun; sleep 600", timeout_ms=60_000)).encode() + b"\n")
    process.stdin.flush()
    wait_for_tool(hosts)
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 4
    process.stdin.close()
    process.stderr.close()


def test_it_stops_when_the_caller_is_gone(hosts: Hosts) -> None:
    (hosts.directory / "request").write_text(json.dumps(request("!bash touch begun; sleep 600", timeout_ms=60_000)))
    script = '"$@" <request >answer & until test -e begun; do sleep 0.01; done'
    shell = hosts.start("--policy", "*=allow", prefix=("/bin/sh", "-c", script, "sh"))
    shell.communicate(timeout=PATIENCE_S)
    answer = hosts.directory / "answer"
    assert eventually(lambda: answer.read_text() != "")
    assert failure(json.loads(answer.read_text())) == ("INTERNAL", "the process that asked has gone")


@pytest.mark.parametrize("target", ["/dev/full", "closed"])
def test_an_unwritable_answer_is_an_internal_error(hosts: Hosts, target: str) -> None:
    given = json.dumps(request("!echo hi")).encode()
    if target == "closed":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(target, os.O_WRONLY)
    process = hosts.start("--exit-zero", stdout=writing)
    os.close(writing)
    _, errors = process.communicate(given, timeout=PATIENCE_S)
    assert process.returncode == 4
    expected = "zot: the answer could not be written: No space left on device\n" if target == "/dev/full" else ""
    assert errors.decode() == expected


def test_an_answer_without_an_output_is_an_internal_error(hosts: Hosts) -> None:
    for flags in ([], ["--single-request", "false"]):
        process = hosts.start("--exit-zero", *flags, prefix=("/bin/sh", "-c", 'exec "$@" >&-', "sh"))
        assert process.communicate(json.dumps(request("!echo hi")).encode(), timeout=PATIENCE_S) == (b"", b"")
        assert process.returncode == 4


def test_an_unwritable_report_is_an_internal_error(hosts: Hosts) -> None:
    with open("/dev/full", "wb") as full:
        process = hosts.start("--self-test", stdout=full)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (4, b"zot: the answer could not be written: No space left on device\n")


def jammed() -> tuple[int, int]:
    """Return the ends of a full pipe that no process reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(size))
    os.set_blocking(writing, True)
    return reading, writing


@pytest.mark.parametrize("given", [request("!bash sleep 600", timeout_ms=700), request("!echo hi", timeout_ms=700)])
def test_a_stalled_reader_cannot_delay_the_end(hosts: Hosts, given: Json) -> None:
    reading, writing = jammed()
    mark = f"ZOT_HOST_MARK_{time.monotonic_ns()}"
    process = hosts.start("--policy", "*=allow", "--exit-zero", stdout=writing, stderr=writing, env={mark: "1"})
    process.communicate(json.dumps(given).encode(), timeout=PATIENCE_S)
    assert process.returncode == 4
    assert eventually(lambda: not living(mark), within_s=3.0 * slowness())
    os.close(reading)
    os.close(writing)


def test_an_unread_log_does_not_delay_the_answer(hosts: Hosts) -> None:
    """zot logs calls that the policy denies."""
    reading, writing = jammed()
    process = hosts.start(stderr=writing)
    out, _ = process.communicate(json.dumps(request("!bash true")).encode(), timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["ok"]) == (0, True)
    os.close(reading)
    os.close(writing)


def test_no_standard_streams_at_all_are_bad_input(hosts: Hosts) -> None:
    process = hosts.start(prefix=("/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"))
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2


@pytest.mark.parametrize("limit", [5, 6, 7])
def test_too_few_descriptors_are_an_internal_error(hosts: Hosts, limit: int) -> None:
    process = hosts.start(prefix=("/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"))
    got = told(process, request("!echo hi"))
    remedy = "check its disk, its permissions and the limits of the process, then try again"
    code, message = failure(got.answer)
    assert (got.code, code, message.endswith(f"Too many open files; {remedy}")) == (4, "INTERNAL", True)
    assert got.errors == f"zot: {message}\n"


def test_accidental_prints_are_not_part_of_the_answer(hosts: Hosts) -> None:
    got = hosts.say("!bash echo noise >&2; echo noise", "--policy", "*=allow")
    assert (got.answer["ok"], got.errors) == (True, "")


# Where nothing can be kept.


def test_no_home_is_a_bad_set_up(hosts: Hosts) -> None:
    got = hosts.ask(request("!echo hi"), env={"ZOT_HOME": ""})
    assert (got.code, failure(got.answer)[0]) == (3, "INTERNAL")
    assert "no directory to record sessions in" in failure(got.answer)[1]


def test_an_unwritable_home_is_an_internal_error(hosts: Hosts) -> None:
    got = hosts.ask(request("!echo hi"), env={"ZOT_HOME": "/proc/self/home"})
    assert (got.code, failure(got.answer)[0]) == (4, "INTERNAL")


def test_a_full_disk_is_an_internal_error(hosts: Hosts) -> None:
    assert hosts.say("!echo hi").answer["text"] == "hi"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    got = hosts.ask(request("!flood 60000"), preexec_fn=limit)
    assert (got.code, failure(got.answer)[0]) == (4, "INTERNAL")
    assert hosts.say("!echo again").answer["text"] == "again"


# Little is loaded.


def test_bad_input_is_answered_before_the_heavy_parts_are_loaded() -> None:
    probe = (
        "import sys\nat_start = set(sys.modules)\nimport os\n"
        "def leave(code):\n"
        "    real_write(2, ' '.join(sorted(set(sys.modules) - at_start)).encode())\n"
        "    real_exit(code)\n"
        "real_write, real_exit, os._exit = os.write, os._exit, leave\n"
        "from zot.cli import run\nrun(['host'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], env=environment({}), input=b"{}", capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    loaded = set(done.stderr.decode().split())
    assert loaded & {"asyncio", "argparse", "logging", "ssl", "socket", "subprocess", "json", "pathlib", "threading",
                     "sqlite3", "httptools", "tomllib"} == set()  # fmt: skip
    needed = {
        "zot.cli", "zot.commands", "zot.commands.host", "zot.config", "zot.config.config", "zot.config.flags",
        "zot.config.vendors", "zot.encoding", "zot.errors", "zot.providers", "zot.serve", "zot.serve.host",
        "zot.serve.host.single", "zot.serve.host.watchdog", "zot.serve.stdio", "zot.text", "zot.wire", "zot.wire.host",
        "zot.wire.lines",
    }  # fmt: skip
    assert {name for name in loaded if name.startswith("zot.")} - needed == set()


# The self-test.


def test_the_self_test_reports_whether_a_request_could_be_answered(hosts: Hosts) -> None:
    process = hosts.fork("--self-test")
    report = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (process.returncode, report["ok"], report["status"]) == (0, True, "PASS")
    assert [(check["name"], check["ok"]) for check in report["checks"]] == [
        ("configuration", True), ("provider", True), ("journal", True),
    ]  # fmt: skip


def test_the_self_test_reports_missing_parts(hosts: Hosts) -> None:
    process = hosts.fork("--self-test", "--provider", "anthropic")
    report = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (process.returncode, report["status"], report["missing_required_env"]) == (3, "FAIL", ["ANTHROPIC_API_KEY"])
    process = hosts.fork("--self-test", "--frobnicate")
    report = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    detail = "unknown flag --frobnicate; --help-all lists every flag"
    assert (process.returncode, report["checks"]) == (3, [{"name": "configuration", "ok": False, "detail": detail}])


def test_the_self_test_reports_that_no_key_is_used_at_another_address(hosts: Hosts) -> None:
    hosts.home.mkdir()
    (hosts.home / "auth.json").touch(mode=0o600)
    (hosts.home / "auth.json").write_text('{"anthropic":{"type":"api_key","key":"k"}}')
    flags = ("--self-test", "--provider", "anthropic", "--base-url")
    for address, remark in {
        "http://127.0.0.1:9/v1": (
            "; no key is used: 127.0.0.1:9 is not anthropic's own address; the stored one is for another address"
        ),
        "https://API.anthropic.com.:443/": "",
    }.items():
        process = hosts.fork(*flags, address)
        report = json.loads(process.communicate(timeout=PATIENCE_S)[0])
        [detail] = [check["detail"] for check in report["checks"] if check["name"] == "provider"]
        assert (process.returncode, detail) == (0, f"anthropic, {report['model']}{remark}")


BROKEN: dict[str, tuple[str, list[str], str, str]] = {
    "another agent's provider": (
        '[agents.default]\nprovider = "lab"\n[agents.x]\nprovider = "nope"', ["--config-dir", "home"], "provider",
        "agent 'x': unknown provider 'nope'.*",
    ),
    "a rule": ('[agents.default]\npolicy = ["read"]', [], "configuration", "'read' is not a rule.*"),
    "a directory": ("", ["--cwd", "/nowhere"], "configuration", "/nowhere is not a directory; .*"),
    "the file": ("[", [], "configuration", ".*config.toml: .*"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "flags", "where", "detail"), BROKEN.values(), ids=BROKEN)
def test_the_self_test_reports_where_the_problem_is(
    hosts: Hosts, config: str, flags: list[str], where: str, detail: str
) -> None:
    hosts.home.mkdir()
    (hosts.home / "config.toml").write_text(config)
    process = hosts.start("--self-test", *flags)
    report = json.loads(process.communicate(timeout=PATIENCE_S)[0])
    assert (process.returncode, report["status"], report["provider"]) == (3, "FAIL", "lab")
    [wrong] = [check for check in report["checks"] if not check["ok"]]
    assert wrong["name"] == where
    assert re.fullmatch(detail, wrong["detail"])
