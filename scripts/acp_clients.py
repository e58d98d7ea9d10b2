"""Run real clients of the Agent Client Protocol against `zot acp`, and the tests against the published schema.

    python scripts/acp_clients.py

acpx and the schema come from npm, pinned, into the cache that `lab_agents.py` uses. The exit code is 1 if a scene or a
test failed, or if a package could not be installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
from lab_agents import NODE, ROOT, Agent, adopt_orphans, end_children, install

ACPX = Agent("acpx", "npm", ["acpx@0.19.1", "@agentclientprotocol/sdk@2.4.0"], [], lambda *_: [])
CACHE = ROOT / ".lab-agents"
MAX_RETRIES = 3
PATIENCE_S = 60.0
#: The definition of each frame that zot sends by itself.
SENT = {
    "session/update": "SessionNotification",
    "session/request_permission": "RequestPermissionRequest",
    "fs/read_text_file": "ReadTextFileRequest",
    "fs/write_text_file": "WriteTextFileRequest",
}


class Acpx:
    """The client in a directory and a home of its own."""

    def __init__(self, directory: Path, schema: dict[str, Any]) -> None:
        self.cwd = directory
        self._schema = schema
        self._zot = shlex.join([sys.executable, "-m", "zot", "acp", "--provider", "lab", "--policy", "bash=ask"])
        home = directory / "home"
        home.mkdir()
        path = f"{NODE.path(CACHE)}:{ACPX.path(CACHE)}:{os.environ['PATH']}"
        self._env = {"PATH": path, "HOME": str(home), "ZOT_HOME": str(home / "zot"), "LC_ALL": "C.UTF-8"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the client with these words."""
        argv = ["acpx", "--agent", self._zot, "--format", "json", "--json-strict", "--ttl", "1", *words]
        return subprocess.Popen(
            argv, cwd=self.cwd, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )

    def run(self, *words: str) -> list[dict[str, Any]]:
        """Return the frames that the client has sent and received.

        acpx keeps a process of its own for a second; a call that meets its end is refused before it reaches zot.
        """
        frames = self.frames(self.start(*words).communicate(timeout=PATIENCE_S)[0])
        for _ in range(MAX_RETRIES):
            if not any(_is_retryable(frame) for frame in frames):
                break
            frames = self.frames(self.start(*words).communicate(timeout=PATIENCE_S)[0])
        return frames

    def frames(self, output: str) -> list[dict[str, Any]]:
        """Decode the client's output, and check every frame of zot in it."""
        found: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for frame in found:
            if name := SENT.get(frame.get("method", "")):
                definition = {"$ref": f"#/$defs/{name}", "$defs": self._schema["$defs"]}
                jsonschema_rs.validator_for(definition).validate(frame["params"])
        return found


def _is_retryable(frame: dict[str, Any]) -> bool:
    data = (frame.get("error") or {}).get("data")
    return isinstance(data, dict) and data.get("origin") == "queue" and data.get("retryable") is True


def stop_of(frames: Sequence[dict[str, Any]]) -> str:
    """Return the only stop reason, after which there is nothing."""
    stops = [at for at, one in enumerate(frames) if "stopReason" in (one.get("result") or {})]
    assert stops == [len(frames) - 1], frames
    return str(frames[-1]["result"]["stopReason"])


def approval(acpx: Acpx) -> None:
    """An approved command runs, a denied one does not."""
    assert stop_of(acpx.run("--approve-all", "exec", "!bash touch made")) == "end_turn"
    assert (acpx.cwd / "made").exists()
    assert stop_of(acpx.run("--deny-all", "exec", "!bash touch denied")) == "end_turn"
    assert not (acpx.cwd / "denied").exists()


def files(acpx: Acpx) -> None:
    """Files are written and edited through the client."""
    frames = acpx.run("--approve-all", "exec", "!write a.txt one")
    assert [one["params"]["content"] for one in frames if one.get("method") == "fs/write_text_file"] == ["one"]
    assert (acpx.cwd / "a.txt").read_text() == "one"
    acpx.run("--approve-all", "exec", "!edit a.txt one two")
    assert (acpx.cwd / "a.txt").read_text() == "two"


def resumption(acpx: Acpx) -> None:
    """A second process continues the session of the first."""
    acpx.run("sessions", "new")
    asked = [acpx.run("prompt", f"!echo {word}") for word in ("one", "two")]
    assert [stop_of(frames) for frames in asked] == ["end_turn"] * 2
    [session] = {one["params"]["sessionId"] for frames in asked for one in frames if one.get("method") in SENT}
    [listed] = [one for frame in acpx.run("sessions", "list") for one in frame.get("sessions", ())]
    assert (listed["sessionId"], listed["title"]) == (session, "!echo one")


def cancellation(acpx: Acpx) -> None:
    """A cancelled prompt ends once, with that reason."""
    acpx.run("sessions", "new")
    running = acpx.start("prompt", "!stall-mid")
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if "agent_message_chunk" in line:
            break
    acpx.run("cancel")
    lines += running.communicate(timeout=PATIENCE_S)[0].splitlines(keepends=True)
    assert stop_of(acpx.frames("".join(lines))) == "cancelled"


SCENES: Sequence[Callable[[Acpx], None]] = (approval, files, resumption, cancellation)


@contextmanager
def stage(schema: dict[str, Any]) -> Iterator[Acpx]:
    """A client in an empty directory; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="zot-acpx-") as directory:
        try:
            yield Acpx(Path(directory), schema)
        finally:
            end_children()


def main() -> int:
    """Return 1 if anything failed."""
    for package in (NODE, ACPX):
        if problem := install(package, CACHE):
            print(f"{package.name} {package.version} could not be installed: {problem}")
            return 1
    adopt_orphans()
    published = ACPX.home(CACHE) / "node_modules/@agentclientprotocol/sdk/schema/v1/schema.json"
    schema = json.loads(published.read_text())
    failed = 0
    for scene in SCENES:
        begun = time.monotonic()
        try:
            with stage(schema) as acpx:
                scene(acpx)
        except (AssertionError, OSError, subprocess.TimeoutExpired, jsonschema_rs.ValidationError) as problem:
            failed += 1
            print(f"{scene.__name__}: failed: {problem!r}")
        else:
            print(f"{scene.__name__}: passed in {time.monotonic() - begun:.1f} s")
    tests = [
        str(ROOT / "tests" / name)
        for name in (
            "serve/test_acp.py",
            "serve/test_acp_conformance.py",
            "serve/test_acp_conversations.py",
            "serve/test_acp_daemon.py",
            "wire/test_acp.py",
        )
    ]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:inline_snapshot", *tests]
    tested = subprocess.run(argv, check=False, cwd=ROOT, env={**os.environ, "ACP_SCHEMA": str(published)})
    return 1 if failed or tested.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
