"""A fake daemon in a thread: owns an endpoint and gives scripted answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from zot.serve.daemon.claim import claim_endpoint

#: The answer to a method: a result, or an error code.
Answers = Mapping[str, "dict[str, Any] | int"]


class FakeDaemon:
    """Answers each method as ``answers`` says, with an update before each answer; ends after `daemon/stop`.

    A method without an answer gets none.
    """

    def __init__(self, path: str, answers: Answers) -> None:
        self.claim = claim_endpoint(path)
        self.asked: list[tuple[str, Any]] = []
        self._answers = answers
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            with socket.socket(socket.AF_UNIX) as last, suppress(OSError):  # It may just be ending.
                last.connect(self.claim.path)
                last.sendall(b'{"method":"end of the test"}\n')
            self._thread.join()
        self.claim.release()

    def _serve(self) -> None:
        while True:
            connection, _ = self.claim.listener.accept()
            with connection, connection.makefile("rwb", buffering=0) as file:
                for line in file:
                    call = json.loads(line)
                    if call["method"] == "end of the test":
                        return
                    self.asked.append((call["method"], call["params"]))
                    answer = self._answers.get(call["method"])
                    if answer is not None:
                        file.write(_reply(call["id"], answer))
                    if call["method"] == "daemon/stop" and not isinstance(answer, int):
                        self.claim.release()
                        return


def _reply(number: int, answer: dict[str, Any] | int) -> bytes:
    update = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "type": "state"}}
    key, value = ("result", answer) if isinstance(answer, dict) else ("error", {"code": answer, "message": "no"})
    reply = {"jsonrpc": "2.0", key: value, "id": number}
    return f"{json.dumps(update)}\n{json.dumps(reply)}\n".encode()
