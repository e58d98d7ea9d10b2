"""The daemon: start-up, throughput, latency, and the cost of idle sessions."""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter, perf_counter_ns

from installation import Installation
from measure import Row, interleave, median, quantile, spread
from memory import resident_mb
from process import Process, cpu_s, rpc

_HELLO = b'{"jsonrpc":"2.0","method":"initialize","id":"hello"}\n'
_READY = b'"id":"hello"'
_SESSIONS, _DELTAS, _CLIENTS = 200, 200, 4
_IDLE_SESSIONS = 1000
#: Of so many sessions so many have a turn at any time; consecutive turns are in different sessions.
_LOADED, _ACTIVE, _TURNS = 1000, 100, 6000
_TURN = "!script words 100"
_WATCH_S = 5.0
#: How long the work of creating many sessions may take to settle; the share of a core, in per cent, that is idle;
#: and for how long: the daemon frees memory a second or two after the work.
_SETTLE_S = 15.0
_BUSY = 0.5
_QUIET_S = 3.0
#: How long a daemon may take to free the memory of closed sessions.
_RECLAIM_S = 6.0
_REFERENCE = "import asyncio,msgspec,httptools,sqlite3,sys; sys.stdout.write('{'); sys.stdout.flush()"


def daemon(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """All figures of the daemon."""
    return [
        *_starts(installations, rounds),
        *(
            row
            for installation in installations
            for row in (*_fleet(installation, max(2, rounds // 8)), *_crowd(installation))
        ),
        *(row for installation in installations for row in _load(installation, _TURNS * rounds // 24)),
    ]


class Client:
    """A client of the daemon, which can be read together with others or not at all."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = perf_counter() + 10
        while True:
            try:
                self.socket.connect(path)
                break
            except OSError:
                if perf_counter() > deadline:
                    raise
                time.sleep(0.001)
        self._seen = b""
        self.ask(_HELLO, _READY)

    def ask(self, line: bytes, mark: bytes) -> None:
        """Send a request and read up to ``mark``."""
        self.socket.sendall(line)
        while mark not in self._seen:
            self._seen = self._seen[-len(mark) :] + self.socket.recv(1 << 20)
        self._seen = self._seen.partition(mark)[2]

    def open(self, session_id: str) -> None:
        """Create a session."""
        self.ask(
            _call("session/new", session_id, agentAlias="default", sessionId=session_id),
            b'"id":"%s"' % session_id.encode(),
        )


@contextmanager
def _running(installation: Installation, *flags: str) -> Iterator[tuple[Process, str]]:
    home = tempfile.mkdtemp(prefix="zot-bench-daemon-")
    path = f"{home}/d.sock"
    try:
        argv = [installation.zot, "daemon", "--provider", "lab", "--config-dir", home, "--socket", path, *flags]
        with Process(argv, installation) as process:
            yield process, path
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _starts(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """From the start of the process to the answer to the first `initialize`."""
    first = installations[0]
    samplers = {"reference": partial(_imported, first), **{one.name: partial(_answered, one) for one in installations}}
    samples = interleave(samplers, rounds)
    least = median(samples["reference"])
    return [
        Row(
            "daemon: first answer",
            installation.name,
            median(samples[installation.name]) / least,
            at_most=1.6,
            spread=spread(samples[installation.name]),
            detail=f"{median(samples[installation.name]) * 1e3:.0f} ms / {least * 1e3:.0f} ms",
        )
        for installation in installations
    ]


def _imported(installation: Installation) -> float:
    with Process([installation.python, "-c", _REFERENCE], installation) as process:
        return process.until(b"{") - process.started


def _answered(installation: Installation) -> float:
    with _running(installation) as (process, path):
        Client(path)
        return perf_counter() - process.started


def _fleet(installation: Installation, rounds: int) -> list[Row]:
    """Many concurrent streaming sessions, against one recorded session with the same text over `zot rpc`.

    Both are warm, so that nothing is imported meanwhile; no update may be lost.
    """
    samples = interleave(
        {"rpc": partial(_one_rate, installation), "daemon": partial(_fleet_rate, installation)}, rounds
    )
    one, many = median(samples["rpc"]), median(samples["daemon"])
    detail = f"{many / 1e3:.0f} k/s / {one / 1e3:.0f} k/s"
    name = f"daemon: {_SESSIONS} sessions at once"
    return [
        Row(name, installation.name, many / one, "x rpc", at_least=0.4, spread=spread(samples["daemon"]), detail=detail)
    ]


def _one_rate(installation: Installation) -> float:
    count = _SESSIONS * _DELTAS
    with Process(
        rpc(installation, "--provider", "lab", "--session", f"one {perf_counter_ns()}"), installation
    ) as process:
        process.write(b'{"type":"prompt","message":"!echo ready"}\n')
        process.until(b'{"type":"done"}')
        begin = perf_counter()
        process.write(b'{"type":"prompt","message":"!script words %d"}\n' % count)
        return count / (process.until(b'{"type":"done"}') - begin)


def _fleet_rate(installation: Installation) -> float:
    with _running(installation) as (_, path):
        clients = [Client(path) for _ in range(_CLIENTS)]
        names = [f"s{number}" for number in range(_SESSIONS)]
        for number, name in enumerate(names):
            clients[number % _CLIENTS].open(name)
        first = Client(path)
        first.open("first")
        first.ask(_call("session/prompt", "ready", sessionId="first", prompt="!echo ready"), b'"id":"ready"')
        begin = perf_counter()
        for number, client in enumerate(clients):
            prompt = f"!script words {_DELTAS}"
            mine = (_call("session/prompt", name, sessionId=name, prompt=prompt) for name in names[number::_CLIENTS])
            client.socket.sendall(b"".join(mine))
        heard = _read_all(clients, _SESSIONS)
        took = perf_counter() - begin
        _check(heard)
        return _SESSIONS * _DELTAS / took


def _read_all(clients: Sequence[Client], answers: int) -> list[bytes]:
    """Read all clients until so many answers have arrived; return the output by client."""
    heard = {client.socket: bytearray() for client in clients}
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ)
    seen = 0
    while seen < answers:
        for key, _ in selector.select(30):
            data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
            buffer = heard[key.fileobj]  # type: ignore[index]
            before = max(0, len(buffer) - 11)
            buffer += data
            seen += buffer.count(b'"result":{"s', before)
    return [bytes(buffer) for buffer in heard.values()]


def _check(heard: Sequence[bytes]) -> None:
    """Raise AssertionError if an update was lost or reordered."""
    complete = 0
    for data in heard:
        numbers: dict[str, int] = {}
        chunks: dict[str, list[str]] = {}
        for line in data.split(b"\n")[:-1]:
            said = json.loads(line).get("params")
            if said is not None:
                name = said["sessionId"]
                assert said["seq"] > numbers.get(name, 0), "out of order"
                numbers[name] = said["seq"]
                if said["type"] == "agent_message_chunk":
                    chunks.setdefault(name, []).append(said["text"])
        complete += sum(said == [f"w{n} " for n in range(_DELTAS)] for said in chunks.values())
    assert complete == _SESSIONS, f"something was lost: {complete} of {_SESSIONS} sessions are complete"


def _crowd(installation: Installation) -> list[Row]:
    """Memory and CPU of many idle sessions, and the latency beside a slow client."""
    with _running(installation) as (process, path):
        client = Client(path)
        late = _delays(path)
        for number in range(_IDLE_SESSIONS):
            client.open(f"idle{number}")
        _settle(process.pid)
        held = resident_mb(process.pid)
        share = _share(process.pid, _WATCH_S)
    p99 = quantile(late, 0.99) * 1e3
    name = installation.name
    return [
        Row(
            "daemon: update beside a slow reader, p99",
            name,
            p99,
            "ms",
            at_most=50.0,
            detail=f"p50 {median(late) * 1e3:.1f} ms",
        ),
        Row(f"daemon: {_IDLE_SESSIONS} idle sessions", name, held, "MB", at_most=120.0),
        Row("daemon: CPU when idle", name, share, "%", at_most=0.5),
    ]


def _delays(path: str) -> list[float]:
    """Let one client follow a flood without reading it; return the latency of another client meanwhile."""
    deaf, flooded, client = Client(path), Client(path), Client(path)
    flooded.open("flood")
    deaf.socket.sendall(_call("session/attach", "a", sessionId="flood", after=0))
    client.open("paced")
    delays: list[float] = []
    for _ in range(200):
        flooded.socket.sendall(_call("session/prompt", "f", sessionId="flood", prompt="!flood 100"))
        begin = perf_counter()
        client.ask(_call("session/prompt", "p", sessionId="paced", prompt="!echo x"), b'"type":"state"')
        delays.append(perf_counter() - begin)
        client.ask(b"", b'"id":"p"')
        flooded.ask(b"", b'"id":"f"')
    return delays


def _load(installation: Installation, turns: int) -> list[Row]:
    """Sessions that are constantly evicted and reloaded: turns per second, delay, memory."""
    with _running(installation) as (process, path):
        clients = {client.socket: client for client in (Client(path) for _ in range(_ACTIVE))}
        for number in range(_LOADED):
            list(clients.values())[number % _ACTIVE].open(f"s{number}")
        _settle(process.pid)
        before = resident_mb(process.pid)
        begin = perf_counter()
        firsts = _play(list(clients.values()), turns)
        rate = turns / (perf_counter() - begin)
        _settle(process.pid)
        time.sleep(_RECLAIM_S)
        after = resident_mb(process.pid)
    p50, p99 = median(firsts) * 1e3, quantile(firsts, 0.99) * 1e3
    detail = f"{before:.0f} MB before {turns} turns; {rate:.0f} turns/s, first delta p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    name = f"daemon: memory, {_ACTIVE} of {_LOADED} sessions active"
    return [Row(name, installation.name, after, "MB", at_most=80.0, detail=detail)]


def _play(clients: Sequence[Client], turns: int) -> list[float]:
    """Let every client have one turn after the other; return how long each first delta took."""
    selector, firsts = selectors.DefaultSelector(), list[float]()
    begun: dict[int, float] = {}
    seen = dict.fromkeys(range(len(clients)), b"")
    left = turns

    def prompt(number: int) -> None:
        nonlocal left
        if left:
            left -= 1
            name = f"s{number + len(clients) * (left // len(clients) % (_LOADED // len(clients)))}"
            begun[number], seen[number] = perf_counter(), b""
            clients[number].socket.sendall(_call("session/prompt", "turn", sessionId=name, prompt=_TURN))

    for number, client in enumerate(clients):
        selector.register(client.socket, selectors.EVENT_READ, number)
        prompt(number)
    over = 0
    while over < turns:
        ready = selector.select(60)
        assert ready, f"nothing came for a minute; {over} of {turns} turns are over"
        for key, _ in ready:
            number = key.data
            seen[number] = seen[number][-32:] + clients[number].socket.recv(1 << 20)
            if number in begun and b"agent_message_chunk" in seen[number]:
                firsts.append(perf_counter() - begun.pop(number))
            if b'"id":"turn"' in seen[number]:
                over += 1
                prompt(number)
    return firsts


def _call(method: str, number: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": number}).encode() + b"\n"


def _settle(pid: int) -> None:
    """Wait until a process has been almost idle for a while."""
    deadline = perf_counter() + _SETTLE_S
    while perf_counter() < deadline and _share(pid, _QUIET_S) > _BUSY:
        pass


def _share(pid: int, seconds: float) -> float:
    """Return the share of a core that a process uses over so many seconds, in per cent."""
    before, begin = cpu_s(pid), perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (perf_counter() - begin) * 100
