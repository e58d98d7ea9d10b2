"""`zot prompt`: the system prompt that the model would receive here and now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign, resolve
from zot.errors import UsageError
from zot.runtime.system_prompt import prompt_of

MANUAL = flags.Manual(
    "zot prompt",
    "Print the system prompt that these flags, files and this directory produce. Calls no model and needs no key.",
    AGENT_FLAGS,
    FOREIGN_FLAGS,
    (("zot prompt --no-instructions", "Print it without AGENTS.md files."),),
    {0: "Printed.", 1: "The configuration is invalid.", 2: "Wrong usage."},
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    ignore_foreign(settings)
    if words:
        raise UsageError(f"zot prompt takes no words, only flags: {words[0]!r}")
    sys.stdout.buffer.write(prompt_of(resolve(settings)).encode("utf-8", "replace") + b"\n")
    return 0
