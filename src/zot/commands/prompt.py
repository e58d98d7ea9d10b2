"""`zot prompt`: the system prompt that the model would receive here and now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign, resolve
from zot.errors import UsageError
from zot.runtime.system_prompt import prompt_of

_SUMMARY = "Print the system prompt that these flags, files and this directory make. Asks no model and needs no key."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, "zot prompt", _SUMMARY, AGENT_FLAGS, unlisted=FOREIGN_FLAGS)) is None:
        return 0
    settings, words = given
    ignore_foreign(settings)
    if words:
        raise UsageError(f"zot prompt takes no words, only flags: {words[0]!r}")
    sys.stdout.buffer.write(prompt_of(resolve(settings)).encode("utf-8", "replace") + b"\n")
    return 0
