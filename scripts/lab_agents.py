"""Run real coding agents against `zot lab serve` and print a table of agents and scenes.

    python scripts/lab_agents.py                       # install what is missing, run everything
    python scripts/lab_agents.py codex pi --scene shell

Agents come from npm and PyPI, each pinned to an exact version, into a cache outside of the source tree's version
control. They run in a network namespace that has nothing but the loopback interface, with telemetry off, a temporary
home directory and an environment without the user's variables. Where the system refuses a namespace, proxy settings
that lead nowhere are the only barrier, and the script says so.

The exit code is 1 if a scene failed. The output of every scene is kept in the cache's `logs` directory.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
INSTALL_S = 1200
SERVER_S = 60
MODEL = "lab-1"
KEY = "lab-key"


@dataclass(frozen=True)
class Target:
    """The lab server that an agent has to call, and the API it has to speak."""

    url: str
    api: str


@dataclass(frozen=True, eq=False)
class Agent:
    """One agent: its package, its configuration, and the command that sends one prompt.

    ``files`` maps paths in the agent's home directory to their content. ``command`` gets the prompt and whether to
    continue the conversation before it. ``lacks`` names the scenes that the agent has no means to play.
    """

    name: str
    source: str
    packages: Sequence[str]
    apis: Sequence[str]
    command: Callable[[Target, str, bool], list[str]]
    env: Callable[[Target], Mapping[str, str]] = lambda target: {}
    files: Callable[[Target], Mapping[str, str]] = lambda target: {}
    lacks: Sequence[str] = ()
    scripts: bool = False

    @property
    def version(self) -> str:
        """The pinned version of the agent's own package."""
        return re.split("==|@", self.packages[0])[-1]

    def home(self, cache: Path) -> Path:
        """Where the agent is installed."""
        return cache / f"{self.name}-{self.version}"

    def path(self, cache: Path) -> Path:
        """The directory of the agent's executables."""
        return self.home(cache) / ("node_modules/.bin" if self.source == "npm" else "bin")


@dataclass(frozen=True)
class Outcome:
    """The end of one or more commands of an agent."""

    output: str
    codes: Sequence[int | None]
    workplace: Path

    @property
    def ended(self) -> bool:
        """Whether every command ended by itself."""
        return None not in self.codes


@dataclass(frozen=True)
class Scene:
    """Prompts for one conversation, and the check that the agent understood the answers.

    No prompt contains the text that its check looks for: some agents print the prompt.
    """

    name: str
    prompts: Sequence[str]
    check: Callable[[Outcome], bool]


def _says(*texts: str) -> Callable[[Outcome], bool]:
    return lambda outcome: set(outcome.codes) == {0} and all(text in outcome.output for text in texts)


def _shell_ran(outcome: Outcome) -> bool:
    return (outcome.workplace / "made-by-shell").exists() and _says("finished.")(outcome)


def _steps_ran(outcome: Outcome) -> bool:
    made = outcome.workplace / "steps"
    return made.exists() and made.read_text() == "one\ntwo\n" and _says("pomegranate")(outcome)


def _reports_401(outcome: Outcome) -> bool:
    return outcome.ended and bool(re.search(r"(?i)401, as scripted|unauthori[sz]ed|authenticat", outcome.output))


SCENES = (
    Scene("answer", ['!script say "pome" "granate"'], _says("pomegranate")),
    Scene("shell", ["!bash touch made-by-shell"], _shell_ran),
    Scene(
        "steps",
        ['!script shell "echo one >> steps" ;; --- ;; shell "echo two >> steps" ;; --- ;; say "pome" "granate"'],
        _steps_ran,
    ),
    Scene("demo", ["Show me what you can do."], _says("Done:", "Every byte of this came from a script")),
    Scene("429", ["!limit 1"], _says("Answered after the limit.")),
    Scene("overloaded", ["!retry 2"], _says("Answered after 2 failures.")),
    Scene("401", ["!status 401"], _reports_401),
    Scene(
        "next prompt",
        ['!script say "pome" "granate"', '!script say "car" "ambola"'],
        _says("pomegranate", "carambola"),
    ),
)


# --- The agents ---------------------------------------------------------------------------------------------------


def _codex(target: Target, prompt: str, again: bool) -> list[str]:
    resume = ["resume", "--last"] if again else []
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["codex", "exec", *resume, *flags, prompt]


