"""docs/how-to/operate.md describes every subcommand, flag and field, and its line of the audit log is valid."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from zot.commands.daemon_manage import GROUP, DaemonStatus
from zot.config.flags import PLACE_FLAGS
from zot.serve.daemon.audit import AuditEntry, Verified, verify

from .markdown import blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "operate.md").read_text()


@pytest.mark.parametrize("name", GROUP.subcommands)
def test_every_subcommand_and_its_flags_are_described(name: str) -> None:
    assert f"`zot daemon {name}" in TEXT
    for flag in (*GROUP.subcommands[name].flags, *PLACE_FLAGS):
        assert re.search(rf"`[^`]*{flag.name}[ `]", TEXT)


def test_every_field_is_described() -> None:
    names = {name for struct in (DaemonStatus, AuditEntry, Verified) for name in struct.__struct_fields__}
    assert {name for name in names if f"`{name}`" not in TEXT} == set()


def test_the_line_of_the_audit_log_is_as_shown(tmp_path: Path) -> None:
    (line,) = blocks(TEXT, "json")
    (tmp_path / "audit.log").write_text(line.text)
    found = verify([str(tmp_path / "audit.log")])
    assert (found.lines, found.problems, found.last) == (1, (), 7)
    assert msgspec.json.decode(line.text, type=AuditEntry).method == "session/prompt"
