#!/usr/bin/env python3
"""Drive `zot rpc` from Python, with nothing but the standard library.

    python3 client.py "say hello" --provider lab

Further arguments are passed on to `zot rpc`. $ZOT is the program (default: zot).
"""

import json
import os
import signal
import subprocess
import sys
import threading


class ZotError(Exception):
    """zot refused a command, or is gone."""


class Zot:
    """One `zot rpc` process: one conversation. Use it in a `with` block."""

    def __init__(self, *flags):
        command = [os.environ.get("ZOT", "zot"), "rpc", *flags]
        pipe = subprocess.PIPE
        # A session of its own, so that a Ctrl+C at the terminal reaches us alone: we abort and keep the process.
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self._writing = threading.Lock()

    def prompt(self, message):
        """Start a prompt; `events` yields its events."""
        self._send({"id": "prompt", "type": "prompt", "message": message})

    def abort(self):
        """End the running prompt, from any thread. Its events still come, up to `done`."""
        self._send({"id": "abort", "type": "abort"})

    def events(self):
        """Yield the events of a prompt, `done` last. Raise ZotError if it was refused or zot is gone."""
        for line in self.process.stdout:  # bytes, cut at LF and nowhere else
            frame = json.loads(line)
            if frame["type"] != "response":
                yield frame
            elif not frame["success"]:
                raise ZotError(f"{frame['command']}: {frame['error']}")
            if frame["type"] == "done":
                return
        raise ZotError(f"zot ended before it was done, with exit code {self.process.wait()}")

    def _send(self, command):
        try:
            with self._writing:
                self.process.stdin.write(json.dumps(command).encode() + b"\n")
                self.process.stdin.flush()
        except (OSError, ValueError):
            pass  # zot has ended: `events` reaches the end of its output and raises.

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.terminate()  # zot aborts what runs and takes its tools with it
        self.process.communicate()  # ends its input; it then finishes and exits


def main(message, *flags):
    code = 0
    with Zot(*flags) as zot:

        def on_interrupt(*_):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl+C ends this program
            threading.Thread(target=zot.abort).start()  # a handler must not wait for the lock

        signal.signal(signal.SIGINT, on_interrupt)
        zot.prompt(message)
        for event in zot.events():
            code = show(event) or code
    return code


def show(event):
    """Print one event; return an exit code if it tells how things end."""
    match event:
        case {"type": "text_delta", "delta": delta}:
            print(delta, end="", flush=True)
        case {"type": "assistant_message"}:
            print(flush=True)
        case {"type": "tool_call", "name": name, "args": args}:
            print(f"[{name}] {json.dumps(args)}", file=sys.stderr)
        case {"type": "tool_result", "is_error": failed}:
            print("[failed]" if failed else "[ok]", file=sys.stderr)
        case {"type": "error", "message": problem}:
            print(f"error: {problem}", file=sys.stderr)
            return 1
        case {"type": "turn_end", "stop": "aborted"}:
            return 130


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit('usage: client.py "PROMPT" [flags of zot rpc]')
    try:
        sys.exit(main(*sys.argv[1:]))
    except (ZotError, OSError) as problem:
        sys.exit(f"client.py: {problem}")
