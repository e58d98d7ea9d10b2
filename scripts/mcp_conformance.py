"""Check zot's MCP client and server with the protocol's conformance suite, and the client with servers that people use.

    python scripts/mcp_conformance.py                 # install what is missing, then run everything
    python scripts/mcp_conformance.py --only servers

The packages come from npm, each pinned to an exact version, into `build/mcp`. The suite is run for both revisions of
the protocol: every scenario that a revision requires of a client or a server must pass; the server is the one of
`zot mcp serve` with the suite's fixtures (`tests/mcp_fixtures.py`). Then the servers are started by zot itself, listed
and called. The exit code is 1 if anything failed. Packages that cannot be installed are named, and not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "mcp"
#: The suite needs a newer Node than some systems have.
PACKAGES = (
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "node@22.23.3",
)
REVISIONS = ("2025-11-25", "2026-07-28")
INSTALL_S = 600
SUITE_S = 600
CALL_S = 60


def install() -> bool:
    """Install the packages unless they are there. False if that is impossible."""
    mark = PLACE / "installed.json"
    if mark.exists() and json.loads(mark.read_text()) == list(PACKAGES):
        return True
    PLACE.mkdir(parents=True, exist_ok=True)
    command = ["npm", "install", "--no-fund", "--no-audit", "--silent", "--prefix", str(PLACE)]
    *others, node = PACKAGES  # Only Node needs its script, which fetches the program.
    try:
        for words in ([node], ["--ignore-scripts", *others]):
            subprocess.run([*command, *words], check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"not run, because they could not be installed: {', '.join(PACKAGES)} ({problem})")
        return False
    mark.write_text(json.dumps(PACKAGES))
    return True


def environment() -> dict[str, str]:
    """Return the environment of the suite and of the servers: the newer Node comes first."""
    return {**os.environ, "PATH": f"{PLACE / 'node_modules/node/bin'}:{os.environ['PATH']}"}


def run(command: list[str], env: dict[str, str], within_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what it wrote."""
    return subprocess.run(command, check=False, env=env, timeout=within_s, capture_output=True, text=True)


def run_suite() -> bool:
    """Run the client scenarios of every revision. False if a required one fails."""
    client = shlex.join([sys.executable, str(ROOT / "scripts/mcp_conformance_client.py")])
    return {scenarios_pass("client", revision, "--command", client) for revision in REVISIONS} == {True}


def run_server_suite() -> bool:
    """Run the server scenarios of every revision against the fixtures. False if a required one fails."""
    command = [sys.executable, str(ROOT / "tests/mcp_fixtures.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        passed = {scenarios_pass("server", revision, "--url", url) for revision in REVISIONS} == {True}
        server.stdin.close()
        server.wait(CALL_S)
    return passed


def scenarios_pass(role: str, revision: str, *arguments: str) -> bool:
    """Run the scenarios of one role and revision. False if a required one fails."""
    suite = PLACE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    with tempfile.TemporaryDirectory() as results:
        command = ["node", str(suite), role, "--requirements", revision, *arguments, "-o", results]
        ran = run(command, environment(), SUITE_S)
    lines = ran.stdout.split("\n")
    unscored = {line.split()[1] for line in lines if line.startswith("  ✗ ")}
    failed = [line for line in lines if line.startswith("✗ ") and line[2:].partition(":")[0] not in unscored]
    count = sum(line.startswith("✓ ") for line in lines)
    print(f"{revision}: {count} {role} scenarios passed, {len(failed)} required ones failed")
    print("".join(f"  {line}\n" for line in failed), end="")
    return count > 0 and not failed


def run_servers() -> bool:
    """Start the servers, list their tools and call one of each. False if one fails."""
    modules = PLACE / "node_modules/@modelcontextprotocol"
    node = str(PLACE / "node_modules/node/bin/node")
    everything = [node, str(modules / "server-everything/dist/index.js")]
    with tempfile.TemporaryDirectory() as home, socket.socket() as free:
        (Path(home) / "a.txt").write_text("hello")
        files = [node, str(modules / "server-filesystem/dist/index.js"), home]
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        env = {**environment(), "PORT": str(port)}
        web = subprocess.Popen(
            [*everything, "streamableHttp"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_for(port)
            return all(
                [
                    call(home, f"everything={shlex.join([*everything, 'stdio'])}", "echo", {"message": "hello"}),
                    call(home, f"files={shlex.join(files)}", "read_text_file", {"path": f"{home}/a.txt"}),
                    call(home, f"web=http://127.0.0.1:{port}/mcp", "echo", {"message": "hello"}),
                ]
            )
        finally:
            web.terminate()
            web.wait(CALL_S)


def wait_for(port: int) -> None:
    """Wait until a server listens."""
    until = time.monotonic() + CALL_S
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def call(home: str, server: str, tool: str, args: dict[str, str]) -> bool:
    """Test a server, and call one of its tools."""
    name = server.partition("=")[0]
    env = {**environment(), "ZOT_HOME": home}
    base = [sys.executable, "-m", "zot", "mcp"]
    tested = run([*base, "test", name, "--mcp", server], env, CALL_S)
    said = run([*base, "call", name, tool, json.dumps(args), "--mcp", server], env, CALL_S)
    is_good = tested.returncode == said.returncode == 0 and "hello" in said.stdout
    print(tested.stdout.strip() if is_good else f"{name} failed: {tested.stderr}{said.stdout}{said.stderr}")
    return is_good


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["suite", "server-suite", "servers"])
    asked = parser.parse_args().only
    if not install():
        return 0
    parts = {"suite": run_suite, "server-suite": run_server_suite, "servers": run_servers}
    return int(not {part() for name, part in parts.items() if asked in (None, name)} <= {True})


sys.exit(main())
