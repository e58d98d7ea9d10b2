"""`zot ext new`, `test` and `run`."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from zot.commands.subcommands import CommandRequest, absolute_directory, print_note, write, write_json
from zot.config.config import TOOL_NAMES, Config, keyless_environment, tool_environment, zot_home
from zot.errors import UserError
from zot.extensions.authoring import BenchObserver, Finding, ProtocolCheck, TestBench, build_of, scaffold
from zot.extensions.confinement import Confinement
from zot.extensions.install import run_program
from zot.extensions.manifest import load
from zot.extensions.peer import (
    CommandAnswered,
    ExtensionDeadlines,
    Notified,
    PeerBroken,
    PeerEnded,
    PeerEvent,
    ProtocolViolation,
    Unconfined,
)
from zot.extensions.peer_connection import Way
from zot.extensions.sources import LaunchSettings, ProgramSource
from zot.serve.streams import read_chunks
from zot.text import printable
from zot.tools.guardian import open_processes
from zot.version import __version__
from zot.wire.lines import LineSplitter, TooLong

_BUILD_S = 120.0


def new(request: CommandRequest) -> int:
    """Create an extension, and build it if necessary and possible here."""
    name, *where = request.words
    language = request.settings.get("lang", "python")
    place = absolute_directory(where[0] if where else name)
    files = scaffold(name, language, place)
    build = build_of(language, name)
    built = not build or asyncio.run(_build(build, place))
    if request.json:
        write_json({"name": name, "directory": place, "language": language, "files": files, "built": built})
        return 0
    write(f"created {printable(place)}: {', '.join(files)}\n")
    if not built:
        write(f"build it: cd {shlex.quote(place)} && {shlex.join(build)}\n")
    write(f"try it: zot ext test {shlex.quote(os.path.relpath(place))}\n")
    return 0


async def _build(argv: list[str], place: str) -> bool:
    """Build it with the language's own program; False if that is missing or fails."""
    if shutil.which(argv[0]) is None:
        return False
    processes = open_processes()
    try:
        env = keyless_environment(os.environ)
        status, said = await run_program(argv, cwd=place, env=env, processes=processes, within_s=_BUILD_S)
    except UserError as problem:
        print_note(printable(str(problem)))
        return False
    finally:
        await processes.close()
    if status:
        print_note(f"{shlex.join(argv)}: {printable(said.strip()[-500:])}")
    return not status


@asynccontextmanager
async def bench_of(request: CommandRequest, observer: BenchObserver) -> AsyncIterator[TestBench]:
    """Yield the extension that the request names, running; end its processes afterwards. Raise ConfigError.

    Its standard error goes to ours.
    """
    where, cwd, env = absolute_directory(request.words[0]), absolute_directory(None), tool_environment(os.environ)
    manifest, home = load(where), zot_home(os.environ)
    limits = {f"{name}_s": seconds for name, seconds in request.settings.get("ext_deadlines", ())}
    processes, errors = open_processes(protected=True), os.dup(2)
    try:
        around = LaunchSettings(
            lambda: processes,
            env,
            home,
            "lab",
            "lab",
            cwd,
            __version__,
            ExtensionDeadlines(**limits),
            Confinement(lambda: processes, env, Config(), cwd=cwd),
            bool(request.settings.get("unsandboxed_ext")),
        )
        bench = TestBench(ProgramSource(manifest, where, around), errors, observer)
        try:
            yield bench
        finally:
            await bench.close()
    finally:
        await processes.close()
        os.close(errors)


