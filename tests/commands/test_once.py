"""`zot -p` and `zot --json`: one prompt, and the end, in a shell and in programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forked
from grammar import Grammar
from harness import PATIENCE_S, at_rest, environment, eventually

ANSWER = ("--provider", "lab", "--frozen-time", "2026-01-31T12:00:00Z")


def start(cwd: Path, *argv: str, **popen: Any) -> subprocess.Popen[bytes]:
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
    env = environment({"ZOT_HOME": str(cwd / "kept")})
    return subprocess.Popen([sys.executable, "-m", "zot", *argv, *ANSWER], cwd=cwd, env=env, **given)


def ask(cwd: Path, *argv: str, typed: bytes | None = b"") -> tuple[str, str, int]:
    """Run to the end; return both outputs and the exit code. None is the null device."""
    if typed is None:
        process = start(cwd, *argv)
        out, err = process.communicate(timeout=PATIENCE_S)
        return out.decode(), err.decode(), process.returncode
    done = forked.run([*argv, *ANSWER], cwd=cwd, env=environment({"ZOT_HOME": str(cwd / "kept")}), given=typed)
    return done.stdout.decode(), done.stderr.decode(), done.returncode


def events(out: str, *, judged: bool = False) -> list[dict[str, Any]]:
    """Read the lines, see that their order is that of a prompt, and return them."""
    frames = [json.loads(line) for line in out.split("\n")[:-1]]
    grammar = Grammar(answers_are_judged=judged)
    for frame in ({"type": "response", "command": "prompt", "success": True}, *frames):
        grammar.take(frame)
    grammar.finish()
    return frames


@pytest.mark.parametrize("argv", [("-p", "!echo Yes"), ("!echo Yes", "--print"), ("-p", "!echo", "Yes")])
def test_only_the_answer_is_printed(tmp_path: Path, argv: tuple[str, ...]) -> None:
    assert ask(tmp_path, *argv) == ("Yes\n", "", 0)


@pytest.mark.parametrize("flag", ["--with-skills", "--no-yolo", "--list-models"])
def test_flags_of_the_original_are_taken_and_named(tmp_path: Path, flag: str) -> None:
    out, err, code = ask(tmp_path, "-p", flag, "!echo Hello")
    assert (out, code) == ("Hello\n", 0)
    assert err.startswith(f"zot: {flag} has no effect: ")


def test_of_several_messages_the_last_is_the_answer(tmp_path: Path) -> None:
    script = tmp_path / "s.lab"
    script.write_text('say "I look."\ncall bash {"command": "echo x"}\n---\nsay "Seen."')
    assert ask(tmp_path, "-p", "go", "--script", str(script)) == ("Seen.\n", "", 0)


@pytest.mark.parametrize(
    ("argv", "typed", "answer"),
    [
        (("-p", "!echo this"), b"and that\n", "this\n\nand that\n"),
        (("-p",), b"!echo only that\n", "only that\n"),
        (("-p", "-"), b"!echo only that\n", "only that\n"),
        (("-p", "!echo this"), b"", "this\n"),
        (("-p", "!echo this"), b"caf\xe9 \xe2\x80\xa8", "this\n\ncaf\ufffd \u2028\n"),
    ],
)
def test_piped_input_follows_the_prompt(tmp_path: Path, argv: tuple[str, ...], typed: bytes, answer: str) -> None:
    assert ask(tmp_path, *argv, typed=typed) == (answer, "", 0)


def test_a_file_can_be_the_input(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("!echo from a file")
    with (tmp_path / "in.txt").open("rb") as file:
        process = start(tmp_path, "-p", stdin=file)
        assert process.communicate(timeout=PATIENCE_S) == (b"from a file\n", b"")


def test_an_open_but_silent_input_does_not_block(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        process = start(tmp_path, "-p", "!echo Yes", "--stdin-wait", "0.2", stdin=read)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        os.close(read)
        os.close(write)
    assert (out, process.returncode) == (b"Yes\n", 0)
    assert err == b"zot: standard input is open but silent for 0.2 s; continuing without it\n"


@pytest.mark.parametrize("typed", [None, b"", b" \n"])
def test_without_a_prompt_the_command_refuses_to_run(tmp_path: Path, typed: bytes | None) -> None:
    told = "zot: no prompt; give it as words or on standard input: zot -p PROMPT\n"
    assert ask(tmp_path, "-p", typed=typed) == ("", told, 2)


def test_a_missing_prompt_is_reported_before_a_missing_key(tmp_path: Path) -> None:
    env = environment({"ZOT_HOME": str(tmp_path / "kept")})
    done = forked.run(["-p", "--provider", "anthropic"], cwd=tmp_path, env=env, given=b"")
    assert (done.returncode, done.stderr) == (
        2,
        b"zot: no prompt; give it as words or on standard input: zot -p PROMPT\n",
    )


def test_input_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    out, err, code = ask(tmp_path, "-p", "x", typed=b"y" * (10 * 1024 * 1024 + 1))
    assert (out, err, code) == ("", "zot: standard input has more than 10 MiB\n", 1)


def test_events_are_lines_and_done_is_the_last(tmp_path: Path) -> None:
    out, err, code = ask(tmp_path, "--json", "!say 2 Hello")
    assert (err, code) == ("", 0)
    assert [frame["type"] for frame in events(out)] == [
        "user_message", "turn_start", "assistant_start", "text_delta", "text_delta", "usage", "assistant_message",
        "turn_end", "done",
    ]  # fmt: skip


def test_features_are_switched_on_by_name(tmp_path: Path) -> None:
    out, _, code = ask(tmp_path, "--json", "!think", "--features", "seq,thinking")
    frames = events(out)
    assert code == 0
    numbers = [frame["seq"] for frame in frames]
    assert numbers == sorted({*numbers})
    assert "thinking_delta" in {frame["type"] for frame in frames}


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("!status 401", "lab: http 401: status 401, as scripted"),
        ("!error", "lab: overloaded_error: Overloaded (try again later, or use another model)"),
        ("!length", "the answer was cut off at the model's length limit"),
    ],
)
def test_without_an_answer_the_exit_code_says_so(tmp_path: Path, prompt: str, message: str) -> None:
    assert ask(tmp_path, "-p", prompt) == ("", f"zot: {message}\n", 1)
    out, err, code = ask(tmp_path, "--json", prompt)
    assert (err, code) == (f"zot: {message}\n", 1)
    assert events(out)[-1] == {"type": "done"}


@pytest.mark.parametrize(
    ("argv", "message", "code"),
    [
        (("-p", "x", "--model", "nope"), "unknown model 'nope' (provider 'lab'); known: lab-1", 1),
        (("-p", "x", "--wat"), "unknown flag --wat; --help-all lists every flag", 2),
    ],
)
def test_errors_are_one_line(tmp_path: Path, argv: tuple[str, ...], message: str, code: int) -> None:
    assert ask(tmp_path, *argv) == ("", f"zot: {message}\n", code)


@pytest.mark.parametrize(
    ("argv", "message", "code"),
    [
        (("-p", "x"), "--print and --json exclude each other", 2),
        (("x", "--model", "nope"), "unknown model 'nope' (provider 'lab'); known: lab-1", 1),
        (("x", "--wat"), "unknown flag --wat; --help-all lists every flag", 2),
        ((), "no prompt; give it as words or on standard input: zot -p PROMPT", 2),
        (("x", "-c"), "no session of {} to continue; list all with: zot sessions list --all", 1),
    ],
)
def test_done_is_the_last_line_even_if_the_run_cannot_begin(
    tmp_path: Path, argv: tuple[str, ...], message: str, code: int
) -> None:
    message = message.format(tmp_path)
    out, err, exit_code = ask(tmp_path, "--json", *argv)
    assert [json.loads(line) for line in out.splitlines()] == [{"type": "error", "message": message}, {"type": "done"}]
    assert (err, exit_code) == (f"zot: {message}\n", code)


def test_a_signal_before_the_prompt_was_read_ends_it_with_done(tmp_path: Path) -> None:
    process = start(tmp_path, "--json", "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"half of the")
    process.stdin.flush()
    assert eventually(lambda: at_rest(process.pid))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    told = [{"type": "error", "message": "stopped before it began"}, {"type": "done"}]
    assert [json.loads(line) for line in out.splitlines()] == told
    assert (err, process.returncode) == (b"", 128 + signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_done_and_the_code_of_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--json", "!bash sleep 600")
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[bytes] = []
    while not lines or b'"turn_end"' not in lines[-1]:
        lines.append(process.stdout.readline())
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    frames = events(b"".join([*lines, out]).decode())
    assert [frame["type"] for frame in frames[-3:]] == ["tool_result", "turn_end", "done"]
    assert (process.returncode, err) == (128 + number, b"")


@pytest.mark.parametrize("how", ["-p", "--json"])
@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_is_a_failure(tmp_path: Path, how: str, numbers: tuple[signal.Signals, ...]) -> None:
    process = start(tmp_path, how, "!bash touch begun; sleep 600")
    try:
        assert eventually((tmp_path / "begun").exists, within_s=60)
        for number in numbers:
            process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in [128 + number for number in numbers]


def test_the_model_is_not_read_while_the_output_is_not_read(tmp_path: Path) -> None:
    # Large, so that a process which handles the signal late, on a busy machine, has not written all of it.
    process = start(tmp_path, "--json", "!flood 1500000")
    assert process.stdout is not None
    begun = b""
    while b'"text_delta"' not in begun:
        begun += process.stdout.readline()
    assert eventually(lambda: at_rest(process.pid))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    text = [json.loads(line).get("delta", "") for line in (begun + out).splitlines() if b'"text_delta"' in line]
    assert 0 < len("".join(text)) < 1_000_000
    assert (process.returncode, err) == (128 + signal.SIGTERM, b"")


def test_a_closed_output_ends_the_run(tmp_path: Path) -> None:
    process = start(tmp_path, "--json", "!loop true")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 1
    process.stderr.close()


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def test_an_answer_that_does_not_fit_the_schema_is_requested_again(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "s.lab").write_text("""say "Sure: 7"\n---\nsay '{"n": "7"}'\n---\nsay '{"n": 7}'""")
    argv = ("How many?", "--script", "s.lab", "--output-schema", "schema.json")
    assert ask(tmp_path, "-p", *argv) == ('{"n": 7}\n', "", 0)
    out, _, code = ask(tmp_path, "--json", *argv)
    frames = events(out, judged=True)
    assert code == 0
    said = [frame["content"][0]["text"] for frame in frames if frame["type"] == "user_message"]
    wrong = "The answer does not match the schema"
    again = "Answer again with the corrected JSON value alone."
    assert said == [
        "How many?",
        f"{wrong}: it is not JSON (JSON is malformed: invalid character (byte 0)). {again}",
        f"{wrong}: $.n: must be integer, is string. {again}",
    ]
    assert frames.count({"type": "done"}) == 1


@pytest.mark.parametrize("fence", ["```json\\n", "```\\n", "\\n```JSON \\n "])
def test_a_fence_around_the_answer_is_removed(tmp_path: Path, fence: str) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "s.lab").write_text(f'say "{fence}{{\\"n\\": 7}}\\n```\\n"')
    assert ask(tmp_path, "-p", "x", "--script", "s.lab", "--output-schema", "schema.json") == ('{"n": 7}\n', "", 0)


def test_the_built_in_script_does_not_restart_when_it_is_corrected(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    out, _, code = ask(tmp_path, "--json", "hello", "--output-schema", "schema.json")
    said = [frame["content"] for frame in events(out, judged=True) if frame["type"] == "assistant_message"]
    assert (code, said[-2:]) == (1, [[{"type": "text", "text": "{}"}]] * 2)


def test_an_answer_that_never_fits_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "s.lab").write_text("say '{}'\nrepeat")
    out, err, code = ask(tmp_path, "--json", "x", "--script", "s.lab", "--output-schema", "schema.json")
    told = "the answer does not match the output schema: $: 'n' is missing"
    assert (err, code) == (f"zot: {told}\n", 1)
    assert events(out, judged=True)[-2:] == [{"type": "error", "message": told}, {"type": "done"}]


def test_the_model_gets_the_schema(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    out, _, code = ask(tmp_path, "prompt", "--output-schema", "schema.json")
    assert code == 0
    assert json.dumps(SCHEMA, separators=(",", ":")) in out


LOUD = """\
#!/usr/bin/env python3
import json, sys
def say(**frame):
    print(json.dumps(frame), flush=True)
