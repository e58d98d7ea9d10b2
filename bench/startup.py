"""Start-up: from spawning the process to the first byte of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from installation import ROOT, Installation
from measure import Row, Samples, interleave, median, spread
from process import HELLO, PROMPT, Process, request, rpc, streaming_rpc, telling_host
from service import Service

_REFERENCE = "reference"
_WEATHER = ROOT / "examples" / "extensions" / "weather" / "weather.py"


def version(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """`zot --version`, whole, against an interpreter that imports what the installed script imports."""
    first = installations[0]
    samplers = {_REFERENCE: partial(_whole, [first.python, "-c", "import re,sys"], first)}
    samplers |= {
        installation.name: partial(_whole, [installation.zot, "--version"], installation)
        for installation in installations
    }
    return _rows("start: --version", interleave(samplers, rounds), at_most=1.2)


def hello(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """`zot rpc` answering hello against a program that imports msgspec and writes a line."""
    first = installations[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for installation in installations:
        samplers[installation.name] = partial(
            _line, rpc(installation, "--provider", "anthropic"), installation, HELLO, b"{"
        )
    return _rows("start: rpc hello", interleave(samplers, rounds), at_most=1.3)


def bad_request(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """`zot host` answering an invalid request against a program that imports msgspec and writes a line."""
    first = installations[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for installation in installations:
        samplers[installation.name] = partial(_line, [installation.zot, "host"], installation, b"{}\n", b"{")
    return _rows("start: host bad request", interleave(samplers, rounds), at_most=1.4)


def extension(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """An extension made with `zot.ext` saying hello against a program that imports msgspec and writes a line."""
    first = installations[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for installation in installations:
        samplers[installation.name] = partial(_line, [installation.python, str(_WEATHER)], installation, b"", b"{")
    return _rows("start: hello of an extension", interleave(samplers, rounds), at_most=1.4)


def first_delta(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """`zot rpc` and `zot host` printing their first delta against a program that imports what that takes."""
    first = installations[0]
    program = [first.python, "-c", _program("asyncio,msgspec,httptools")]
    reference = {_REFERENCE: partial(_line, program, first, b"", b"{")}
    mark = b'"type":"text_delta"'
    with Service(first) as service:
        commands = {installation: streaming_rpc(installation, service.url("/paced")) for installation in installations}
        http = {
            installation.name: partial(_line, argv, installation, PROMPT, mark)
            for installation, argv in commands.items()
        }
        rows = _rows("start: rpc first delta, HTTP", interleave(reference | http, rounds), at_most=1.6)
        commands = {installation: telling_host(installation, service.url("/paced")) for installation in installations}
        http = {installation.name: partial(_told, argv, installation, mark) for installation, argv in commands.items()}
        rows += _rows("start: host first delta, HTTP", interleave(reference | http, rounds), at_most=1.6)
    commands = {installation: rpc(installation, "--provider", "lab") for installation in installations}
    lab = {
        installation.name: partial(_line, argv, installation, PROMPT, mark) for installation, argv in commands.items()
    }
    return rows + _rows("start: rpc first delta, lab", interleave(reference | lab, rounds))


def _program(modules: str) -> str:
    return f"import sys,{modules}; sys.stdout.write('{{}}\\n'); sys.stdout.flush()"


def _whole(argv: Sequence[str], installation: Installation) -> float:
    with Process(argv, installation) as process:
        return process.ended() - process.started


def _line(argv: Sequence[str], installation: Installation, said: bytes, mark: bytes) -> float:
    with Process(argv, installation) as process:
        if said:
            process.write(said)
        return process.until(mark) - process.started


def _told(argv: Sequence[str], installation: Installation, mark: bytes) -> float:
    return _line(argv, installation, request(), mark)


def _rows(name: str, samples: Samples, *, at_most: float | None = None) -> list[Row]:
    reference = median(samples[_REFERENCE])
    return [
        Row(
            name,
            installation,
            median(values) / reference,
            at_most=at_most,
            spread=spread(values),
            detail=f"{median(values) * 1e3:.1f} ms / {reference * 1e3:.1f} ms",
        )
        for installation, values in samples.items()
        if installation != _REFERENCE
    ]
