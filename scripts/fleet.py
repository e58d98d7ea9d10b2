"""A fleet on one machine: PostgreSQL, gateways, workers, scripted clients, and faults. Checks that nothing is lost.

python scripts/fleet.py --seconds 90            what `make fleet-test` runs; --nightly takes ten minutes
python scripts/fleet.py --demo                  what `make fleet-demo` runs: two gateways, three workers, one kill
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import runpy
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg

import zot
from zot.agent.loop import UNCERTAIN_RESULT
from zot.errors import PromptLost
from zot.events import Done, ToolResult, UserMessage
from zot.journal import replay
from zot.journal.opening import open_journal

POSTGRES = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "postgres.py")))
NAMESPACES = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "namespaces.py")))
#: How long a prompt may take in the end, and the fleet to start.
_PROMPT_S = 120.0
_START_S = 60.0
_MARK = re.compile(r"talk\d+-\d+")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Fleet:
    """The processes of a fleet, below one directory, each in a network namespace of its own where that is possible.

    The last gateway and the last worker use a pooler in transaction mode, if there is one.
    """

    def __init__(self, *, workers: int, gateways: int, lease_s: float) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="zot-fleet-", dir="/tmp"))
        (self.directory / "work").mkdir()
        #: What this machine could not do.
        self.missing: list[str] = []
        #: How many calls ended in an error because their worker was lost.
        self.uncertain = 0
        self.network: Any = None
        try:
            self.network = NAMESPACES.Network()
        except NAMESPACES.CannotSeparate as problem:
            self.missing.append(f"no partitions: all processes share one network, because {problem}")
        host = "127.0.0.1" if self.network is None else self.network.address
        self.server = POSTGRES.Server(port=_free_port(), host=host, fast=False)
        self.pooler: Any = None
        if shutil.which("pgbouncer") is None:
            self.missing.append("no pooler: there is no program pgbouncer")
        else:
            self.pooler = POSTGRES.Pooler(
                self.server.directory, server_port=self.server.port, port=_free_port(), host=host
            )
        self.lease_s = lease_s
        self._pooled = {f"gateway{gateways - 1}", f"worker{workers - 1}"} if self.pooler is not None else set()
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.gateways = [self._start("daemon", f"gateway{at}", "--socket", self.socket(at)) for at in range(gateways)]
        for at in range(workers):
            self.start_worker(at)

    def store(self, name: str) -> str:
        """Return the address of the database for a process."""
        address = self.pooler.address() if name in self._pooled else self.server.tcp_address()
        return f"{address}?lease_s={self.lease_s:g}"

    def socket(self, gateway: int) -> str:
        return str(self.directory / f"gateway{gateway}.sock")

    def start_worker(self, at: int) -> None:
        self.workers[at] = self._start("worker", f"worker{at}", "--concurrency", "64")

    def _start(self, command: str, name: str, *flags: str) -> subprocess.Popen[bytes]:
        home = self.directory / name
        home.mkdir(exist_ok=True)
        log = (self.directory / f"{name}.log").open("ab")
        words = [sys.executable, "-m", "zot", command, "--store", self.store(name), "--provider", "lab", *flags]
        if self.network is not None:
            words = [*self.network.join(name), *words]
        return subprocess.Popen(
            words, cwd=self.directory / "work", env={**os.environ, "ZOT_HOME": str(home)}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip

    def close(self, *, keep: bool) -> None:
        processes = [*self.gateways, *self.workers.values()]
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.pooler is not None:
            self.pooler.close()
        self.server.close()
        if self.network is not None:
            self.network.close()
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)


class Talk:
    """One session and its client: prompts, one after the other, and everything it was sent."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.effects = directory / "work" / f"{name}.effects"
        self.sent: list[str] = []
        self.refused: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.seqs: list[int] = []

    async def run(self, client: zot.Client, until: float, *, pause_s: float) -> None:
        while True:
            try:
                session = await client.session(self.name)
                break
            except zot.RpcError as problem:
                self.outcomes[f"not opened: {problem.message[:60]}"] += 1
                await asyncio.sleep(1.0)
        following = asyncio.create_task(self._follow(session))
        number = 0
        try:
            while time.monotonic() < until:
                number += 1
                mark = f"{self.name}-{number}"
                echo = f"!bash echo {mark} >> {self.effects}"
                text = random.choice([echo, f"{echo}; sleep 0.5", f"!read {mark}", f"!slow 4 0.1 {mark}"])
                turn = session.prompt(text)
                try:
                    async with asyncio.timeout(_PROMPT_S):
                        result = await turn.result()
                except (zot.RpcError, PromptLost) as problem:  # The client knows: it ran at most once.
                    self.refused.append(mark)
                    self.outcomes[f"refused: {problem}"[:70]] += 1
                    await asyncio.sleep(1.0)
                except zot.AgentError as problem:
                    self.sent.append(mark)
                    self.outcomes[f"{type(problem).__name__}: {problem}"[:70]] += 1
                else:
                    self.sent.append(mark)
                    self.outcomes[result.outcome] += 1
                await asyncio.sleep(random.uniform(0, pause_s))
            await asyncio.sleep(1.5)
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _follow(self, session: Any) -> None:
        while True:
            try:
                async for seq, _ in session.follow(after=self.seqs[-1] if self.seqs else 0):
                    if seq:
                        self.seqs.append(seq)
            except zot.RpcError as problem:  # As while the database restarts.
                self.outcomes[f"not followed: {problem.message[:60]}"] += 1
                await asyncio.sleep(0.5)