say(type="hello", name="e", capabilities=["commands"])
say(type="register_command", name="loud")
say(type="ready")
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "command_invoked":
        for _ in range(100):
            say(type="notify", message="x" * 4000)
        say(type="command_response", id=frame["id"], action="display", display="done")
    elif frame["type"] == "shutdown":
        say(type="shutdown_ack")
        break
"""


def test_unread_notices_do_not_block(tmp_path: Path) -> None:
    (tmp_path / "run").write_text(LOUD)
    (tmp_path / "run").chmod(0o755)
    (tmp_path / "extension.json").write_text('{"name": "e", "exec": "./run"}')
    unread, errors = os.pipe()
    try:
        process = start(tmp_path, "-p", "/loud", "--ext", str(tmp_path), stderr=errors)
        assert process.communicate(timeout=PATIENCE_S)[0] == b"done\n"
        assert os.read(unread, 10) == b"[e] info: "
    finally:
        os.close(unread)
        os.close(errors)
    assert process.returncode == 0


def made(place: Path, script: str, **more: object) -> Path:
    place.mkdir(parents=True)
    (place / "main.py").write_text(script)
    manifest = {"name": place.name, "exec": sys.executable, "args": ["main.py"], **more}
    (place / "extension.json").write_text(json.dumps(manifest))
    return place


ADVICE = "To send it as a prompt, put a space before the slash"


def test_a_command_of_an_extension_that_does_not_run_is_an_error_and_no_prompt(tmp_path: Path) -> None:
    made(tmp_path / "greet", "import nowhere")
    out, err, code = ask(tmp_path, "-p", "/hi Ada", "--ext", "greet")
    why = "ModuleNotFoundError: No module named 'nowhere' (all of it: zot ext logs greet)"
    assert (out, code) == ("", 1)
    assert err.split("\n")[-2].startswith("zot: /hi cannot be run: extension greet does not run: exited with 1")
    assert err.endswith(f"{why}. {ADVICE}\n")
    out, _, code = ask(tmp_path, "--json", "/hi Ada", "--ext", "greet")
    assert code == 1
    response, error, done = map(json.loads, out.split("\n")[:-1])
    assert (response["command"], response["success"], done) == ("run_command", False, {"type": "done"})
    assert response["error"] == error["message"]
    for prompt in (" /hi", "/tmp/x", "/ hi", "hi"):
        assert ask(tmp_path, "-p", prompt, "--ext", "greet")[2] == 0, prompt


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, "extension greet is not trusted; try: zot ext trust greet"),
        ({"enabled": False}, "extension greet is disabled; try: zot ext enable greet"),
        ({"exec": ""}, "extension greet does not run: {place}/extension.json: `exec` must be"),
    ],
)
def test_a_command_of_an_extension_that_is_not_started_is_an_error_too(
    tmp_path: Path, more: dict[str, object], reason: str
) -> None:
    place = made(tmp_path / ".zot" / "extensions" / "greet", "", **more)
    out, err, code = ask(tmp_path, "-p", "/greet Ada")
    assert (out, code) == ("", 1)
    assert f"zot: /greet cannot be run: {reason.format(place=place)}" in err
    assert ask(tmp_path, "-p", "/other Ada")[2] == (0 if "enabled" in more else 1)
