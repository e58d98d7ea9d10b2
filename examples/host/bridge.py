"""A bridge between a chat and zot: python3 bridge.py SESSION MESSAGE [flags of zot host]. Prints the answer."""

import json
import os
import subprocess
import sys
import time
import uuid

TIMEOUT_S = float(os.environ.get("BRIDGE_TIMEOUT_S", "30"))
PAUSE_S = {"TIMEOUT": 0, "PROVIDER_DOWN": 0, "PROVIDER_RATE_LIMIT": 20}  # before it is tried again, once


def ask(session: str, message: str, key: str, flags: list[str]) -> dict:
    """Start zot for one request and return its answer. It ends by itself, in time."""
    request = {
        "request_id": str(uuid.uuid4()),
        "session_id": session,
        "prompt": message,
        "idempotency_key": key,
        "timeout_ms": int(TIMEOUT_S * 900),
    }
    command = [os.environ.get("ZOT", "zot"), "host", "--protocol", "v1", "--bridge-compat", "--single-request", *flags]
    try:
        done = subprocess.run(
            command, input=json.dumps(request).encode(), stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=False
        )
        return json.loads(done.stdout)  # one object, whatever the exit code is
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        return {"ok": False, "error_code": "INTERNAL", "error_message": f"zot cannot be run: {problem}"}


def main(session: str, message: str, *flags: str) -> int:
    key = str(uuid.uuid4())  # better: the id of the message in its chat
    answer = ask(session, message, key, list(flags))
    if answer["error_code"] in PAUSE_S:  # the same key: it goes on where it was
        time.sleep(PAUSE_S[answer["error_code"]])
        answer = ask(session, message, key, list(flags))
    if answer["ok"]:
        print(answer["text"])
        return 0
    print(f"{answer['error_code']}: {answer['error_message']}", file=sys.stderr)
    print("Sorry, I cannot answer right now.")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