async def check(fleet: Fleet, talks: list[Talk]) -> list[str]:
    """Return what is wrong with what was recorded, and with what clients were sent."""
    wrong: list[str] = []
    journal = await open_journal(fleet.server.address())
    try:
        for talk in talks:
            events = await journal.reading(replay.events_after, talk.name, 0, 1 << 30)
            prompts = Counter(
                mark for _, event in events if isinstance(event, UserMessage)
                for mark in _MARK.findall(event.content[0].text)[:1]
            )  # fmt: skip
            outputs = [event.content[0].text for _, event in events if isinstance(event, ToolResult)]
            fleet.uncertain += outputs.count(UNCERTAIN_RESULT)
            done = sum(isinstance(event, Done) for _, event in events)
            if done != sum(prompts.values()):
                wrong.append(f"{talk.name}: {sum(prompts.values())} prompts, {done} times done")
            wrong += [f"{mark} ran {prompts[mark]} times" for mark in talk.sent if prompts[mark] != 1]
            wrong += [f"{mark} ran {prompts[mark]} times" for mark in talk.refused if prompts[mark] > 1]
            stored = [seq for seq, _ in events]
            if talk.seqs != stored[: len(talk.seqs)]:
                wrong.append(f"{talk.name}: a client was sent {len(talk.seqs)} events with a gap or a repetition")
            if len(stored) > len(talk.seqs):
                wrong.append(f"{talk.name}: a client was sent {len(talk.seqs)} of {len(stored)} events")
            if talk.effects.exists():
                twice = [mark for mark, times in Counter(talk.effects.read_text().split()).items() if times > 1]
                wrong += [f"{mark} had its effect twice" for mark in twice]
    finally:
        await journal.close()
    return wrong


#: Notes each lease that passes from one process to another without having been released, by the database's clock.
_AUDIT = """
CREATE TABLE fleet_takeovers (session bigint, expired timestamptz, taken timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION fleet_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF EXISTS (SELECT 1 FROM sessions WHERE number = OLD.session AND owner <> '') THEN
        INSERT INTO fleet_takeovers (session, expired) VALUES (OLD.session, OLD.until);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fleet_note BEFORE UPDATE ON leases FOR EACH ROW
    WHEN (NEW.fence <> OLD.fence AND NEW.token <> OLD.token AND OLD.until < clock_timestamp())
    EXECUTE FUNCTION fleet_note();
"""
#: A session is taken over within a second of its lease's end: a worker looks every 0.4 s, and the rest is work. Where
#: other work keeps the processors busy at that moment, it takes as many times longer as the probe's work does.
_LOOK_S, _WORK_S = 0.4, 0.6
_UNIT_S = 0.02
#: Measures the machine beside the fleet: how much longer work takes than it should, and when the database was gone.
_PROBE = f"""
import json, sys, time
import psycopg
connection = None
while True:
    began, used = time.time(), time.process_time()
    while time.process_time() - used < {_UNIT_S}:
        pass
    stretch = (time.time() - began) / {_UNIT_S}
    try:
        if connection is None or connection.closed:
            connection = psycopg.connect(sys.argv[1], autocommit=True)
        asked = time.time()
        connection.execute("SELECT clock_timestamp()")
        wait = time.time() - asked
    except psycopg.Error:
        connection, wait = None, -1.0
    print(json.dumps([began, time.time(), stretch, wait]), flush=True)
    time.sleep(0.05)
"""


