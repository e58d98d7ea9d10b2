"""The Compose file and the Kubernetes manifests of a fleet: their command lines, settings and references hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # it has no types of its own

from zot.commands.daemon import MANUAL as DAEMON
from zot.commands.worker import MANUAL as WORKER
from zot.config import flags
from zot.config.configured_agents import AgentConfigs

ROOT = Path(__file__).parent.parent.parent
FLEET = ROOT / "examples" / "fleet"
COMPOSE: dict[str, Any] = yaml.safe_load((FLEET / "compose.yaml").read_text())
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((FLEET / "kubernetes.yaml").read_text()))
MANUALS = {"daemon": DAEMON, "worker": WORKER}


def pods() -> list[dict[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in MANIFESTS if one["kind"] == "Deployment"]


def test_the_command_lines_are_those_of_zot() -> None:
    commands = [service["command"] for name, service in COMPOSE["services"].items() if name != "database"]
    commands += [container["args"] for pod in pods() for container in pod["containers"]]
    assert sorted(command for command, *_ in commands) == ["daemon", "daemon", "worker", "worker"]
    for command, *words in commands:
        _, left = flags.parse(words, (*MANUALS[command].flags, *MANUALS[command].unlisted))
        assert not left


def test_the_settings_are_valid_and_the_same_everywhere(tmp_path: Path) -> None:
    [in_kubernetes] = [one["data"]["config.toml"] for one in MANIFESTS if one["kind"] == "ConfigMap"]
    text = (FLEET / "config.toml").read_text()
    assert in_kubernetes.strip() == text.partition("\n")[2].strip()
    (tmp_path / "config.toml").write_text(text)
    settings = AgentConfigs.load(str(tmp_path)).file.daemon
    graces = [service["stop_grace_period"] for name, service in COMPOSE["services"].items() if name != "database"]
    assert all(int(grace.removesuffix("s")) > settings.grace_s for grace in graces)
    assert all(pod["terminationGracePeriodSeconds"] > settings.grace_s for pod in pods())


def test_mounted_volumes_exist_and_no_secret_is_in_a_file() -> None:
    for pod in pods():
        volumes = {volume["name"] for volume in pod["volumes"]}
        containers = [*pod["containers"], *pod.get("initContainers", ())]
        assert {mount["name"] for one in containers for mount in one["volumeMounts"]} == volumes
        for one in containers:
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert all("valueFrom" in variable for variable in one.get("env", ()))
    for service in COMPOSE["services"].values():
        assert {*service["secrets"]} <= COMPOSE["secrets"].keys()
        named = {volume.partition(":")[0] for volume in service["volumes"]}
        assert named <= COMPOSE["volumes"].keys()
    told = (ROOT / "docs" / "how-to" / "fleet.md").read_text()
    wanted = set(
        re.findall(r"secretName: ([\w-]+)|secretKeyRef: {name: ([\w-]+)", (FLEET / "kubernetes.yaml").read_text())
    )
    assert all(f" {first or second} " in told for first, second in wanted), wanted
