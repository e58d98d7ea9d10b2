"""A fleet on one machine: PostgreSQL, gateways, workers, scripted clients, and faults. Checks that nothing is lost.

python scripts/fleet.py --seconds 90            what `make fleet-test` runs
python scripts/fleet.py --demo                  what `make fleet-demo` runs: two gateways, three workers, one kill
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import runpy
import shutil
import signal
import socket
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
from zot.events import Done, UserMessage
from zot.journal import replay
from zot.journal.opening import open_journal

POSTGRES = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "postgres.py")))
#: How long a prompt may take in the end, and the fleet to start.
_PROMPT_S = 120.0
_START_S = 60.0


class Fleet:
    """The processes of a fleet, below one directory."""

    def __init__(self, *, workers: int, gateways: int, lease_s: float) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="zot-fleet-", dir="/tmp"))
        (self.directory / "work").mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.server = POSTGRES.Server(port=port, fast=False)
        self.store = f"{self.server.tcp_address()}?lease_s={lease_s:g}"
        self.lease_s = lease_s
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.gateways = [self._start("daemon", f"gateway{at}", "--socket", self.socket(at)) for at in range(gateways)]
        for at in range(workers):
            self.start_worker(at)

    def socket(self, gateway: int) -> str:
        return str(self.directory / f"gateway{gateway}.sock")

    def start_worker(self, at: int) -> None:
        self.workers[at] = self._start("worker", f"worker{at}", "--concurrency", "64")

    def _start(self, command: str, name: str, *flags: str) -> subprocess.Popen[bytes]:
        home = self.directory / name
        home.mkdir(exist_ok=True)
        log = (self.directory / f"{name}.log").open("ab")
        words = [sys.executable, "-m", "zot", command, "--store", self.store, "--provider", "lab", *flags]
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
        self.server.close()
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
                text = random.choice([f"!bash echo {mark} >> {self.effects}", f"!slow 4 0.1 {mark}", f"!echo {mark}"])
                turn = session.prompt(text)
                try:
                    async with asyncio.timeout(_PROMPT_S):
                        result = await turn.result()
                except zot.RpcError as problem:
                    self.refused.append(mark)
                    self.outcomes[f"refused: {problem.message[:60]}"] += 1
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
        async for seq, _ in session.follow(after=0):
            if seq:
                self.seqs.append(seq)


async def check(fleet: Fleet, talks: list[Talk]) -> list[str]:
    """Return what is wrong with what was recorded, and with what clients were sent."""
    wrong: list[str] = []
    journal = await open_journal(fleet.store)
    try:
        for talk in talks:
            events = await journal.reading(replay.events_after, talk.name, 0, 1 << 30)
            prompts = Counter(
                event.content[0].text.split()[-3 if ">>" in event.content[0].text else -1]
                for _, event in events if isinstance(event, UserMessage)
            )  # fmt: skip
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


class Takeovers:
    """How long sessions of a worker that was killed stayed with it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.lasted: list[float] = []

    async def left_to(self, pid: int) -> int:
        """Return how many sessions are marked as run by a process."""
        query = "SELECT count(*) FROM sessions WHERE owner <> '' AND position(%s::bytea IN owner) > 0"
        async with await psycopg.AsyncConnection.connect(self._fleet.server.tcp_address()) as connection:
            [(left,)] = await (await connection.execute(query, (f'"pid":{pid},'.encode(),))).fetchall()
        return int(left)

    async def measure(self, pid: int, began: float) -> None:
        """Wait until no session is left to a worker that was killed at ``began``."""
        seen = False
        while time.monotonic() - began < 60:
            try:
                left = await self.left_to(pid)
            except psycopg.OperationalError:
                return  # The server was restarted meanwhile: no fair measurement.
            seen |= left > 0
            if not left:
                if seen:
                    self.lasted.append(time.monotonic() - began)
                return
            await asyncio.sleep(0.05)
        self.lasted.append(60.0)


