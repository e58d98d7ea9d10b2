"""Extensions written with the SDK as real processes: how fast they greet, and which handlers run concurrently."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from extensions.process import Running, running
from harness import PATIENCE_S, environment, eventually
from zot.extensions.peer import Acknowledged, Notified, PeerEnded, ToolAnswered
from zot.messages import TextBlock
from zot.wire import extension as wire

Start = Callable[[str], Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program that declares things on ``x``, and wait until it is ready."""
    with ExitStack() as stack:

        def started(program: str) -> Running:
            (tmp_path / "x.py").write_text(
                f'import zot.ext\nx = zot.ext.Extension("x", on_failure="block")\n{program}\nx.run()\n'
            )
            extension = stack.enter_context(running(tmp_path, name="x", command=[sys.executable, "x.py"]))
            extension.ready()
            return extension

        yield started


def test_it_serves_until_it_is_shut_down(start: Start) -> None:
    x = start(
        "@x.tool\ndef double(n: int) -> int: return 2 * n\n"
        "@x.command\nasync def hi(args): return 'hello ' + args\n"
        "@x.intercept('tool_call')\ndef guard(call): return zot.ext.block('no') if call.tool_name == 'bash' else None\n"
        "@x.at_end\ndef bye(): x.notify('bye')\n"
    )
    assert x.call("double", n=4) == ToolAnswered("1", (TextBlock("8"),))
    assert x.command("hi", "me") == wire.CommandResponse("2", "display", display="hello me")
    assert x.ask("tool_call", tool_name="bash").reason == "no"
    assert x.ask("tool_call", tool_name="read").block is False
    assert x.shut_down() == PeerEnded("exited with 0", wanted=True)
    assert [Notified("info", "bye"), Acknowledged()] == x.peer_events[-3:-1]
    assert x.log == ""


def test_prints_go_to_the_log(start: Start) -> None:
    x = start(
        "import os, subprocess\n"
        "@x.command\ndef hi():\n"
        "    print('printed', flush=True)\n"
        "    os.write(1, b'written\\n')\n"
        "    subprocess.run(['echo', 'echoed'])\n"
    )
    assert x.command("hi") == wire.CommandResponse("1")
    assert x.log == "printed\nwritten\nechoed\n"


def test_a_slow_tool_delays_no_other_call(start: Start) -> None:
    x = start(
        "import threading\ngo = threading.Event()\n"
        "@x.tool\ndef slow() -> str:\n    go.wait(30)\n    return 'slow'\n"
        "@x.tool\nasync def quick() -> str: return 'quick'\n"
        "@x.intercept('turn_start')\ndef turn(question): return None\n"
        "@x.command\ndef release(): go.set()\n"
    )
    slow = x.peer.call_tool("slow", {}, time.monotonic())
    assert not isinstance(slow, ToolAnswered)
    x.write(slow.data)
    assert x.call("quick").content == (TextBlock("quick"),)
    assert not x.ask("turn_start").failure
    x.write(x.peer.invoke_command("release", "", time.monotonic()).data)  # type: ignore[union-attr]  # it is registered
    assert x.until(lambda peer_event: isinstance(peer_event, ToolAnswered)) == ToolAnswered(
        slow.id, (TextBlock("slow"),)
    )


def test_observers_are_called_in_order_and_get_every_event_before_the_end(start: Start) -> None:
    x = start(
        "heard = []\n"
        "@x.on('turn_start')\ndef turn(event): heard.append(event.step)\n"
        "@x.intercept('turn_start')\ndef may(question): heard.append(-question.step)\n"
        "@x.at_end\ndef tell(): x.notify(repr(heard))\n"
    )
    expected = []
    for step in range(1, 30):
        assert not x.ask("turn_start", step=step).block
        x.write(x.peer.notify(wire.Event("turn_start", step=step)))
        expected += [-step, step]
    x.shut_down()
    assert Notified("info", repr(expected)) in x.peer_events


def test_it_ends_when_zot_does(start: Start) -> None:
    x = start("@x.at_end\ndef bye(): print('bye')\n")
    assert x.process.stdin is not None
    x.process.stdin.close()
    assert x.exit_code() == 0
    eventually(lambda: x.log == "bye\n")


def test_unknown_frames_are_logged_and_ignored(start: Start) -> None:
    x = start("@x.command\ndef hi(): return 'hi'\n")
    x.write(b'nuisance\n{"type":"sing"}\n')
    assert x.command("hi").display == "hi"
    assert x.log == (
        "zot.ext: not a JSON object: JSON is malformed: invalid character (byte 4)\nzot.ext: unknown frame 'sing'\n"
    )


def test_an_extension_that_cannot_be_set_up_exits_with_the_reason(tmp_path: Path) -> None:
    program = "import zot.ext\nx = zot.ext.Extension('x')\n@x.setup\ndef no(): raise LookupError('no key')\nx.run()\n"
    with running(tmp_path, name="x", command=[sys.executable, "-c", program]) as x:
        assert x.until(lambda peer_event: isinstance(peer_event, PeerEnded)) == PeerEnded("exited with 1", wanted=False)
        assert x.log.endswith("LookupError: no key\n")


def test_few_modules_are_loaded_before_hello(tmp_path: Path) -> None:
    """By then it may have loaded msgspec, the modules for threads, and our wire; asyncio only once a coroutine runs."""
    program = (
        "import sys, msgspec\nbefore = {*sys.modules}\nimport zot.ext\nx = zot.ext.Extension('x')\n"
        "@x.tool\ndef t(city: str) -> str: return city\n"
        "@x.command\nasync def c(): pass\n"
        "@x.intercept('tool_call')\ndef i(call): pass\n"
        "x.run()\nprint(*sorted({*sys.modules} - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"", capture_output=True, cwd=tmp_path, env=environment({}),
        timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(b'{"type":"hello","name":"x"')
    loaded = done.stderr.decode().split()
    ours = ["declarations", "extension", "serving"]
    wires = ["zot.wire", "zot.wire.extension", "zot.wire.lines"]
    assert [name for name in loaded if name.startswith("zot")] == [
        "zot", "zot.encoding", "zot.errors", "zot.ext", *(f"zot.ext.{name}" for name in ours), "zot.text",
        *wires,
    ]  # fmt: skip
    others = {name.partition(".")[0] for name in loaded if not name.startswith("zot")}
    assert others <= {"msgspec", "threading", "_weakrefset", "queue", "_queue", "heapq", "_heapq"}
