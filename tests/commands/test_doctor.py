"""`zot doctor`: one line for each thing that is set up or missing, and whether the selected provider works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import forked
from auth_server import guarding
from harness import PATIENCE_S, environment
from zot.commands import doctor
from zot.config.vendors import VENDORS
from zot.tools.guardian_process import kernel

NAMES = ["version", "python", "platform", "ZOT_HOME", "config.toml", "auth.json", "tokens", "proxy",
         "certificates",
         *VENDORS, "bubblewrap", "userns", "cgroups", "seccomp", "keyring", "network", "hidden", "protected", "git",
         "disk"]  # fmt: skip


class Doctor:
    """Its output."""

    def __init__(self, home: Path, *words: str, **env: str) -> None:
        done = forked.run(["doctor", "--json", *words], env=environment({"ZOT_HOME": str(home), **env}))
        assert done.stderr == b""
        self.code = done.returncode
        self.said = done.stdout.decode()
        self.report: Mapping[str, Any] = json.loads(done.stdout)
        self.names = [check["name"] for check in self.report["checks"]]

    def __getitem__(self, name: str) -> tuple[str, str]:
        [check] = [check for check in self.report["checks"] if check["name"] == name]
        return check["status"], check["detail"]


def test_a_bare_machine_lists_what_is_missing(tmp_path: Path) -> None:
    doctor = Doctor(tmp_path / "home")
    assert (doctor.code, doctor.report["ok"], doctor.report["provider"]) == (1, False, "anthropic")
    assert doctor.names == NAMES
    advice = "no key: set ANTHROPIC_API_KEY, or run `zot login anthropic` (selected)"
    assert doctor["anthropic"] == ("fail", advice)
    assert doctor["kimi"] == ("none", "no key: set KIMI_API_KEY or MOONSHOT_API_KEY, or run `zot login kimi`")
    assert doctor["ollama"] == ("none", "needs no key; not asked")
    assert doctor["ZOT_HOME"] == ("none", f"{tmp_path / 'home'}: does not exist yet")
    assert doctor["auth.json"] == ("none", "none; create it with: zot login PROVIDER")


def test_lab_always_works(tmp_path: Path) -> None:
    doctor = Doctor(tmp_path, "--provider", "lab")
    assert (doctor.code, doctor["lab"]) == (
        0,
        ("ok", "needs no key (selected); scripted, without a network"),
    )


def test_lines_for_people_say_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zot", "doctor", "--offline"], env=environment({"ZOT_HOME": str(tmp_path)}),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == NAMES
    assert {line.split()[0] for line in lines} <= {"ok", "warn", "fail", "none"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir(mode=0o700)
    return path


def store(home: Path, **entries: dict[str, str]) -> None:
    (home / "auth.json").write_text(json.dumps(entries))
    (home / "auth.json").chmod(0o600)


def test_a_key_is_probed_and_its_source_shown(home: Path) -> None:
    with guarding("sk-right") as gate:
        store(home, openai={"key": "sk-wrong"}, gemini={"command": "echo sk-right", "base_url": gate.url})
        place = f"127.0.0.1:{gate.server_port}"
        addresses = {"OPENAI_BASE_URL": gate.url, "ANTHROPIC_BASE_URL": gate.url, "GEMINI_BASE_URL": gate.url}
        doctor = Doctor(home, ANTHROPIC_API_KEY="sk-right", **addresses)
        assert doctor.code == 0
        used = "key from ANTHROPIC_API_KEY (selected)"
        assert doctor["anthropic"] == ("ok", f"{used}; {place}: it accepts the key")
        other = "a key is stored, but for another address (api.openai.com:443)"
        assert doctor["openai"] == ("warn", f"{other}; {place}: it requires a key (http 401)")
        reason = "not checked, because the command may ask questions"
        assert doctor["gemini"] == ("ok", f"key from a command in auth.json; {reason}")
        assert doctor["auth.json"] == ("ok", f"{home / 'auth.json'}: mode 0600, for openai, gemini")
        assert doctor["ZOT_HOME"] == ("ok", f"{home}: mode 0700")
        doctor = Doctor(home, "--offline", "--provider", "gemini")
        other = f"a key is stored, but for another address ({place})"
        advice = "set GEMINI_API_KEY or GOOGLE_API_KEY, or run `zot login gemini` (selected)"
        assert (doctor.code, doctor["gemini"]) == (1, ("fail", f"{other}: {advice}"))
        doctor = Doctor(home, "--provider", "gemini", **addresses)
        detail = f"key from a command in auth.json (selected); {place}: it accepts the key"
        assert (doctor.code, doctor["gemini"]) == (0, ("ok", detail))


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        ({"ANTHROPIC_API_KEY": "sk-wrong"}, "it refuses the key (http 401)"),
        (
            {"ANTHROPIC_API_KEY": "sk-right", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"},
            "was refused: check the address",
        ),
        ({"ANTHROPIC_API_KEY": "sk-right", "ANTHROPIC_BASE_URL": "http://me:pw@h"}, "contains a user name or password"),
        ({"ANTHROPIC_API_KEY": "sk-right", "http_proxy": "http://me:pw@127.0.0.1:9"}, "was refused: check the address"),
        ({"ANTHROPIC_API_KEY": "sk-\u00f6"}, "has invalid characters"),
    ],
)
def test_a_provider_that_does_not_work_is_exit_code_one(home: Path, env: dict[str, str], detail: str) -> None:
    with guarding("sk-right") as gate:
        doctor = Doctor(home, **{"ANTHROPIC_BASE_URL": gate.url, **env})
    assert doctor.code == 1
    assert doctor["anthropic"][0] == "fail"
    assert detail in doctor["anthropic"][1]
    assert [secret for secret in ("sk-right", "sk-wrong", "me:pw", "pw@") if secret in doctor.said] == []


def test_a_failing_key_command_is_reported(home: Path) -> None:
    store(home, anthropic={"command": "echo locked >&2; exit 5"})
    doctor = Doctor(home)
    assert (doctor.code, doctor["anthropic"][0]) == (1, "fail")
    assert doctor["anthropic"][1].endswith("failed with exit status 5: locked")


def test_offline_no_service_is_asked_and_no_command_run(home: Path, tmp_path: Path) -> None:
    with guarding() as gate:
        store(home, anthropic={"command": f"touch {tmp_path}/ran", "base_url": gate.url})
        doctor = Doctor(home, "--offline", ANTHROPIC_BASE_URL=gate.url, OPENAI_API_KEY="k", OPENAI_BASE_URL=gate.url)
    detail = "key from a command in auth.json (selected); not asked"
    assert (doctor.code, doctor["anthropic"]) == (0, ("ok", detail))
    assert gate.asked == []
    assert not (tmp_path / "ran").exists()


def test_a_key_on_the_command_line_is_warned_about(home: Path) -> None:
    doctor = Doctor(home, "--offline", "--api-key", "sk-given")
    assert doctor["anthropic"] == ("ok", "key from --api-key (selected); not asked")
    assert doctor["--api-key"][0] == "warn"
    assert "every user of this machine can see it" in doctor["--api-key"][1]
    assert "sk-given" not in doctor.said


@pytest.mark.parametrize(
    ("rule", "status", "detail"),
    [
        ("bash=ask", "ok", "1 rule"),
        ("bsh=ask", "fail", "no tool is named 'bsh'; did you mean bash?"),
        ("search=ask", "warn", "zot has no tool 'search'"),
    ],
)
def test_rules_are_checked_for_the_names_of_tools(home: Path, rule: str, status: str, detail: str) -> None:
    found = Doctor(home, "--offline", "--policy", rule)["policy"]
    assert found[0] == status
    assert found[1].startswith(detail)


def test_wrong_files_are_reported(home: Path) -> None:
    (home / "config.toml").write_text("[agents.default]\ncolour = 1\n")
    (home / "auth.json").write_text("{}")
    (home / "auth.json").chmod(0o644)
    home.chmod(0o755)
    doctor = Doctor(home, "--offline", ANTHROPIC_API_KEY="k")
    assert doctor.code == 1
    assert doctor["config.toml"][0] == "fail"
    assert "[agents.default] colour: unknown setting" in doctor["config.toml"][1]
    assert doctor["auth.json"][0] == "fail"
    assert "chmod 600" in doctor["auth.json"][1]
    assert doctor["ZOT_HOME"] == ("warn", f"{home}: mode 0755, open to others; try: chmod 700 {home}")


def test_the_daemon_s_tokens_are_checked_and_not_shown(home: Path) -> None:
    assert Doctor(home, "--offline")["tokens"] == ("none", "none; create one with: zot daemon --listen URL")
    path, secret = home / "data" / "token", "secret-" * 6
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(f"{secret}\nphone:{secret}\n")
    assert Doctor(home, "--offline")["tokens"] == ("ok", f"{path}: for default, phone")
    void = "until that is fixed, no token is accepted"
    path.chmod(0o644)
    status, detail = Doctor(home, "--offline")["tokens"]
    assert (status, detail.endswith(f"it must be your own file, with the mode 600; {void}")) == ("warn", True)
    path.chmod(0o600)
    path.write_text(f"{secret}\ntoo-short\n")
    doctor = Doctor(home, "--offline", "--config-dir", str(home))
    assert doctor["tokens"][1].startswith(f"{path}:2: expected a token of 32 to 256 letters")
    assert (secret in doctor.said, "too-short" in doctor.said) == (False, False)


def test_the_configuration_chooses_the_provider(home: Path) -> None:
    (home / "config.toml").write_text('[agents.default]\nprovider = "groq"\n')
    doctor = Doctor(home, "--offline", GROQ_API_KEY="k")
    assert (doctor.code, doctor.report["provider"]) == (0, "groq")
    assert doctor["config.toml"] == ("ok", f"{home / 'config.toml'}: valid")


def test_a_relative_home_that_does_not_exist_is_accepted() -> None:
    doctor = Doctor(Path("no/such/home"), "--offline", "--provider", "lab")
    assert (doctor.code, doctor["disk"][0] in ("ok", "warn")) == (0, True)


def test_an_unknown_provider_is_a_failure(home: Path) -> None:
    (home / "config.toml").write_text('[agents.default]\nprovider = "acme"\n')
    doctor = Doctor(home, "--offline")
    assert (doctor.code, doctor["config.toml"][0]) == (1, "fail")


def test_the_proxy_and_the_certificates_are_shown_without_passwords(home: Path) -> None:
    env = {
        "ANTHROPIC_API_KEY": "k",
        "https_proxy": "http://me:secret-pw@proxy.example:3128",
        "SSL_CERT_FILE": "/nowhere",
    }
    doctor = Doctor(home, "--offline", **env)
    assert doctor["proxy"] == ("ok", "proxy.example:3128, for anthropic")
    assert doctor["certificates"] == ("fail", "SSL_CERT_FILE=/nowhere: SSL_CERT_FILE cannot be read")
    assert "secret-pw" not in doctor.said
    assert Doctor(home, "--offline", **env, no_proxy="anthropic.com")["proxy"][0] == "none"


@pytest.mark.parametrize("words", [["word"], ["--frobnicate"], ["--json=1"]])
def test_wrong_usage_is_exit_code_two(home: Path, words: list[str]) -> None:
    done = forked.run(["doctor", *words], env=environment({"ZOT_HOME": str(home)}))
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


def test_a_bubblewrap_without_permission_is_distinguished_from_a_working_one(tmp_path: Path) -> None:
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
    bwrap.chmod(0o755)
    doctor = Doctor(tmp_path, "--provider", "lab", "--offline", PATH=str(bwrap.parent))
    detail = f"{bwrap}, for --lock and extensions with permissions, does not work here: not permitted"
    assert (doctor.code, doctor["bubblewrap"]) == (0, ("warn", detail))


def test_a_machine_without_keyrings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_KEYCTL", {})
    assert "does not know the system call" in kernel.why_no_keyring()
    check = doctor._keyring()
    assert (check.status, check.detail.partition(":")[0]) == ("warn", "commands share the session keyring")
