"""The terminal: its first frame, keys while a model streams, and a long conversation."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from installation import HERE, ROOT, Installation
from measure import Row, interleave, median, quantile, spread
from pty_program import PtyProgram

_EMPTY = "from textual.app import App\nApp().run()\n"
_DELTAS = 5000
_PROSE = "Some words of a **paragraph** with `code` and more words."
_LETTERS = "QXZJKVWY"
_PAGES = 30
_UP = "\x1b[5~"
_LEAVE = "\x11"
_LAB = ("--provider", "lab")


def terminal(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """All figures of the terminal. It needs the extra, which the other benchmarks do without."""
    for installation in installations:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", installation.python]
        subprocess.run([*pip, "install", "--constraint", str(ROOT / "constraints.txt"), "textual"], check=True)
    rows = _first_frame(installations, rounds)
    for installation in installations:
        rows += [*_typing(installation), *_scrolling(installation)]
    return rows


def _first_frame(installations: Sequence[Installation], rounds: int) -> list[Row]:
    """The work until the first frame against that of an empty app."""
    empty = [installations[0].python, "-c", _EMPTY]
    # An empty app has drawn its frame when it comes to the last row; ours when the editor says what it is for.
    samplers = {"reference": partial(_work, empty, installations[0], "\x1b[40;1H")}
    samplers |= {one.name: partial(_work, [one.zot, *_LAB], one, "anything") for one in installations}
    samples = interleave(samplers, rounds)
    reference = median(samples["reference"])
    return [
        Row("terminal: first frame", one.name, median(samples[one.name]) / reference, at_most=1.25,
            spread=spread(samples[one.name]),
            detail=f"{median(samples[one.name]):.2f} s / {reference:.2f} s of the processor")
        for one in installations
    ]  # fmt: skip


def _work(argv: Sequence[str], installation: Installation, mark: str) -> float:
    with PtyProgram(argv, installation) as program:
        program.until(mark)
        return program.cpu_s


def _typing(installation: Installation) -> list[Row]:
    """From pressing a key to seeing it, while 5,000 deltas come, one every 2 ms."""
    script, steps = installation.directory / "typing.lab", installation.directory / "steps.json"
    script.write_text(_script())
    argv = [
        installation.python,
        str(HERE / "loop_steps.py"),
        str(steps),
        *_LAB,
        "--no-session",
        "--script",
        str(script),
    ]
    with PtyProgram(argv, installation) as program:
        program.until("ready")
        program.rest(1.0)
        program.type("go\r")
        program.until("answering")
        began, worked = perf_counter(), program.cpu_s
        delays = _pressed(program)
        share = (program.cpu_s - worked) / (perf_counter() - began)
        program.type(_LEAVE)
        program.ended()
    longest = json.loads(steps.read_text())
    detail = f"median {median(delays):.0f} ms, most {max(delays):.0f} ms, of {len(delays)} keys"
    return [
        Row("terminal: key to screen, p95", installation.name, quantile(delays, 0.95), "ms", at_most=50, detail=detail),
        Row("terminal: longest step", installation.name, longest[0] * 1e3, "ms", at_most=50,
            detail=f"then {longest[1] * 1e3:.0f}, {longest[2] * 1e3:.0f}; of the processor"),
        Row("terminal: processor while streaming", installation.name, share * 100, "%", at_most=40),
    ]  # fmt: skip


def _pressed(program: PtyProgram) -> list[float]:
    """Press keys until the run ends; return how long each took to appear, in ms."""
    chance, delays, typed = random.Random(1), [], ""
    while b"ready" not in program.written:
        if len(typed) > 100:
            program.type("\x15")
            typed = ""
        typed += chance.choice(_LETTERS)
        pressed = perf_counter()
        program.type(typed[-1])
        seen = program.until(typed[-5:])
        if len(typed) > 5:  # Otherwise it may be earlier output.
            delays.append((seen - pressed) * 1e3)
        program.rest(chance.uniform(0.05, 0.15))
    return delays


def _script() -> str:
    words = [*(f"{word} " for word in _PROSE.split()), "\n\n"]
    code = ["```python\n", "def f(x):\n", "    return x\n", "```\n\n"]
    said: list[str] = []
    while len(said) < _DELTAS:
        said += words + (code if len(said) % 4 else ["- point\n"] * 3 + ["\n"])
    return f"pace 2ms\nsay {' '.join(json.dumps(one) for one in said[:_DELTAS])}\n"


def _scrolling(installation: Installation) -> list[Row]:
    """2,000 messages: from the first frame until they are shown, and the CPU time per page."""
    made = subprocess.run(
        [installation.python, str(HERE / "long_session.py")], env=installation.env, capture_output=True, check=True
    )
    with PtyProgram([installation.zot, *_LAB, "--resume", made.stdout.decode().strip()], installation) as program:
        began = program.until("anything")
        opened = program.until("That is it.") - began
        program.rest(2.0)
        worked, delays = program.cpu_s, []
        for _ in range(_PAGES):
            pressed = perf_counter()
            program.type(_UP)
            delays.append((program.until("\x1b[1;1H") - pressed) * 1e3)
            program.rest(0.2)
        page = (program.cpu_s - worked) / _PAGES
    return [
        Row(
            "terminal: open 2,000 messages",
            installation.name,
            opened * 1e3,
            "ms",
            at_most=1000,
            detail="after the frame",
        ),
        Row(
            "terminal: a page of them",
            installation.name,
            page * 1e3,
            "ms",
            at_most=50,
            detail=f"of the processor; median {median(delays):.0f} ms from key to screen",
        ),
    ]


if __name__ == "__main__":  # Measure an existing installation with the extra: `python bench/terminal.py DIRECTORY`.
    print(*_typing(one := Installation("zot", Path(sys.argv[1]))), *_scrolling(one), *_first_frame([one], 6), sep="\n")
