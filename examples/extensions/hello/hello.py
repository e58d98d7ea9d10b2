#!/usr/bin/env python3
"""The smallest extension: one slash command, and nothing but the standard library."""

import json
import sys


def emit(frame):
    sys.stdout.write(json.dumps(frame) + "\n")
    sys.stdout.flush()


emit({"type": "hello", "name": "hello", "version": "1.0.0", "capabilities": ["commands"]})
emit({"type": "register_command", "name": "hello", "description": "say hi"})
emit({"type": "ready"})

for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] == "command_invoked":
        who = frame["args"] or "me"
        emit(
            {
                "type": "command_response",
                "id": frame["id"],
                "action": "prompt",
                "prompt": f"Greet {who} very briefly. Add one emoji.",
            }
        )
    elif frame["type"] == "shutdown":
        emit({"type": "shutdown_ack"})
        break
