"""The script of `make lab-agents`, with an agent that is written here: the real ones need a network to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "lab_agents.py"

#: Reads llm's configuration, asks once, notes its surroundings, and leaves a process in a session of its own.
AGENT = """\
#!{python}
import json, os, pathlib, socket, subprocess, sys, urllib.request
home = pathlib.Path(os.environ["HOME"])
model, = json.loads((home / ".config/io.datasette.llm/extra-openai-models.yaml").read_text())
question = {{"model": model["model_name"], "messages": [{{"role": "user", "content": sys.argv[-1]}}]}}
with urllib.request.urlopen(model["api_base"] + "/chat/completions", json.dumps(question).encode()) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
orphan = subprocess.Popen(["sleep", "600"], start_new_session=True)
interfaces = [name for _, name in socket.if_nameindex()]
seen = {{"interfaces": interfaces, "orphan": orphan.pid, "home": str(home), **os.environ}}
pathlib.Path({notes!r}).write_text(json.dumps(seen))
"""


def test_an_agent_sees_only_the_loopback_interface_and_leaves_no_process(tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    fake(tmp_path / "cache", AGENT.format(python=sys.executable, notes=str(notes)))
    done = run(tmp_path / "cache", "answer", {"OPENAI_API_KEY": "a key of the user"})
    assert done.stdout.splitlines()[-1] == "| llm | 0.36 | chat | yes |", done.stderr
    assert done.returncode == 0
    seen = json.loads(notes.read_text())
    assert seen["interfaces"] == ["lo"] or "no network namespace" in done.stderr
    assert seen["HTTPS_PROXY"] == "http://127.0.0.1:9"
    assert not Path(f"/proc/{seen['orphan']}").exists()
    assert not Path(seen["home"]).exists()
    assert "OPENAI_API_KEY" not in seen


def test_an_agent_that_does_not_end_is_ended_and_fails_its_scene(tmp_path: Path) -> None:
    fake(tmp_path / "cache", "#!/bin/sh\nsleep 600\n")
    done = run(tmp_path / "cache", "answer", {}, "--timeout", "0.2")
    assert done.stdout.splitlines()[-1] == "| llm | 0.36 | chat | **no** |", done.stderr
    assert done.returncode == 1
    assert "exit codes [None]" in (tmp_path / "cache/logs/llm-chat-answer/result").read_text()


def fake(cache: Path, program: str) -> None:
    """Put a program where the script expects the agent llm."""
    place = cache / "llm-0.36"
    (place / "bin").mkdir(parents=True)
    (place / "installed.json").write_text(json.dumps(["llm==0.36"]))
    (place / "bin/llm").write_text(program)
    (place / "bin/llm").chmod(0o755)


def run(cache: Path, scene: str, env: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    """Play one scene with the agent llm."""
    command = [sys.executable, str(SCRIPT), "llm", "--scene", scene, "--cache", str(cache), *flags]
    environment = {**os.environ, **env}
    return subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