def on_signal(call: Callable[[], object]) -> None:
    """Call ``call`` on SIGINT, SIGTERM or SIGHUP instead of the default action."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, call)


def run(request: CommandRequest) -> int:
    """Start an extension, and run typed commands until the input ends."""
    return asyncio.run(_run(request))


async def _run(request: CommandRequest) -> int:
    shown = _FramePrinter(json=request.json) if request.json or request.settings.get("trace") else _Printer()
    async with bench_of(request, shown) as bench:
        typing = asyncio.create_task(_type(bench, shown, read_chunks(0)), name="zot ext run")
        ending = asyncio.create_task(bench.over(), name="zot ext end")
        on_signal(typing.cancel)
        try:
            await asyncio.wait({typing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            typing.cancel()
            await asyncio.wait({typing})
            await bench.close()
            await ending
    if not typing.cancelled():
        typing.result()
    if shown.failure:
        raise UserError(f"{bench.manifest.name} {shown.failure}")
    return 0


async def _type(bench: TestBench, shown: _Printer, chunks: AsyncIterator[bytes]) -> None:
    """Run typed commands, one after the other."""
    await bench.observer.settled.wait()
    lines = LineSplitter()
    async for data in chunks:
        for line in lines.feed(data):
            await _run_line(bench, shown, line)
    for line in lines.finish():
        await _run_line(bench, shown, line)


async def _run_line(bench: TestBench, shown: _Printer, line: bytes | TooLong) -> None:
    text = "" if isinstance(line, TooLong) else line.decode("utf-8", "replace").strip()
    name, _, args = text.removeprefix("/").partition(" ")
    known = [command.name for command in bench.peer.commands]
    if not text.startswith("/") or name not in known:
        there = ", ".join(f"/{one}" for one in known) or "none"
        print_note(f"not a command: {printable(text)}; there are: {there}")
    else:
        shown.answered(await bench.connection.run_command(name, args))


class _Printer(BenchObserver):
    """Prints an extension's notices and answers. ``failure`` is the final error; "" if there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.failure = ""

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Receive an event of the extension."""
        super().on_peer_event(peer_event)
        match peer_event:
            case Unconfined(reason=reason):
                print_note(reason)
            case Notified(level=level, message=message):
                self._show(f"{level}: {message}")
            case ProtocolViolation(reason=reason):
                print_note(printable(reason))
            case PeerBroken(reason=reason):
                self.failure = reason
            case PeerEnded(reason=reason, wanted=False):
                self.failure = self.failure or reason
            case _:
                pass

    def answered(self, answered: CommandAnswered) -> None:
        """Receive the answer to a command."""
        response = answered.response
        if response.error:
            print_note(printable(response.error))
            return
        said = response.prompt or response.insert or response.display
        lines = response.open_panel.lines if response.open_panel else tuple(said.split("\n")) if said else ()
        self._show(response.action, *(f"  {line}" for line in lines))

    def _show(self, *lines: str) -> None:
        write("".join(f"{printable(line)}\n" for line in lines))
        sys.stdout.flush()


class _FramePrinter(_Printer):
    """Prints every frame instead, a line each; with ``json`` as an object with direction and line."""

    def __init__(self, *, json: bool) -> None:
        super().__init__()
        self._json = json
        self._lines = {"<": LineSplitter(), ">": LineSplitter()}

    def on_bytes(self, way: Way, data: bytes) -> None:
        """Receive the bytes of frames."""
        for line in self._lines[way].feed(data):
            text = "(a line that is too long)" if isinstance(line, TooLong) else line.decode("utf-8", "replace")
            if self._json:
                write_json({"way": way, "line": text})
            else:
                write(f"{way} {printable(text)}\n")
        sys.stdout.flush()

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Receive an event, except those shown as frames."""
        if not isinstance(peer_event, Notified):
            super().on_peer_event(peer_event)

    def answered(self, answered: CommandAnswered) -> None:
        """Receive the answer to a command, already shown as a frame."""
        if answered.failure:
            print_note(printable(answered.failure))


def test(request: CommandRequest) -> int:
    """Test an extension; print each finding in a line."""
    return asyncio.run(_test(request))


class _PrintedCheck(ProtocolCheck):
    """A protocol check that prints each finding in a line."""

    def __init__(self, *, json: bool) -> None:
        super().__init__(taken=TOOL_NAMES)
        self._json = json

    def tell(self, finding: Finding) -> None:
        """Print a finding."""
        if self._json:
            write_json(finding)
        else:
            write(f"{finding.verdict:<5}  {finding.text}\n")
        sys.stdout.flush()

    def on_peer_event(self, peer_event: PeerEvent) -> None:
        """Print that it is not confined; record the rest."""
        super().on_peer_event(peer_event)
        if isinstance(peer_event, Unconfined):
            print_note(peer_event.reason)


async def _test(request: CommandRequest) -> int:
    trial = _PrintedCheck(json=request.json)
    testing = asyncio.current_task()
    assert testing is not None
    on_signal(testing.cancel)
    try:
        async with bench_of(request, trial) as bench:
            await trial.run(bench, call_tools=bool(request.settings.get("call_tools")))
    except asyncio.CancelledError:
        raise UserError("interrupted") from None
    if trial.failures:
        counted = "1 check" if trial.failures == 1 else f"{trial.failures} checks"
        raise UserError(f"{bench.manifest.name} failed {counted}")
    return 0
