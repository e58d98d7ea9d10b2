"""`zot daemon --listen`: its address, the line that announces it, and its end."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

import pytest

from forked import Forked, ForkServer
from harness import PATIENCE_S, environment, read_some
from shell import Shell

CERTIFICATES = Path(__file__).parents[2] / "providers" / "tls"
LAB = ("daemon", "--provider", "lab")


def lines(stream: IO[bytes], count: int) -> list[str]:
    """Return the first lines of a daemon's output."""
    said = b""
    while said.count(b"\n") < count:
        data = read_some(stream.fileno(), time.monotonic() + PATIENCE_S)
        assert data, said
        said += data
    return said.decode().split("\n")[:count]


def ended(process: Forked) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode is not None
    return process.returncode


def test_it_listens_at_the_given_address_and_prints_it(shell: Shell, fork_server: ForkServer) -> None:
    shell.home.mkdir()
    (shell.home / "config.toml").write_text('[daemon]\nlisten = ["ws://[::1]:0"]\n')
    argv = (*LAB, "--listen", "ws://127.0.0.1:0", "--listen", "ws://localhost:0/below")
    process = fork_server.fork(argv, shell.cwd, shell.env)
    local, *urls = [line.rpartition(" ")[2] for line in lines(process.stderr, 4)]
    status = json.loads(shell.run("daemon", "status", "--json").out)
    assert (status["endpoint"], status["listens"]) == (local, urls)
    assert [re.sub(r":\d+(?=/|$)", "", url) for url in urls] == ["ws://127.0.0.1", "ws://localhost/below", "ws://[::1]"]
    for url in urls:
        with urllib.request.urlopen(f"{url.replace('ws', 'http', 1)}/healthz", timeout=PATIENCE_S) as told:
            assert told.read() == b"ok\n"
    token = shell.home / "data" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert f"listens   {urls[0]}\n" in shell.run("daemon", "status").out
    assert ended(process) == 0
    assert token.read_text().strip() not in (shell.home / "data" / "logs" / "daemon.log").read_text()


