"""Start-up: from spawning the process to the first byte of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from measure import Row, Samples, interleave, median, spread
from process import HELLO, PROMPT, Process, request, rpc, streaming_rpc, telling_host
from service import Service
from subject import ROOT, Subject

_REFERENCE = "reference"
_WEATHER = ROOT / "examples" / "extensions" / "weather" / "weather.py"


def version(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """`zot --version`, whole, against an interpreter that imports what the installed script imports."""
    first = subjects[0]
    samplers = {_REFERENCE: partial(_whole, [first.python, "-c", "import re,sys"], first)}
    samplers |= {subject.name: partial(_whole, [subject.zot, "--version"], subject) for subject in subjects}
    return _rows("start: --version", interleave(samplers, rounds), at_most=1.2)


def hello(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """`zot rpc` answering hello against a program that imports msgspec and writes a line."""
    first = subjects[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for subject in subjects:
        samplers[subject.name] = partial(_line, rpc(subject, "--provider", "anthropic"), subject, HELLO, b"{")
    return _rows("start: rpc hello", interleave(samplers, rounds), at_most=1.3)


def bad_request(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """`zot host` answering what is no request against a program that imports msgspec and writes a line."""
    first = subjects[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for subject in subjects:
        samplers[subject.name] = partial(_line, [subject.zot, "host"], subject, b"{}\n", b"{")
    return _rows("start: host bad request", interleave(samplers, rounds), at_most=1.4)


def extension(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """An extension made with `zot.ext` saying hello against a program that imports msgspec and writes a line."""
    first = subjects[0]
    samplers = {_REFERENCE: partial(_line, [first.python, "-c", _program("msgspec")], first, b"", b"{")}
    for subject in subjects:
        samplers[subject.name] = partial(_line, [subject.python, str(_WEATHER)], subject, b"", b"{")
    return _rows("start: hello of an extension", interleave(samplers, rounds), at_most=1.4)


def first_delta(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """`zot rpc` and `zot host` printing their first delta against a program that imports what that takes."""
    first = subjects[0]
    program = [first.python, "-c", _program("asyncio,msgspec,httptools")]
    reference = {_REFERENCE: partial(_line, program, first, b"", b"{")}
    mark = b'"type":"text_delta"'
    with Service(first) as service:
        commands = {subject: streaming_rpc(subject, service.url("/paced")) for subject in subjects}
        http = {subject.name: partial(_line, argv, subject, PROMPT, mark) for subject, argv in commands.items()}
        rows = _rows("start: rpc first delta, HTTP", interleave(reference | http, rounds), at_most=1.6)
        commands = {subject: telling_host(subject, service.url("/paced")) for subject in subjects}
        http = {subject.name: partial(_told, argv, subject, mark) for subject, argv in commands.items()}
        rows += _rows("start: host first delta, HTTP", interleave(reference | http, rounds), at_most=1.6)
    commands = {subject: rpc(subject, "--provider", "lab") for subject in subjects}
    lab = {subject.name: partial(_line, argv, subject, PROMPT, mark) for subject, argv in commands.items()}
    return rows + _rows("start: rpc first delta, lab", interleave(reference | lab, rounds))


def _program(modules: str) -> str:
    return f"import sys,{modules}; sys.stdout.write('{{}}\\n'); sys.stdout.flush()"


def _whole(argv: Sequence[str], subject: Subject) -> float:
    with Process(argv, subject) as process:
        return process.ended() - process.started


def _line(argv: Sequence[str], subject: Subject, said: bytes, mark: bytes) -> float:
    with Process(argv, subject) as process:
        if said:
            process.write(said)
        return process.until(mark) - process.started


def _told(argv: Sequence[str], subject: Subject, mark: bytes) -> float:
    return _line(argv, subject, request(), mark)


def _rows(name: str, samples: Samples, *, at_most: float | None = None) -> list[Row]:
    reference = median(samples[_REFERENCE])
    return [
        Row(
            name,
            subject,
            median(values) / reference,
            at_most=at_most,
            spread=spread(values),
            detail=f"{median(values) * 1e3:.1f} ms / {reference * 1e3:.1f} ms",
        )
        for subject, values in samples.items()
        if subject != _REFERENCE
    ]
