"""`zot logout`: remove the key that `zot login` stored."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from zot.commands.login import home_to_store_in, one_provider
from zot.config import flags
from zot.config.auth_file import path_in, remove

_SUMMARY = "Forget the key of PROVIDER, or the command that prints it, in $ZOT_HOME/auth.json."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 2 for wrong usage, 1 if nothing was stored."""
    settings, words = flags.parse(argv, (flags.Flag("--help", "this text", short="-h"),))
    if settings:
        sys.stdout.write(f"usage: zot logout PROVIDER\n\n{_SUMMARY}\n")
        return 0
    vendor = one_provider("logout", words)
    home = home_to_store_in()
    if not remove(home, vendor.name):
        sys.stderr.write(f"zot: nothing is stored for {vendor.name} in {path_in(home)}\n")
        return 1
    sys.stdout.write(f"removed for {vendor.name} from {path_in(home)}\n")
    if name := next((name for name in vendor.key_names if os.environ.get(name)), None):
        sys.stderr.write(f"zot: {name} is still set\n")
    return 0
