"""The bridges, run as their readers will run them: against the real zot, with the model that needs no key."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from harness import PATIENCE_S, environment, serving
from hosts import Hosts
from optional import available
from zot.providers.lab.script import Script

HOST = Path(__file__).parents[2] / "examples" / "host"
Command: TypeAlias = Sequence[str | Path]

BRIDGES: Mapping[str, Command] = {
    "python": (sys.executable, HOST / "bridge.py"),
    **({"node": ("node", HOST / "bridge.mjs")} if available("node", "the bridge in Node") else {}),
    **(
        {"shell": ("bash", HOST / "bridge.sh")}
        if available("bash", "the bridge in shell") & available("jq", "the bridge in shell")
        else {}
    ),
}
every_bridge = pytest.mark.parametrize("bridge", BRIDGES.values(), ids=BRIDGES)
SORRY = "Sorry, I cannot answer right now.\n"


def run(bridge: Command, directory: Path, message: str, *flags: str) -> tuple[int, str, str]:
    """Give a bridge one message; return its exit code and output."""
    zot = directory / "zot"
    zot.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m zot "$@"\n')
    zot.chmod(0o755)
    more = {"ZOT": str(zot), "ZOT_HOME": str(directory / "home"), "BRIDGE_TIMEOUT_S": str(PATIENCE_S)}
    done = subprocess.run(
        [*bridge, "me", message, *(flags or ("--provider", "lab"))], cwd=directory, env=environment(more),
        capture_output=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@every_bridge
def test_a_bridge_logs_the_error_and_sends_a_kind_text_to_the_chat(bridge: Command, tmp_path: Path) -> None:
    code, out, errors = run(bridge, tmp_path, "!status 401")
    assert (code, out, errors.splitlines()) == (1, SORRY, ["PROVIDER_AUTH: lab: http 401: status 401, as scripted"])
    assert run(bridge, tmp_path, " ") == (1, SORRY, "INVALID_REQUEST: prompt is blank\n")


@pytest.mark.parametrize("bridge", [bridge for name, bridge in BRIDGES.items() if name != "shell"])
def test_a_bridge_reports_a_missing_zot(bridge: Command, tmp_path: Path) -> None:
    done = subprocess.run(
        [*bridge, "me", "hello"], env=environment({"ZOT": str(tmp_path / "nothing")}), capture_output=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode()) == (1, SORRY)
    assert done.stderr.startswith(b"INTERNAL: zot cannot be run: ")
    assert done.stderr.count(b"\n") == 1


@every_bridge
def test_a_bridge_prints_the_answer_and_retries_where_it_helps_without_repeating_a_prompt(
    bridge: Command, hosts: Hosts
) -> None:
    question, answer = 'Hi "there" $HOME \u2028 你好', "It's \u2028 你好."
    with serving(Script.parse(f'say "half"\ncut\n---\nsay "{answer}"')) as url:
        flags = ("--provider", "anthropic", "--api-key", "k", "--base-url", url)
        assert run(bridge, hosts.directory, question, *flags) == (0, f"{answer}\n", "")
    assert hosts.transcript("host:me") == [("user", question), ("assistant", answer)]