def test_a_daemon_takes_over_and_refuses_no_new_connection(shell: Shell, fork_server: ForkServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    argv = (*LAB, "--listen", f"ws://127.0.0.1:{port}")
    first = fork_server.fork(argv, shell.cwd, shell.env)
    lines(first.stderr, 2)
    with socket.create_connection(("127.0.0.1", port)) as early:  # A client that has just connected when it ends.
        second = fork_server.fork((*argv, "--replace"), shell.cwd, shell.env)
        answers = [healthy(early)]
        while not select.select([second.stderr], [], [], 0)[0] or not answers[-1]:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as another:
                answers.append(healthy(another))
    assert lines(second.stderr, 2)[1].endswith(f"ws://127.0.0.1:{port}")
    assert first.communicate(timeout=PATIENCE_S) is not None
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as last:
        answers.append(healthy(last))
    assert (first.returncode, all(answers)) == (0, True)
    assert ended(second) == 0


def test_a_daemon_takes_over_at_an_address_that_includes_the_old_one(shell: Shell, fork_server: ForkServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    first = fork_server.fork((*LAB, "--listen", f"ws://127.0.0.1:{port}"), shell.cwd, shell.env)
    lines(first.stderr, 2)
    tls = ("--tls-cert", str(CERTIFICATES / "server.pem"), "--tls-key", str(CERTIFICATES / "server.key"))
    argv = (*LAB, "--replace", "--listen", f"wss://0.0.0.0:{port}", *tls)
    second = fork_server.fork(argv, shell.cwd, shell.env)
    assert lines(second.stderr, 2)[1] == f"zot: the daemon listens at wss://0.0.0.0:{port}"
    assert (first.communicate(timeout=PATIENCE_S) is not None, first.returncode) == (True, 0)
    assert ended(second) == 0


def test_a_daemon_whose_successor_dies_serves_connections_made_meanwhile(shell: Shell, fork_server: ForkServer) -> None:
    shell.home.mkdir()
    (shell.home / "config.toml").write_text("[daemon]\ngrace_s = 60\n")
    first = fork_server.fork((*LAB, "--listen", "ws://127.0.0.1:0"), shell.cwd, shell.env)
    local, url = [line.rpartition(" ")[2] for line in lines(first.stderr, 2)]
    place = "127.0.0.1", int(url.rpartition(":")[2])
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as said:
        client.settimeout(PATIENCE_S)
        client.connect(local)
        client.sendall(ASKS)
        assert any(b'"tool_call"' in line for line in said)
        second = fork_server.fork((*LAB, "--replace", "--listen", "ws://127.0.0.1:0"), shell.cwd, shell.env)
        assert any(b"daemon/stopping" in line for line in said)
        with socket.create_connection(place, PATIENCE_S) as waits:
            second.kill()
            assert healthy(waits)
        second.communicate()
        assert any(b"daemon/resumed" in line for line in said)
        client.sendall(b'{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"s"},"id":4}\n')
        assert any(b'"turn_complete"' in line for line in said)
    status = json.loads(shell.run("daemon", "status", "--json").out)
    assert (status["pid"], status["listens"]) == (first.pid, [url])
    assert ended(first) == 0


#: A client that wants to know how the daemon is, and has something running.
ASKS = (
    b'{"jsonrpc":"2.0","method":"initialize","params":{"features":["stopping"]},"id":1}\n'
    b'{"jsonrpc":"2.0","method":"session/new","params":{"agentAlias":"default","sessionId":"s"},"id":2}\n'
    b'{"jsonrpc":"2.0","method":"session/prompt","params":{"sessionId":"s","prompt":"!bash sleep 60"},"id":3}\n'
)


def healthy(client: socket.socket) -> bool:
    """Ask for its status on a connection of its own."""
    client.settimeout(PATIENCE_S)
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    return client.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_an_unavailable_address_ends_it(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        said = shell.run(*LAB, "--listen", url)
    assert said.code == 1
    assert said.err == f"zot: cannot listen at {url}: Address already in use\n"


@pytest.mark.parametrize("wrong", ["an address in use", "a certificate", "a token", "the second of two addresses"])
def test_a_daemon_yields_only_to_a_successor_that_can_listen_at_its_addresses(
    shell: Shell, fork_server: ForkServer, wrong: str
) -> None:
    first = fork_server.fork((*LAB, "--listen", "ws://127.0.0.1:0"), shell.cwd, shell.env)
    own = lines(first.stderr, 2)[1].rpartition(" ")[2]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        flags = {
            "an address in use": ("--listen", url),
            "a certificate": ("--listen", "wss://127.0.0.1:0", "--tls-cert", "missing.pem"),
            "a token": ("--listen", "ws://127.0.0.1:0"),
            "the second of two addresses": ("--listen", own, "--listen", "ws://192.0.2.1:7777"),
        }[wrong]
        if wrong == "a token":
            (shell.home / "data" / "token").chmod(0o644)
        said = shell.run(*LAB, "--replace", *flags)
    assert (said.code, said.err.count("\n")) == (1, 1)
    status = json.loads(shell.run("daemon", "status", "--json").out)
    assert (status["pid"], status["listens"]) == (first.pid, [own])
    assert ended(first) == 0


def test_an_impossible_setting_is_reported_before_anything_is_served(shell: Shell) -> None:
    said = shell.run(*LAB, "--listen", "ws://0.0.0.0:80")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("zot: ws://0.0.0.0:80: others could read unencrypted traffic")
    assert not (shell.home / "data").exists()
    assert "wss:// needs a certificate" in shell.run(*LAB, "--listen", "wss://127.0.0.1:0").err


def test_without_the_extra_the_error_says_how_to_install_it(shell: Shell) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; from zot.commands.daemon import main; "
        "main(['--listen', 'ws://127.0.0.1:0'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=shell.env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    hint = "--listen needs uvicorn; in a clone of zot, run: pip install '.[web]'"
    assert done.stderr.decode().rstrip().endswith(hint)


def test_web_modules_are_loaded_only_when_listening() -> None:
    code = (
        "import sys, zot.serve.daemon.daemon_process; print({'uvicorn', 'starlette', 'zot.serve.web'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment({}), capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == b"set()\n"
