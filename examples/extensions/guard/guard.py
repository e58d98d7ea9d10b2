#!/usr/bin/env python3
"""A guard: no dangerous command of the bash tool runs. It fails closed: what it cannot look at does not run either.

A list of patterns keeps accidents away, not attackers: there is always another spelling. For a boundary use --lock.
"""

import re

import zot.ext

guard = zot.ext.Extension("guard", "1.0.0", on_failure="block")

DANGEROUS = {
    "removes a whole tree": r"\brm\b(?=.*\s-\w*[rR])(?=.*\s-\w*f|.*\s--force)",
    "writes to a device": r"\bdd\b.*\bof=/dev/|>\s*/dev/(sd|nvme|vd|disk)",
    "makes a file system": r"\bmkfs(\.\w+)?\b",
    "runs what it downloads": r"\b(curl|wget)\b.*\|\s*(sudo\s+)?(ba|z|da)?sh\b",
    "rewrites what others have": r"\bgit\b.*\bpush\b.*(\s--force\b|\s-f\b)",
    "forks without end": r":\s*\(\)\s*\{.*\|.*&\s*\}",
    "stops the machine": r"\b(shutdown|reboot|halt|poweroff)\b",
}

calls = {"asked": 0, "refused": 0}


@guard.intercept("tool_call")
def check(call: zot.ext.Intercept) -> zot.ext.Decision | None:
    calls["asked"] += 1
    if call.tool_name != "bash":
        return None
    command = str((call.tool_args or {}).get("command", ""))
    for reason, pattern in DANGEROUS.items():
        if re.search(pattern, command, re.DOTALL):
            calls["refused"] += 1
            guard.notify(f"refused, because it {reason}: {command[:200]}", "warn")
            return zot.ext.block(f"refused by guard: this {reason}. Ask the user to run it.")
    return None


@guard.command("guard", "how many calls were looked at")
def count() -> str:
    return f"{calls['asked']} calls, {calls['refused']} refused"


if __name__ == "__main__":
    guard.run()
