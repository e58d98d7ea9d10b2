"""A bridge between a chat and zot: python3 bridge.py SESSION MESSAGE [flags of zot host]. Prints the answer."""

import json
import os
import subprocess
import sys
import uuid

AGAIN = {"TIMEOUT", "PROVIDER_DOWN"}  # after a pause also "PROVIDER_RATE_LIMIT"
session, message, *flags = sys.argv[1:]
timeout_ms = int(float(os.environ.get("BRIDGE_TIMEOUT_S", "30")) * 900)
key = str(uuid.uuid4())  # better: the id of the message in its chat


def ask() -> dict:
    """Start zot for one request and return its answer. zot ends by itself, in time."""
    request = {"request_id": str(uuid.uuid4()), "session_id": session, "prompt": message, "idempotency_key": key}
    command = [os.environ.get("ZOT", "zot"), "host", "--protocol", "v1", "--bridge-compat", "--single-request", *flags]
    data = json.dumps({**request, "timeout_ms": timeout_ms}).encode()
    try:
        return json.loads(subprocess.run(command, input=data, stdout=subprocess.PIPE, check=False).stdout)
    except (OSError, ValueError) as problem:
        return {"ok": False, "error_code": "INTERNAL", "error_message": f"zot cannot be run: {problem}"}


answer = ask()  # one object, whatever the exit code is
if answer["error_code"] in AGAIN:  # the same key: zot continues where it stopped
    answer = ask()
print(answer["text"] if answer["ok"] else "Sorry, I cannot answer right now.")
sys.exit(None if answer["ok"] else f"{answer['error_code']}: {answer['error_message']}")