async def disturb(fleet: Fleet, until: float, takeovers: Takeovers, faults: Counter[str]) -> None:
    """Do harm until a time."""
    kinds = ["kill", "kill", "freeze", "drop", "restart"]
    async with asyncio.TaskGroup() as group:
        for at in range(1 << 20):
            await asyncio.sleep(random.uniform(2, 6))
            if time.monotonic() > until - 2 * fleet.lease_s - 4:
                return
            kind = kinds[at % len(kinds)]
            faults[kind] += 1
            victim = random.choice([*fleet.workers])
            process = fleet.workers[victim]
            match kind:
                case "kill":
                    process.kill()
                    began = time.monotonic()
                    await asyncio.to_thread(process.wait)
                    group.create_task(takeovers.measure(process.pid, began))
                    fleet.start_worker(victim)
                case "freeze":
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(fleet.lease_s + 2)
                    process.send_signal(signal.SIGCONT)
                case "drop":
                    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                    await asyncio.to_thread(fleet.server.execute, f"SELECT pg_terminate_backend(pid) {others}")
                case _:
                    await asyncio.to_thread(fleet.server.stop, how="fast" if at % 2 else "immediate")
                    await asyncio.to_thread(fleet.server.start)


async def kill_one(fleet: Fleet, takeovers: Takeovers, faults: Counter[str]) -> None:
    """Kill a worker in the middle, and say how long its sessions waited."""
    await asyncio.sleep(8.0)
    process = fleet.workers[0]
    for _ in range(400):  # In the middle: while it runs something.
        if await takeovers.left_to(process.pid):
            break
        await asyncio.sleep(0.02)
    process.kill()
    began = time.monotonic()
    faults["kill"] += 1
    print(f"worker 0 (process {process.pid}) is killed")
    await asyncio.to_thread(process.wait)
    await takeovers.measure(process.pid, began)
    for one in takeovers.lasted:
        print(f"its sessions are with other workers {one:.1f} s later; a lease lasts {fleet.lease_s:g} s")


async def connected(fleet: Fleet, at: int) -> zot.Client:
    client = zot.Client.connect(socket=fleet.socket(at), wait_s=_START_S)
    await client.__aenter__()
    return client


async def run(asked: argparse.Namespace) -> int:
    random.seed(asked.seed)
    fleet = await asyncio.to_thread(Fleet, workers=asked.workers, gateways=asked.gateways, lease_s=asked.lease)
    failed = True
    try:
        clients = [await connected(fleet, at) for at in range(asked.gateways)]
        talks = [Talk(f"talk{at}", fleet.directory) for at in range(asked.sessions)]
        takeovers, faults = Takeovers(fleet), Counter[str]()
        until = time.monotonic() + asked.seconds
        print(f"{asked.sessions} sessions, {asked.gateways} gateways, {asked.workers} workers, {asked.seconds} s ...")
        async with asyncio.TaskGroup() as group:
            for at, talk in enumerate(talks):
                group.create_task(talk.run(clients[at % len(clients)], until, pause_s=asked.pause))
            if asked.demo:
                group.create_task(kill_one(fleet, takeovers, faults))
            elif not asked.calm:
                group.create_task(disturb(fleet, until, takeovers, faults))
        for client in clients:
            await client.close()
        wrong = await check(fleet, talks)
        outcomes = sum((talk.outcomes for talk in talks), Counter[str]())
        late = [one for one in takeovers.lasted if one > fleet.lease_s + 1.0]
        wrong += [f"a takeover lasted {one:.1f} s" for one in late]
        print(json.dumps({
            "prompts": sum(outcomes.values()), "outcomes": outcomes, "faults": faults,
            "takeovers_s": [round(one, 2) for one in takeovers.lasted], "events": sum(len(t.seqs) for t in talks),
            "wrong": len(wrong),
        }, indent=1))  # fmt: skip
        for line in wrong[:20]:
            print("wrong:", line)
        if not wrong:
            print("no event was lost or repeated, every prompt ended once, and no command ran twice")
        failed = bool(wrong)
    finally:
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
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--demo", action="store_true", help="few sessions, and one worker is killed")
    asked = parser.parse_args()
    if asked.demo:
        asked.sessions, asked.seconds, asked.pause, asked.lease = 8, 25.0, 1.0, 3.0
    return asyncio.run(run(asked))


if __name__ == "__main__":
    sys.exit(main())