def _codex_files(target: Target) -> dict[str, str]:
    config = f"""\
model = "{MODEL}"
model_provider = "lab"
check_for_update_on_startup = false

[model_providers.lab]
name = "lab"
base_url = "{target.url}/v1"
wire_api = "responses"
env_key = "LAB_KEY"

[analytics]
enabled = false

[feedback]
enabled = false
"""
    return {".codex/config.toml": config}


def _claude(target: Target, prompt: str, again: bool) -> list[str]:
    return ["claude", "--print", *(["--continue"] if again else []), "--allowedTools=Bash", f"--model={MODEL}", prompt]


def _claude_env(target: Target) -> dict[str, str]:
    switches = (
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_AUTOUPDATER",
        "DISABLE_BUG_COMMAND",
        "DISABLE_ERROR_REPORTING",
        "DISABLE_TELEMETRY",
    )
    base = {"ANTHROPIC_BASE_URL": target.url, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_SMALL_FAST_MODEL": MODEL}
    return {**base, **dict.fromkeys(switches, "1")}


def _pi(target: Target, prompt: str, again: bool) -> list[str]:
    resume = ["--continue"] if again else []
    return ["pi", "--print", *resume, "--provider", "lab", "--model", MODEL, prompt]


_PI_APIS = {
    "anthropic": ("anthropic-messages", ""),
    "responses": ("openai-responses", "/v1"),
    "chat": ("openai-completions", "/v1"),
    "gemini": ("google-generative-ai", "/v1beta"),
}


def _pi_files(target: Target) -> dict[str, str]:
    api, path = _PI_APIS[target.api]
    provider = {"baseUrl": target.url + path, "api": api, "apiKey": KEY, "models": [{"id": MODEL, "name": MODEL}]}
    return {".pi/agent/models.json": json.dumps({"providers": {"lab": provider}})}


def _opencode(target: Target, prompt: str, again: bool) -> list[str]:
    # From standard input: arguments with spaces arrive in quotation marks, and numbers not at all.
    run = f"opencode run {'--continue' if again else ''} --auto --model lab/{MODEL}"
    return ["sh", "-c", f'printf %s "$1" | {run}', "sh", prompt]


_OPENCODE_APIS = {
    "anthropic": ("@ai-sdk/anthropic", "/v1"),
    "responses": ("@ai-sdk/openai", "/v1"),
    "chat": ("@ai-sdk/openai-compatible", "/v1"),
    "gemini": ("@ai-sdk/google", "/v1beta"),
}


def _opencode_files(target: Target) -> dict[str, str]:
    package, path = _OPENCODE_APIS[target.api]
    provider = {
        "npm": package,
        "name": "lab",
        "options": {"baseURL": target.url + path, "apiKey": KEY},
        "models": {MODEL: {"name": MODEL}},
    }
    config = {"provider": {"lab": provider}, "autoupdate": False, "share": "disabled", "enabled_providers": ["lab"]}
    return {".config/opencode/opencode.json": json.dumps(config)}


def _gemini(target: Target, prompt: str, again: bool) -> list[str]:
    resume = ["--resume", "latest"] if again else []
    return ["gemini", *resume, "--yolo", "--skip-trust", "--model", MODEL, "--prompt", prompt]


def _gemini_files(target: Target) -> dict[str, str]:
    settings = {
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
    }
    return {".gemini/settings.json": json.dumps(settings)}


def _qwen(target: Target, prompt: str, again: bool) -> list[str]:
    resume = ["--continue"] if again else []
    return ["qwen", *resume, "--yolo", "--model", MODEL, "--auth-type", "openai", "--prompt", prompt]


def _qwen_files(target: Target) -> dict[str, str]:
    settings = {
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "security": {"auth": {"selectedType": "openai"}},
    }
    return {".qwen/settings.json": json.dumps(settings)}


_LLM_SHELL = '''\
import subprocess


def bash(command: str) -> str:
    """Run a command in the shell and return its output."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60).stdout
'''


def _llm(target: Target, prompt: str, again: bool) -> list[str]:
    resume = ["--continue"] if again else []
    return ["llm", "prompt", *resume, "--functions", _LLM_SHELL, "--chain-limit", "9", "--model", MODEL, prompt]


def _llm_files(target: Target) -> dict[str, str]:
    model = {
        "model_id": MODEL,
        "model_name": MODEL,
        "api_base": f"{target.url}/v1",
        "api_key_name": "lab",
        "supports_tools": True,
    }
    place = ".config/io.datasette.llm"
    return {f"{place}/extra-openai-models.yaml": json.dumps([model]), f"{place}/keys.json": json.dumps({"lab": KEY})}


_PYDANTIC_PROGRAM = '''\
import pathlib
import subprocess
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter

API, URL, KEY, MODEL, PROMPT = sys.argv[1:]
HISTORY = pathlib.Path("history.json")

if API == "anthropic":
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    model = AnthropicModel(MODEL, provider=AnthropicProvider(api_key=KEY, base_url=URL))
elif API == "gemini":
    from google.genai import Client
    from google.genai.types import HttpOptions, HttpRetryOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    # Without these options the vendor's client never retries.
    options = HttpOptions(base_url=URL, retry_options=HttpRetryOptions(attempts=5))
    model = GoogleModel(MODEL, provider=GoogleProvider(client=Client(api_key=KEY, http_options=options)))
else:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if API == "chat" else OpenAIResponsesModel
    model = kind(MODEL, provider=OpenAIProvider(api_key=KEY, base_url=URL + "/v1"))

agent = Agent(model)


@agent.tool_plain
def bash(command: str) -> str:
    """Run a command in the shell and return its output."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60).stdout


history = ModelMessagesTypeAdapter.validate_json(HISTORY.read_bytes()) if HISTORY.exists() else []
result = agent.run_sync(PROMPT, message_history=history)
HISTORY.write_bytes(result.all_messages_json())
print(result.output)
'''


def _pydantic(target: Target, prompt: str, again: bool) -> list[str]:
    return ["python", "-c", _PYDANTIC_PROGRAM, target.api, target.url, KEY, MODEL, prompt]


_AIDER_PREFIXES = {"anthropic": "anthropic", "chat": "openai", "gemini": "gemini"}


def _aider(target: Target, prompt: str, again: bool) -> list[str]:
    flags = (
        "--yes-always --no-git --no-analytics --analytics-disable --no-check-update --no-show-model-warnings "
        "--no-show-release-notes --no-fancy-input --no-pretty --no-detect-urls --no-gitignore --map-tokens 0"
    )
    resume = ["--restore-chat-history"] if again else []
    # A message whose first character is "!" would be a command for aider's own shell.
    return [
        "aider",
        *flags.split(),
        *resume,
        "--model",
        f"{_AIDER_PREFIXES[target.api]}/{MODEL}",
        "--message",
        " " + prompt,
    ]


def _aider_files(target: Target) -> dict[str, str]:
    # By default aider appends its instructions to the prompt, which is then no built-in scene any more. In Gemini's API
    # they would become a text of the user all the same: one more than lab can tell from a new prompt.
    reminder = "none" if target.api == "gemini" else "sys"
    settings = [{"name": f"{_AIDER_PREFIXES[target.api]}/{MODEL}", "reminder": reminder}]
    return {".aider.model.settings.yml": json.dumps(settings)}


def _aider_env(target: Target) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": f"{target.url}/v1",
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_BASE": target.url,
        "ANTHROPIC_API_KEY": KEY,
        "GEMINI_API_BASE": f"{target.url}/v1beta",
        "GEMINI_API_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


AGENTS = (
    Agent("codex", "npm", ["@openai/codex@0.169.0"], ["responses"], _codex, lambda _: {"LAB_KEY": KEY}, _codex_files),
    Agent(
        "claude",
        "npm",
        ["@anthropic-ai/claude-code@2.1.326"],
        ["anthropic"],
        _claude,
        _claude_env,
        scripts=True,
    ),
    Agent(
        "pi",
        "npm",
        ["@earendil-works/pi-coding-agent@0.87.1"],
        ["anthropic", "responses", "chat", "gemini"],
        _pi,
        lambda _: {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"},
        _pi_files,
    ),
    Agent(
        "opencode",
        "npm",
        ["opencode-ai@1.18.33"],
        ["anthropic", "responses", "chat", "gemini"],
        _opencode,
        lambda _: dict.fromkeys(
            ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1"
        ),
        _opencode_files,
        scripts=True,
    ),
    Agent(
        "gemini",
        "npm",
        ["@google/gemini-cli@0.61.0"],
        ["gemini"],
        _gemini,
        lambda target: {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": target.url},
        _gemini_files,
    ),
    Agent(
        "qwen",
        "npm",
        ["@qwen-code/qwen-code@0.24.4"],
        ["chat"],
        _qwen,
        lambda target: {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{target.url}/v1", "OPENAI_MODEL": MODEL},
        _qwen_files,
    ),
    Agent(
        "pydantic-ai",
        "pip",
        ["pydantic-ai-slim[anthropic,google,openai]==2.62.0"],
        ["anthropic", "responses", "chat", "gemini"],
        _pydantic,
    ),
    Agent("llm", "pip", ["llm==0.36"], ["chat"], _llm, files=_llm_files),
    Agent(
        "aider",
        "pip",
        ["aider-chat==0.86.2"],
        ["anthropic", "chat", "gemini"],
        _aider,
        _aider_env,
        _aider_files,
        lacks=["shell", "steps", "demo"],
    ),
)


# --- Installing ---------------------------------------------------------------------------------------------------


def install(agent: Agent, cache: Path) -> str:
    """Install an agent unless it is there; return the reason if that fails, else ""."""
    if installed(agent, cache):
        return ""
    print(f"installing {', '.join(agent.packages)}", file=sys.stderr, flush=True)
    home = agent.home(cache)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    env = {**os.environ, "PATH": f"{NODE.path(cache)}:{os.environ['PATH']}"}
    for command in _install_commands(agent, home):
        try:
            done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=INSTALL_S)
        except (OSError, subprocess.TimeoutExpired) as problem:
            return f"{command[0]}: {problem}"
        if done.returncode:
            return done.stderr.strip() or f"{command[0]} ended with {done.returncode}"
    _mark(agent, cache).write_text(json.dumps(list(agent.packages)))
    return ""


def installed(agent: Agent, cache: Path) -> bool:
    """Whether exactly the pinned packages are there."""
    mark = _mark(agent, cache)
    return mark.exists() and json.loads(mark.read_text()) == list(agent.packages)


def _mark(agent: Agent, cache: Path) -> Path:
    return agent.home(cache) / "installed.json"


NODE = Agent("node", "npm", ["node@24.21.0"], [], lambda *_: [], scripts=True)


def _install_commands(agent: Agent, home: Path) -> list[list[str]]:
    if agent.source == "npm":
        flags = ["--no-audit", "--no-fund", "--loglevel=error", *([] if agent.scripts else ["--ignore-scripts"])]
        return [["npm", "install", f"--prefix={home}", *flags, *agent.packages]]
    return [
        [sys.executable, "-m", "venv", str(home)],
        [str(home / "bin/python"), "-m", "pip", "install", "--quiet", *agent.packages],
    ]


# --- Isolation ----------------------------------------------------------------------------------------------------


def isolate(argv: Sequence[str]) -> None:
    """Start over inside a network namespace of its own; return only if the system has none to give."""
    for flags in (["--net"], ["--user", "--map-root-user", "--net"]):
        try:
            probe = subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return
        if probe.returncode == 0:
            os.execvp("unshare", ["unshare", *flags, sys.executable, __file__, *argv, "--isolated"])


def raise_loopback() -> None:
    """Switch the loopback interface of a new namespace on."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = fcntl.ioctl(handle, get_flags, struct.pack("16sh22x", b"lo", 0))
        name, flags = struct.unpack("16sh22x", request)
        fcntl.ioctl(handle, set_flags, struct.pack("16sh22x", name, flags | up))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none of them escapes."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def end_children() -> None:
    """Kill the remaining children of this process, and those it adopts meanwhile, each by its id."""
    deadline = time.monotonic() + 30
    while (children := _children()) and time.monotonic() < deadline:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


# --- Running ------------------------------------------------------------------------------------------------------


@contextmanager
def lab(log: Path) -> Iterator[str]:
    """Serve the built-in script on a free port of the loopback interface; yield its base URL."""
    command = [sys.executable, "-m", "zot", "lab", "serve", "--log"]
    with log.open("wb") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:
        try:
            assert server.stdout is not None
            ready, _, _ = select.select([server.stdout], [], [], SERVER_S)
            url = server.stdout.readline().decode().strip() if ready else ""
            if not url:
                raise SystemExit(f"zot lab serve did not start:\n{log.read_text()}")
            yield url.rstrip("/")
        finally:
            server.kill()


@dataclass(frozen=True)
class Runner:
    """Plays scenes with installed agents."""

    cache: Path
    timeout_s: float

    def result(self, agent: Agent, api: str, scene: Scene) -> str:
        """Return the table's cell for a scene, and print it as soon as it is known."""
        if not installed(agent, self.cache):
            word = "not installed"
        elif scene.name in agent.lacks:
            word = "–"
        else:
            word = "yes" if self.play(agent, api, scene) else "**no**"
        print(f"{agent.name} ({api}): {scene.name}: {word}", file=sys.stderr, flush=True)
        return word

    def play(self, agent: Agent, api: str, scene: Scene) -> bool:
        """Run one scene; return whether it went as it should. Its output stays in the cache."""
        logs = self.cache / "logs" / f"{agent.name}-{api}-{scene.name.replace(' ', '-')}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lab-agents-", ignore_cleanup_errors=True) as name:
            place = Path(name)
            try:
                with lab(logs / "lab") as url, (logs / "output").open("wb") as sink:
                    codes = self._converse(agent, Target(url, api), scene.prompts, place, sink)
            finally:
                end_children()
            good = scene.check(Outcome((logs / "output").read_text(errors="replace"), codes, place / "work"))
        took_s = time.monotonic() - started
        (logs / "result").write_text(f"{'ok' if good else 'failed'} in {took_s:.1f} s, exit codes {codes}\n")
        return good

    def _converse(
        self, agent: Agent, target: Target, prompts: Sequence[str], place: Path, sink: IO[bytes]
    ) -> list[int | None]:
        """Send the prompts, one command each; return the exit codes, None for a command that did not end in time."""
        home, workplace = place / "home", place / "work"
        workplace.mkdir()
        for path, content in {"tmp/.keep": "", **agent.files(target)}.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(content)
        env = {**self._environment(agent, home), **agent.env(target)}
        codes = []
        for number, prompt in enumerate(prompts):
            command = agent.command(target, prompt, number > 0)
            command[0] = shutil.which(command[0], path=env["PATH"]) or command[0]
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
            with subprocess.Popen(command, env=env, cwd=workplace, start_new_session=True, **streams) as process:
                codes.append(self._end(process))
        return codes

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _environment(self, agent: Agent, home: Path) -> dict[str, str]:
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        proxies["NO_PROXY"] = "127.0.0.1,localhost"
        return {
            **proxies,
            **{name.lower(): value for name, value in proxies.items()},
            "PATH": f"{agent.path(self.cache)}:{NODE.path(self.cache)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "SHELL": "/bin/bash",
            "DO_NOT_TRACK": "1",
        }


# --- The table ----------------------------------------------------------------------------------------------------


def table(rows: Mapping[tuple[Agent, str], Mapping[str, str]], scenes: Sequence[Scene]) -> str:
    """Return the results as a Markdown table."""
    head = ["agent", "version", "API", *(scene.name for scene in scenes)]
    lines = [head, ["---"] * len(head)]
    for (agent, api), results in rows.items():
        lines.append([agent.name, agent.version, api, *(results.get(scene.name, "") for scene in scenes)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(argv: Sequence[str]) -> int:
    """Run the matrix; return the exit code."""
    names = [agent.name for agent in AGENTS]
    parser = argparse.ArgumentParser(description="Run real coding agents against zot lab serve.")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"which agents to run (all): {', '.join(names)}")
    parser.add_argument("--scene", action="append", choices=[scene.name for scene in SCENES], help="which scenes (all)")
    parser.add_argument("--api", action="append", choices=["anthropic", "responses", "chat", "gemini"])
    parser.add_argument("--cache", type=Path, default=ROOT / ".lab-agents", help="where agents are installed")
    parser.add_argument("--timeout", type=float, default=180, metavar="SECONDS", help="for one prompt (180)")
    parser.add_argument("--isolated", action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args(argv)
    unknown = sorted(set(settings.agents) - set(names))
    if unknown:
        parser.error(f"unknown agent: {', '.join(unknown)}")
    cache = settings.cache.resolve()
    agents = [agent for agent in AGENTS if agent.name in (settings.agents or names)]
    if settings.isolated:
        raise_loopback()
    else:
        for agent in _with_node(agents):
            problem = install(agent, cache)
            if problem:
                print(f"cannot install {agent.name} {agent.version}: {problem}", file=sys.stderr)
        isolate(argv)
        print("no network namespace: only proxy settings keep the agents off the network", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    adopt_orphans()
    scenes = [scene for scene in SCENES if scene.name in (settings.scene or [s.name for s in SCENES])]
    runner = Runner(cache, settings.timeout)
    rows: dict[tuple[Agent, str], dict[str, str]] = {}
    for agent in agents:
        for api in agent.apis:
            if not settings.api or api in settings.api:
                rows[agent, api] = {scene.name: runner.result(agent, api, scene) for scene in scenes}
    print(table(rows, scenes), end="")
    return any(result not in ("yes", "–") for results in rows.values() for result in results.values())


def _with_node(agents: Sequence[Agent]) -> list[Agent]:
    return [*([NODE] if any(agent.source == "npm" for agent in agents) else []), *agents]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
