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

from measure import Row, interleave, median, quantile, spread
from seat import Seat
from subject import HERE, ROOT, Subject

_EMPTY = "from textual.app import App\nApp().run()\n"
_DELTAS = 5000
_PROSE = "Some words of a **paragraph** with `code` and more words."
_LETTERS = "QXZJKVWY"
_PAGES = 30
_UP = "\x1b[5~"
_LEAVE = "\x11"
_LAB = ("--provider", "lab")


def terminal(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """Everything about `zot` alone. It needs the extra, which nothing else that is measured has."""
    for subject in subjects:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", subject.python]
        subprocess.run([*pip, "install", "--constraint", str(ROOT / "constraints.txt"), "textual"], check=True)
    rows = _first_frame(subjects, rounds)
    for subject in subjects:
        rows += [*_typing(subject), *_scrolling(subject)]
    return rows


def _first_frame(subjects: Sequence[Subject], rounds: int) -> list[Row]:
    """The work until the first frame against that of an empty app."""
    empty = [subjects[0].python, "-c", _EMPTY]
    # An empty app has drawn its frame when it comes to the last row; ours when the editor says what it is for.
    samplers = {"reference": partial(_work, empty, subjects[0], "\x1b[40;1H")}
    samplers |= {one.name: partial(_work, [one.zot, *_LAB], one, "anything") for one in subjects}
    samples = interleave(samplers, rounds)
    reference = median(samples["reference"])
    return [
        Row("terminal: first frame", one.name, median(samples[one.name]) / reference, at_most=1.25,
            spread=spread(samples[one.name]),
            detail=f"{median(samples[one.name]):.2f} s / {reference:.2f} s of the processor")
        for one in subjects
    ]  # fmt: skip


def _work(argv: Sequence[str], subject: Subject, mark: str) -> float:
    with Seat(argv, subject) as seat:
        seat.until(mark)
        return seat.cpu_s


def _typing(subject: Subject) -> list[Row]:
    """From pressing a key to seeing it, while 5,000 deltas come, one every 2 ms."""
    script, steps = subject.directory / "typing.lab", subject.directory / "steps.json"
    script.write_text(_script())
    argv = [subject.python, str(HERE / "steps.py"), str(steps), *_LAB, "--no-session", "--script", str(script)]
    with Seat(argv, subject) as seat:
        seat.until("ready")
        seat.rest(1.0)
        seat.type("go\r")
        seat.until("answering")
        began, worked = perf_counter(), seat.cpu_s
        delays = _pressed(seat)
        share = (seat.cpu_s - worked) / (perf_counter() - began)
        seat.type(_LEAVE)
        seat.ended()
    longest = json.loads(steps.read_text())
    detail = f"median {median(delays):.0f} ms, most {max(delays):.0f} ms, of {len(delays)} keys"
    return [
        Row("terminal: key to screen, p95", subject.name, quantile(delays, 0.95), "ms", at_most=50, detail=detail),
        Row("terminal: longest step", subject.name, longest[0] * 1e3, "ms", at_most=50,
            detail=f"then {longest[1] * 1e3:.0f}, {longest[2] * 1e3:.0f}; of the processor"),
        Row("terminal: processor while streaming", subject.name, share * 100, "%", at_most=40),
    ]  # fmt: skip


def _pressed(seat: Seat) -> list[float]:
    """Press keys until nothing runs any more; return how long each took to be seen, in ms."""
    chance, delays, typed = random.Random(1), [], ""
    while b"ready" not in seat.written:
        if len(typed) > 100:
            seat.type("\x15")
            typed = ""
        typed += chance.choice(_LETTERS)
        pressed = perf_counter()
        seat.type(typed[-1])
        seen = seat.until(typed[-5:])
        if len(typed) > 5:  # Else it may be what was there before.
            delays.append((seen - pressed) * 1e3)
        seat.rest(chance.uniform(0.05, 0.15))
    return delays


def _script() -> str:
    words = [*(f"{word} " for word in _PROSE.split()), "\n\n"]
    code = ["```python\n", "def f(x):\n", "    return x\n", "```\n\n"]
    said: list[str] = []
    while len(said) < _DELTAS:
        said += words + (code if len(said) % 4 else ["- point\n"] * 3 + ["\n"])
    return f"pace 2ms\nsay {' '.join(json.dumps(one) for one in said[:_DELTAS])}\n"


def _scrolling(subject: Subject) -> list[Row]:
    """2,000 messages: from the first frame until they are shown, and the work for a page."""
    made = subprocess.run([subject.python, str(HERE / "said.py")], env=subject.env, capture_output=True, check=True)
    with Seat([subject.zot, *_LAB, "--resume", made.stdout.decode().strip()], subject) as seat:
        began = seat.until("anything")
        opened = seat.until("That is it.") - began
        seat.rest(2.0)
        worked, delays = seat.cpu_s, []
        for _ in range(_PAGES):
            pressed = perf_counter()
            seat.type(_UP)
            delays.append((seat.until("\x1b[1;1H") - pressed) * 1e3)
            seat.rest(0.2)
        page = (seat.cpu_s - worked) / _PAGES
    return [
        Row("terminal: open 2,000 messages", subject.name, opened * 1e3, "ms", at_most=1000, detail="after the frame"),
        Row(
            "terminal: a page of them",
            subject.name,
            page * 1e3,
            "ms",
            at_most=50,
            detail=f"of the processor; median {median(delays):.0f} ms from key to screen",
        ),
    ]


if __name__ == "__main__":  # One that is installed already, with the extra: `python bench/terminal.py DIRECTORY`.
    print(*_typing(one := Subject("zot", Path(sys.argv[1]))), *_scrolling(one), *_first_frame([one], 6), sep="\n")