class Takeovers:
    """How long sessions waited for another worker after their leases had expired, and how busy the machine was."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._samples = fleet.directory / "probe"
        self._probe: subprocess.Popen[bytes] | None = None
        #: The waits in seconds, and the limit for each.
        self.waits: list[tuple[float, float]] = []

    def start(self) -> None:
        """Note takeovers from now on. The fleet's tables exist."""
        self._fleet.server.execute(_AUDIT)
        words = [sys.executable, "-c", _PROBE, self._fleet.server.address()]
        self._probe = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self._samples.open("wb"))

    def stop(self) -> None:
        """Stop to measure."""
        if self._probe is not None:
            self._probe.kill()
            self._probe.wait()

    async def left_to(self, pid: int) -> int:
        """Return how many sessions are marked as run by a process."""
        query = "SELECT count(*) FROM sessions WHERE owner <> '' AND position(%s::bytea IN owner) > 0"
        async with await psycopg.AsyncConnection.connect(self._fleet.server.address()) as connection:
            [(left,)] = await (await connection.execute(query, (f'"pid":{pid},'.encode(),))).fetchall()
        return int(left)

    async def read(self) -> None:
        """Read what was noted. Call it once, at the end."""
        self.stop()
        query = (
            "SELECT CAST(extract(epoch FROM expired) AS float8), CAST(extract(epoch FROM taken) AS float8)"
            " FROM fleet_takeovers ORDER BY taken"
        )
        async with await psycopg.AsyncConnection.connect(self._fleet.server.address()) as connection:
            found = await (await connection.execute(query)).fetchall()
        lines = self._samples.read_text().split("\n")[:-1]
        samples = [tuple(json.loads(line)) for line in lines]
        self.waits = [_judged(expired, taken, samples) for expired, taken in found]

    @property
    def late(self) -> list[str]:
        """What was too late."""
        return [
            f"a session was taken over {wait:.2f} s after its lease had expired; {limit:.2f} s are allowed"
            for wait, limit in self.waits if wait > limit
        ]  # fmt: skip


def _judged(expired: float, taken: float, samples: list[tuple[float, ...]]) -> tuple[float, float]:
    """Return how long a session waited while the database was there, and how long it may have waited."""
    meanwhile = [one for one in samples if one[1] >= expired and one[0] <= taken]
    gone = [ended for _, ended, _, wait in meanwhile if wait < 0]
    since = max([expired, *gone])
    meanwhile = [one for one in meanwhile if one[1] >= since]
    stretch = statistics.mean([one[2] for one in meanwhile] or [1.0])
    waiting = statistics.mean([one[3] for one in meanwhile] or [0.0])
    return taken - since, (_LOOK_S + _WORK_S) * max(1.0, stretch) + waiting


async def disturb(fleet: Fleet, until: float, faults: Counter[str]) -> None:
    """Do harm until a time."""
    kinds = ["kill", "freeze", "kill", "cut", "drop", "kill", "cut gateway", "restart"]
    if fleet.network is None:
        kinds = [kind for kind in kinds if not kind.startswith("cut")]
    for at in range(1 << 20):
        await asyncio.sleep(random.uniform(2, 5))
        if time.monotonic() > until - 2 * fleet.lease_s - 4:
            return
        kind = kinds[at % len(kinds)]
        faults[kind] += 1
        victim = random.choice([*fleet.workers])
        process = fleet.workers[victim]
        match kind:
            case "kill":
                process.kill()
                await asyncio.to_thread(process.wait)
                fleet.start_worker(victim)
            case "freeze":
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(fleet.lease_s + 2)
                process.send_signal(signal.SIGCONT)
            case "cut" | "cut gateway":
                assert fleet.network is not None
                name = f"worker{victim}" if kind == "cut" else f"gateway{random.randrange(len(fleet.gateways))}"
                await asyncio.to_thread(fleet.network.cut, name)
                await asyncio.sleep(fleet.lease_s + 2)
                await asyncio.to_thread(fleet.network.mend, name)
            case "drop":
                others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                await asyncio.to_thread(fleet.server.execute, f"SELECT pg_terminate_backend(pid) {others}")
            case _:
                await asyncio.to_thread(fleet.server.stop, how="fast" if faults[kind] % 2 else "immediate")
                await asyncio.to_thread(fleet.server.start)


