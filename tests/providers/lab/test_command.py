"""`zot lab` as a person uses it: its output and its errors."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import forked
from harness import environment
from zot.providers.lab.script import demo

from .talk import WAIT_S, body

ZOT = (sys.executable, "-m", "zot", "lab")


def run(*argv: str) -> tuple[int, str, str]:
    """Run the command to its end; return its exit code and output."""
    done = forked.run(["lab", *argv], env=environment({}))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def print_to(stdout: int, *argv: str) -> tuple[int, str]:
    """Run the command to its end, with another output; return its exit code and its complaint."""
    done = subprocess.run([*ZOT, *argv], stdout=stdout, stderr=subprocess.PIPE, timeout=WAIT_S, check=False, text=True)
    return done.returncode, done.stderr


def test_the_address_is_printed_and_a_signal_ends_it() -> None:
    with subprocess.Popen([*ZOT, "serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("http://127.0.0.1:")
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0


def test_the_log_has_every_request() -> None:
    with subprocess.Popen(
        [*ZOT, "serve", "--log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().strip()
        for prompt in ("!bash ls -l", "!cut-utf8", "!retry 1", "x\x1b[2J\n" + "y" * 300):
            post(url, body(prompt))
        post(url, b"{")
        post(url, None)
        lines = [server.stderr.readline() for _ in range(6)]
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0
    about = "model=lab stream=yes"
    [number] = [scene.number for scene in demo().scenes if scene.word == "!bash"]
    assert lines[0] == (
        f"req_lab_1 POST /v1/messages status=200 {about} "
        f'prompt="!bash ls -l" tools=bash scene="!bash (demo.lab:{number})" reply=1/2 says="split, call bash"\n'
    )
    assert lines[1].endswith('reply=1/1 says=say fault="cut utf8"\n')
    assert lines[2].startswith(f"req_lab_3 POST /v1/messages status=529 {about} ")
    assert lines[2].endswith('reply=1/2 fault="status overloaded"\n')
    assert 'prompt="x\\u001b[2J\\ny' in lines[3]
    assert lines[4].startswith('req_lab_5 POST /v1/messages status=400 error="not a request: ')
    assert lines[5] == "req_lab_6 GET /v1/messages status=404 error=" + lines[5].partition("error=")[2]


def post(url: str, data: bytes | None) -> None:
    """Ask, and do not care for the answer."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"{url}/v1/messages", data, timeout=WAIT_S).read()


#: More requests than lines fit into a pipe and into what waits for it, at about 300 bytes each.
ASKED = 600


def test_an_unread_log_does_not_stop_the_server() -> None:
    with subprocess.Popen(
        [*ZOT, "serve", "--log"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().decode().strip()
        for _ in range(ASKED):
            post(url, body("!echo " + "x" * 300))
        kept = b""
        while b"dropped here" not in kept:
            kept += server.stderr.read(1024 * 1024)
        post(url, body("!echo last"))
        while f"req_lab_{ASKED + 1} ".encode() not in kept:
            kept += server.stderr.read(1024 * 1024)
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_S) == 0
    dropped = ASKED + 1 - kept.count(b"req_lab_")
    assert f"\nzot: {dropped} lines were dropped here: standard error was not read in time\n" in kept.decode()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_unwritable_address_ends_it_with_one_line() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, told = print_to(full, "serve")
    finally:
        os.close(full)
    assert (code, told.count("\n")) == (1, 1)
    assert told.startswith("zot: cannot print the address http://127.0.0.1:")


def test_a_closed_output_ends_it_with_one_line() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, told = print_to(writing, "serve")
    finally:
        os.close(writing)
    assert (code, told.count("\n")) == (1, 1)
    assert told.startswith("zot: cannot print the address http://127.0.0.1:")


@pytest.mark.parametrize("port", ["x", "", "-1", "65536", "80.5", "9" * 5000])
def test_a_port_is_a_number(port: str) -> None:
    told = f"zot: --port {port}: must be a whole number from 0 to 65535\n"
    assert run("serve", f"--port={port}") == (2, "", told)


@pytest.mark.parametrize(
    ("words", "usage"),
    [((), "serve"), (("serve",), "serve"), (("check",), "check")],
)
def test_help_is_that_of_the_command(words: tuple[str, ...], usage: str) -> None:
    code, told, _ = run(*words, "--help")
    assert (code, told.partition("\n")[0]) == (0, f"Usage: zot lab {usage} [flags]")
    assert ("--port" in told) is (usage == "serve")


def test_check_names_the_line_of_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "a.lab"
    path.write_text("say x\nsplit 0 x\n")
    told = 'zot: a.lab:2: found 0 where a number of at least 1 should be; expected: split COUNT "text"\n'
    assert run("check", "--script", os.fspath(path)) == (1, "", told)
    path.write_text("say x\n")
    assert run("check", "--script", os.fspath(path)) == (0, "", "")
