"""docs/how-to/operate.md describes every subcommand, flag and field; its audit line and the units are right."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import msgspec
import pytest

from zot.commands.daemon_manage import GROUP, DaemonStatus
from zot.config.flags import PLACE_FLAGS
from zot.config.paths import locate
from zot.serve.daemon.audit import AuditEntry, Verified, verify

from .markdown import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "operate.md").read_text()


@pytest.mark.parametrize("name", GROUP.subcommands)
def test_every_subcommand_and_its_flags_are_described(name: str) -> None:
    subcommand = GROUP.subcommands[name]
    row = f"zot daemon {name} {subcommand.takes}".rstrip()
    assert row in TEXT
    for flag in (*subcommand.flags, *PLACE_FLAGS):
        assert re.search(rf"`[^`]*{flag.name}[ `]", TEXT)


def test_every_field_is_described() -> None:
    names = {name for struct in (DaemonStatus, AuditEntry, Verified) for name in struct.__struct_fields__}
    assert {name for name in names if f"`{name}`" not in TEXT} == set()


def test_the_line_of_the_audit_log_is_as_it_was_written(tmp_path: Path) -> None:
    (line,) = blocks(TEXT, "json")
    (tmp_path / "audit.log").write_text(line.text)
    found = verify([str(tmp_path / "audit.log")])
    assert (found.lines, found.problems, found.last) == (1, (), 7)
    assert msgspec.json.decode(line.text, type=AuditEntry).method == "session/prompt"


def test_the_units_fit_the_daemon() -> None:
    units = {}
    for name in ("zot.service", "zot.socket"):
        units[name] = configparser.RawConfigParser()
        units[name].read(ROOT / "examples" / "systemd" / name)
    listen = units["zot.socket"]["Socket"]
    assert listen["ListenStream"].replace("%h", "/home/me") == locate({"HOME": "/home/me"}, platform="linux").socket
    assert (listen["SocketMode"], listen["DirectoryMode"]) == ("0600", "0700")
    service = units["zot.service"]["Service"]
    assert (service["Type"], service["RestartPreventExitStatus"]) == ("notify", "2 3")
    assert service["ExecStart"].endswith("/zot daemon")
