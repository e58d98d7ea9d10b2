"""`zot daemon` as a process: its start and end, the traces of a crash, and its successor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from child_process import Child
from daemon_process import Daemons, eventually, is_there
from daemons import PATIENCE_S, Caller, Frame, request
from forked import ForkServer
from harness import located
from zot.client.client import Client
from zot.wire.jsonrpc import RpcError


@pytest.fixture
async def daemons(tmp_path: Path, fork_server: ForkServer) -> AsyncIterator[Daemons]:
    started = Daemons(tmp_path, fork_server)
    yield started
    await started.close()


async def opened(daemons: Daemons, session_id: str = "s") -> Caller:
    caller = await daemons.caller()
    await caller.get("session/new", agentAlias="default", sessionId=session_id)
    return caller


async def test_the_socket_is_private_and_only_one_daemon_runs(daemons: Daemons) -> None:
    daemon = daemons.start()
    assert stat.S_IMODE(os.stat(daemons.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(daemons.path)).st_mode) == 0o700
    second = daemons.fork("daemon", "--provider", "lab")
    _, told = second.communicate()
    assert (second.returncode, str(daemon.pid) in told.decode()) == (3, True)
    hello = await (await daemons.caller()).get("status")
    assert hello["serverPid"] == daemon.pid
    assert await daemons.end(daemon) == 0
    assert not os.path.exists(daemons.path)


async def test_agents_that_cannot_be_used_are_named_at_the_start_and_the_others_served(daemons: Daemons) -> None:
    (daemons.home / "config.toml").write_text(
        '[agents.fine]\nprovider = "lab"\n[agents.wrong]\nprovider = "lab"\nmodel = "gpt-5"\n'
        '[agents.keyless]\nprovider = "openai"\n'
    )
    daemon = daemons.fork("daemon")
    said = daemons.hears(daemon, "agent keyless cannot be used: no key for openai: set OPENAI_API_KEY")
    assert "zot: agent default cannot be used: no key for anthropic: set ANTHROPIC_API_KEY" in said
    assert "zot: agent wrong cannot be used: unknown model 'gpt-5'" in said
    assert "agent fine" not in said
    caller = await daemons.caller()
    await caller.get("session/new", agentAlias="fine", sessionId="s")
    assert (await caller.get("session/prompt", sessionId="s", prompt="!echo hi"))["content"] == "hi"
    assert await daemons.end(daemon) == 0


async def test_the_longest_line_can_be_set(daemons: Daemons) -> None:
    daemons.start("--max-line-bytes", "1000")
    caller = await daemons.caller()
    assert (await caller.get("initialize", protocolVersion=1))["maxLineBytes"] == 1000
    caller.write(request("status", "fits", {"more": "x" * 800}), b"x" * 1001, request("status", "next", {}))
    assert "result" in await caller.answer("fits")
    assert "result" in await caller.answer("next")
    [refused] = [frame["error"] for frame in caller.heard if "error" in frame]
    assert (refused["code"], refused["data"]) == (-32600, {"reason": "frame_too_large", "limitBytes": 1000})
    async with Client.connect(socket=daemons.path) as client:
        with pytest.raises(RpcError, match="longer than 1000 bytes"):
            await client.call("session/list", {"query": "x" * 1000})


async def test_a_signal_lets_running_turns_finish_then_aborts_them_and_notifies_clients(daemons: Daemons) -> None:
    (daemons.home / "config.toml").write_text("[daemon]\ngrace_s = 0.5\n")
    daemon = daemons.start()
    quick, slow = await opened(daemons, "quick"), await opened(daemons, "slow")
    short = quick.call("session/prompt", sessionId="quick", prompt="!script wait 200ms ;; say done")
    long = slow.call(
        "session/prompt", sessionId="slow", prompt='!script say "so far" ;; call bash {"command":"sleep 60"}'
    )
    await quick.until(type="state")
    await slow.until(type="tool_call")
    daemon.send_signal(signal.SIGTERM)
    assert (await quick.answer(short))["result"]["content"] == "done"
    ended = (await slow.answer(long))["result"]
    assert (ended["stopReason"], ended["content"]) == ("cancelled", "so far")
    assert slow.updates()[-1]["outcome"] == "cancelled"
    assert (await quick.rest(), await slow.rest()) == ([], [])
    assert await daemons.ended(daemon) == 0
    daemons.start()
    again = await daemons.caller()
    await again.get("session/attach", sessionId="slow", after=0)
    await again.until(seq=slow.updates()[-1]["seq"])
    assert again.updates() == slow.updates()


async def test_a_second_signal_ends_it_at_once(daemons: Daemons) -> None:
    (daemons.home / "config.toml").write_text("[daemon]\ngrace_s = 60\n")
    daemon = daemons.start()
    caller = await opened(daemons)
    caller.call("session/prompt", sessionId="s", prompt="!stall")
    await caller.until(type="state")
    daemon.send_signal(signal.SIGTERM)
    await eventually(lambda: "is stopping" in daemons.log())
    assert await daemons.end(daemon) == 1
    assert not os.path.exists(daemons.path)


#: What a daemon is killed in, how the session is found, and how the turn ended for who comes back.
PHASES = {
    "streaming": ("!script say a b c ;; stall", "agent_message_chunk", "c"),
    "waiting for the model": ("!stall", "state", None),
    "running a tool": ('!script call bash {"command":"sleep 60"}', "tool_call", None),
    "between turns": ("!echo over", "turn_complete", None),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_updates_sent_by_a_killed_daemon_are_recorded_and_its_sessions_work(daemons: Daemons, phase: str) -> None:
    prompt, last, text = PHASES[phase]
    daemon = daemons.start()
    caller = await opened(daemons)
    caller.call("session/prompt", sessionId="s", prompt=prompt)
    await caller.until(type=last, **({} if text is None else {"text": text}))
    assert await daemons.end(daemon, signal.SIGKILL) == -signal.SIGKILL
    await caller.rest()
    await eventually(lambda: located(daemons.cwd) == [])  # A session runs as long as its tool does.
    daemons.start()
    again = await daemons.caller()
    attached = await again.get("session/attach", sessionId="s", after=0)
    assert attached["state"] == "idle"
    await again.until(type="turn_complete")
    assert again.updates()[: len(caller.updates())] == caller.updates()
    outcome = "completed" if phase == "between turns" else "cancelled"
    assert again.updates()[-1]["outcome"] == outcome
    assert (await again.get("session/prompt", sessionId="s", prompt="!echo on"))["content"] == "on"


async def test_a_client_killed_at_every_update_has_them_all_after_it_returns(daemons: Daemons) -> None:
    daemons.start()
    caller = await opened(daemons)
    number = caller.call("session/prompt", sessionId="s", prompt="!slow 20 0.01")
    seen: list[Frame] = []

    def visit(_: Callable[[], None]) -> str:
        """Receive one more update, report it, and get killed."""
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as lines:
            client.connect(daemons.path)
            after = seen[-1]["seq"] if seen else 0
            for line in (
                request("initialize", 1, {}),
                request("session/attach", 2, {"sessionId": "s", "after": after}),
            ):
                client.sendall(json.dumps(line).encode() + b"\n")
            told = (json.loads(line) for line in lines)
            return json.dumps(next(one["params"] for one in told if one.get("method") == "session/update"))

    while not seen or seen[-1]["type"] != "turn_complete":
        with Child(visit) as child:
            seen.append(json.loads(await asyncio.to_thread(child.report)))
    await caller.answer(number)
    assert seen == caller.updates()
    assert len(seen) == 23


async def test_a_question_outlives_a_killed_daemon(daemons: Daemons) -> None:
    daemon = daemons.start("--policy", "bash=ask")
    caller = await opened(daemons)
    caller.call("session/prompt", sessionId="s", prompt="!bash echo hi")
    question = await caller.until(type="approval_request")
    assert await daemons.end(daemon, signal.SIGKILL) == -signal.SIGKILL
    daemons.start("--policy", "bash=ask")
    first, second = await daemons.caller(), await daemons.caller()
    assert (await first.get("session/attach", sessionId="s"))["state"] == "waiting_approval"
    shown = await first.until(type="approval_request")
    for frame in (question, shown):
        assert frame.pop("timeoutSecs") > 0
    assert shown == question
    await second.get("session/approve", sessionId="s", requestId=question["requestId"], decision="allow_once")
    assert (await first.until(type="turn_complete"))["outcome"] == "completed"


async def test_other_commands_share_its_sessions(daemons: Daemons) -> None:
    daemons.start()
    caller, other = await opened(daemons), await daemons.caller()
    await other.get("session/attach", sessionId="s", after=0)
    await caller.get("session/prompt", sessionId="s", prompt="!echo one")
    once = daemons.fork("-p", "!echo two", "--provider", "lab", "--session", "s")
    assert once.communicate()[0] == b"two\n"
    await caller.get("session/prompt", sessionId="s", prompt="!echo three")
    await other.until(type="turn_complete", content="three")
    assert [one["content"] for one in other.updates() if one["type"] == "turn_complete"] == ["one", "two", "three"]
    numbers = [one["seq"] for one in other.updates()]
    assert numbers == sorted(set(numbers))


async def test_configuration_is_read_again_and_a_bad_one_changes_nothing(daemons: Daemons) -> None:
    config = daemons.home / "config.toml"
    config.write_text("")
    daemon = daemons.start()
    caller = await daemons.caller()
    config.write_text('[agents.one]\nprovider = "lab"\n')
    assert (await caller.get("config/reload"))["agents"] == ["default", "one"]
    config.write_text("[agents.two\n")
    assert (await caller.error("config/reload"))[0] == -32602
    daemon.send_signal(signal.SIGHUP)
    await eventually(lambda: "was not changed" in daemons.log())
    assert [one["alias"] for one in (await caller.get("agents/list"))["agents"]] == ["default", "one"]
    config.write_text('[agents.three]\nprovider = "lab"\n')
    daemon.send_signal(signal.SIGHUP)
    await eventually(lambda: "default, three" in daemons.log())
    assert [one["alias"] for one in (await caller.get("agents/list"))["agents"]] == ["default", "three"]


async def test_an_ephemeral_daemon_ends_a_second_after_its_client_was_killed(daemons: Daemons) -> None:
    daemon = daemons.start("--ephemeral")
    caller = await opened(daemons)
    caller.call("session/prompt", sessionId="s", prompt='!script call bash {"command":"echo $$; exec sleep 60"}')
    await caller.until(type="tool_call")
    caller.writer.transport.abort()
    assert await daemons.ended(daemon) == 0
    assert not os.path.exists(daemons.path)


async def test_a_daemon_takes_over_while_clients_connect_and_none_is_refused(daemons: Daemons) -> None:
    first = daemons.start()
    served: set[int] = set()
    over = asyncio.Event()

    async def come_and_go() -> None:
        while not over.is_set():
            async with await daemons.caller() as caller:
                served.add(caller.heard[0]["result"]["serverPid"])

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(come_and_go())
        await eventually(lambda: first.pid in served)
        second = await asyncio.to_thread(daemons.start, "--replace")
        await eventually(lambda: second.pid in served)
        over.set()
    assert served == {first.pid, second.pid}
    assert await daemons.ended(first) == 0
    assert not is_there(first.pid)
    assert await daemons.end(second) == 0
    assert not os.path.exists(daemons.path)


PASSED = 'exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"'


async def passed(daemons: Daemons, made: socket.socket, *flags: str, **env: str) -> asyncio.subprocess.Process:
    """Start a daemon as systemd would, with a socket that listens already."""
    return await asyncio.create_subprocess_exec(
        "sh", "-c", PASSED, "sh", sys.executable, "-m", "zot", "daemon", "--provider", "lab", *flags,
        cwd=daemons.cwd, env={**daemons.env, **env}, stdin=made.fileno(), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_systemd_may_pass_the_socket_and_is_notified_of_readiness(daemons: Daemons, tmp_path: Path) -> None:
    path = str(tmp_path / "made.sock")
    with socket.socket(socket.AF_UNIX) as made, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        made.bind(path)
        os.chmod(path, 0o600)
        made.listen()
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(PATIENCE_S)
        process = await passed(daemons, made, NOTIFY_SOCKET=str(tmp_path / "notify"))
        told = (await asyncio.to_thread(ear.recv, 4096)).decode()
        assert told == f"READY=1\nSTATUS=listening at {path}\nMAINPID={process.pid}"
    caller = Caller(*await asyncio.open_unix_connection(path))
    welcome = await caller.get("initialize")
    assert (welcome["serverPid"], welcome["endpoint"]) == (process.pid, path)
    assert (await caller.get("daemon/stop", graceS=2)) == {"stopping": True, "graceS": 2.0}
    said = (await asyncio.wait_for(process.communicate(), PATIENCE_S))[1].decode()
    assert said.splitlines()[0] == f"zot: the daemon listens at {path}"
    assert process.returncode == 0
    assert os.path.exists(path)
    await caller.close()


async def test_a_socket_that_is_passed_and_has_no_file_is_refused(daemons: Daemons) -> None:
    with socket.create_server(("127.0.0.1", 0)) as made:
        process = await passed(daemons, made)
    said = (await asyncio.wait_for(process.communicate(), PATIENCE_S))[1].decode()
    assert process.returncode == 1
    assert said.count("\n") == 1
    assert "not a local stream socket with a path" in said


async def test_a_failed_start_leaves_no_socket_and_does_not_report_readiness(daemons: Daemons) -> None:
    (daemons.home / "journal.db").mkdir()
    said = await asyncio.to_thread(daemons.fork("daemon", "--provider", "lab").communicate)
    assert b"listens at" not in said[1]
    assert b"journal.db" in said[1]
    assert not os.path.exists(daemons.path)


async def test_a_missing_directory_is_created_and_reported_once(daemons: Daemons) -> None:
    fresh, notice = daemons.home / "fresh", f"zot: {daemons.home}/fresh does not exist; zot creates it"
    argv = ("daemon", "--provider", "lab", "--config-dir", str(fresh))
    for is_new in (True, False):
        daemon = daemons.fork(*argv)
        assert (notice in daemons.hears(daemon, "listens at")) is is_new
        assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
        assert await daemons.end(daemon) == 0


async def test_calls_are_recorded_in_the_audit_log(daemons: Daemons) -> None:
    daemon = daemons.start()
    caller = await opened(daemons)
    await caller.error("session/cancel", sessionId="s")
    assert await daemons.end(daemon) == 0
    logs = [daemons.home / "data" / "logs" / name for name in ("audit.log", "access.log")]
    changes, access = ([json.loads(line) for line in log.read_text().splitlines()] for log in logs)
    calls = [[(one["method"], one["outcome"]) for one in log if one["event"] == "call"] for log in (changes, access)]
    assert calls == [[("session/new", "ok")], [("session/cancel", "-32000")]]
    assert sum(one["lines"] for one in access if one["event"] == "reads") >= 1
