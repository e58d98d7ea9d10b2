"""`zot acp` beside `zot rpc`: the first answer, and the processor time of warm turns and of many deltas.

Both record their sessions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from time import perf_counter_ns

from installation import Installation
from measure import Row, interleave, median, spread
from process import HELLO, PROMPT, Process, cpu_s, rpc, streaming_rpc
from service import Service

_INITIALIZE = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
_DONE = b'{"type":"done"}'
_STOPPED = b'"stopReason"'
_TURNS = 50


def editor(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """Ratios of `zot acp` to `zot rpc`."""
    return [row for installation in installations for row in _rows(installation, rounds)]


def _rows(installation: Installation, rounds: int) -> list[Row]:
    lab = ["--provider", "lab"]
    starts = {
        "rpc": partial(_first, rpc(installation, *lab), installation, HELLO),
        "acp": partial(_first, _acp(installation, *lab), installation, _INITIALIZE),
    }
    turns = {
        "rpc": partial(_turn, _recorded(rpc(installation, *lab)), installation, is_acp=False),
        "acp": partial(_turn, _acp(installation, *lab), installation, is_acp=True),
    }
    rows = [
        _row("editor: initialize", installation, starts, rounds),
        _row("editor: warm turn", installation, turns, max(2, rounds // 4)),
    ]
    with Service(installation) as service:
        streaming = streaming_rpc(installation, service.url("/burst"))
        streams = {
            "rpc": partial(_stream, _recorded(streaming), installation, is_acp=False),
            "acp": partial(_stream, [installation.zot, "acp", *streaming[2:]], installation, is_acp=True),
        }
        rows.append(_row("editor: 20,000 deltas", installation, streams, max(2, rounds // 4)))
    return rows


def _row(name: str, installation: Installation, samplers: dict[str, partial[float]], rounds: int) -> Row:
    samples = interleave(samplers, rounds)
    mine, other = median(samples["acp"]), median(samples["rpc"])
    detail = f"{mine * 1e3:.2f} ms / {other * 1e3:.2f} ms"
    return Row(
        name, installation.name, mine / other, "x rpc", at_most=1.3, spread=spread(samples["acp"]), detail=detail
    )


def _acp(installation: Installation, *flags: str) -> list[str]:
    return [installation.zot, "acp", *flags]


def _recorded(argv: list[str]) -> list[str]:
    return [*argv, "--session", f"editor {perf_counter_ns()}"]


def _first(argv: Sequence[str], installation: Installation, asked: bytes) -> float:
    """Return the time from the start to the first answer."""
    with Process(argv, installation) as process:
        process.write(asked)
        return process.until(b"\n") - process.started


def _turn(argv: Sequence[str], installation: Installation, *, is_acp: bool) -> float:
    """Return the processor time of one turn among many."""
    with Process(argv, installation) as process:
        prompt, end = _opened(process, installation, is_acp=is_acp)
        prompt = prompt.replace(b'"go"', b'"!echo done"')  # The scripted model answers at once.
        for _ in range(3):
            process.write(prompt)
            process.until(end)
        begun = cpu_s(process.pid)
        for _ in range(_TURNS):
            process.write(prompt)
            process.until(end)
        return (cpu_s(process.pid) - begun) / _TURNS


def _stream(argv: Sequence[str], installation: Installation, *, is_acp: bool) -> float:
    """Return the processor time of a second prompt, which is answered by many deltas."""
    with Process(argv, installation) as process:
        prompt, end = _opened(process, installation, is_acp=is_acp)
        process.write(prompt)
        process.until(end)
        begun = cpu_s(process.pid)
        process.write(prompt)
        process.until(end)
        return cpu_s(process.pid) - begun


def _opened(process: Process, installation: Installation, *, is_acp: bool) -> tuple[bytes, bytes]:
    """Return the prompt to send, and how its end looks, once the session is open."""
    if not is_acp:
        return PROMPT, _DONE
    process.write(_INITIALIZE)
    process.until(b"\n")
    params = {"cwd": str(installation.directory), "mcpServers": []}
    process.write(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": params}).encode() + b"\n")
    session = json.loads(process.line())["result"]["sessionId"].encode()
    prompt = (
        b'{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"%s",'
        b'"prompt":[{"type":"text","text":"go"}]}}\n' % session
    )
    return prompt, _STOPPED