async def kill_one(fleet: Fleet, takeovers: Takeovers, faults: Counter[str]) -> None:
    """Kill a worker in the middle."""
    await asyncio.sleep(8.0)
    process = fleet.workers[0]
    for _ in range(400):  # In the middle: while it runs something.
        if await takeovers.left_to(process.pid):
            break
        await asyncio.sleep(0.02)
    process.kill()
    faults["kill"] += 1
    print(f"worker 0 (process {process.pid}) is killed")
    await asyncio.to_thread(process.wait)


async def connected(fleet: Fleet, at: int) -> zot.Client:
    client = zot.Client.connect(socket=fleet.socket(at), wait_s=_START_S)
    await client.__aenter__()
    return client


async def run(asked: argparse.Namespace) -> int:
    random.seed(asked.seed)
    fleet = await asyncio.to_thread(Fleet, workers=asked.workers, gateways=asked.gateways, lease_s=asked.lease)
    failed, takeovers = True, Takeovers(fleet)
    try:
        clients = [await connected(fleet, at) for at in range(asked.gateways)]
        talks = [Talk(f"talk{at}", fleet.directory) for at in range(asked.sessions)]
        faults = Counter[str]()
        await asyncio.to_thread(takeovers.start)
        until = time.monotonic() + asked.seconds
        print(f"{asked.sessions} sessions, {asked.gateways} gateways, {asked.workers} workers, {asked.seconds} s ...")
        async with asyncio.TaskGroup() as group:
            for at, talk in enumerate(talks):
                group.create_task(talk.run(clients[at % len(clients)], until, pause_s=asked.pause))
            if asked.demo:
                group.create_task(kill_one(fleet, takeovers, faults))
            elif not asked.calm:
                group.create_task(disturb(fleet, until, faults))
        for client in clients:
            await client.close()
        await takeovers.read()
        wrong = [*await check(fleet, talks), *takeovers.late]
        outcomes = sum((talk.outcomes for talk in talks), Counter[str]())
        longest = [[round(one, 2) for one in both] for both in sorted(takeovers.waits, reverse=True)[:5]]
        print(json.dumps({
            "seed": asked.seed, "prompts": sum(outcomes.values()), "outcomes": outcomes,
            "faults": faults,
            "takeovers": len(takeovers.waits), "waits after the lease's end, longest, and their limits, s": longest,
            "uncertain calls": fleet.uncertain,
            "events": sum(len(talk.seqs) for talk in talks), "wrong": len(wrong),
        }, indent=1))  # fmt: skip
        for line in fleet.missing:
            print("not tried:", line)
        for line in wrong[:20]:
            print("wrong:", line)
        if not wrong:
            print("no event was lost or repeated, every prompt ended once, and no command ran twice")
        failed = bool(wrong)
    finally:
        takeovers.stop()
        await asyncio.to_thread(fleet.close, keep=failed)
        if failed:
            print(f"logs: {fleet.directory}")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--lease", type=float, default=5.0)
    parser.add_argument("--pause", type=float, default=30.0, help="the longest pause of a client between two prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nightly", action="store_true", help="ten minutes")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--demo", action="store_true", help="few sessions, and one worker is killed")
    asked = parser.parse_args()
    if asked.nightly:
        asked.seconds = 600.0
    if asked.demo:
        asked.sessions, asked.seconds, asked.pause, asked.lease = 8, 25.0, 1.0, 3.0
    return asyncio.run(run(asked))


if __name__ == "__main__":
    sys.exit(main())
