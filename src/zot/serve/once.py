"""One prompt per process: print its events as lines, or only its final text."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from zot.errors import AgentError, NoAnswer, NoSuchCommand, RunCancelled, UserError
from zot.events import AgentEvent, Done, Error, notice_lines
from zot.panels import CommandAnswer
from zot.run_summary import CUT_OFF, BlockedCall, RunSummary
from zot.serve.streams import StreamWriter, read_chunks
from zot.session.history import Batch, WritingSubscriber
from zot.session.queue import JobObserver
from zot.session.session import Session
from zot.text import did_you_mean, printable, printable_line, shell_word
from zot.wire import rpc
from zot.wire.rpc import EventEncoder
from zot.wire.rpc_greeting import fail, succeed

MAX_INPUT_BYTES = 10 * 1024 * 1024
_MAX_TOOL = 100


class OutputFormat(Protocol):
    """Output format of a run."""

    def show(self, batch: Batch) -> None:
        """Show a batch of events."""

    def answer(self, name: str, args: str, answer: CommandAnswer) -> None:
        """Show the answer of an extension's command. If it contains a prompt, that prompt's run follows."""

    def deny(self, name: str, args: str, reason: str) -> None:
        """Show that an extension's command failed or needs something impossible here. No run follows."""

    def finish(self, outcome: RunSummary) -> None:
        """Show the outcome of a successful run."""

    def refuse(self, reason: str) -> None:
        """Show that no run takes place, and why. Does nothing once a run has ended or was refused."""


class EventLines:
    """Show each event as a line, as RPC does, with `done` as the last."""

    def __init__(self, output: StreamWriter, features: frozenset[str]) -> None:
        self._output = output
        self._features = features
        self._events = EventEncoder()
        self._is_done = False

    def show(self, batch: Batch) -> None:
        self._write(batch.events, batch.run)

    def answer(self, name: str, args: str, answer: CommandAnswer) -> None:
        self._output.write(succeed(rpc.RunCommand(name=name, args=args), answer))
        if not answer.prompt:
            self._write([Done()])

    def deny(self, name: str, args: str, reason: str) -> None:
        self._output.write(fail(rpc.RunCommand(name=name, args=args), reason))
        self.refuse(reason)

    def finish(self, outcome: RunSummary) -> None:
        pass

    def refuse(self, reason: str) -> None:
        if not self._is_done:
            self._write([Error(reason), Done()])

    def _write(self, events: Sequence[AgentEvent], run: int = 0) -> None:
        self._is_done = self._is_done or Done() in events
        self._output.write(self._events.lines(events, self._features, run=run))


class FinalText:
    """Show only the text of the last message, formatted by ``form``."""

    def __init__(self, output: StreamWriter, form: Callable[[str], str] = str) -> None:
        self._output = output
        self._form = form

    def show(self, batch: Batch) -> None:
        pass

    def answer(self, name: str, args: str, answer: CommandAnswer) -> None:
        if text := answer.display or answer.insert:
            self._print(text)

    def deny(self, name: str, args: str, reason: str) -> None:
        pass

    def finish(self, outcome: RunSummary) -> None:
        if not outcome.held_back:  # Otherwise there is nothing to print; standard error gives the reason.
            self._print(self._form(outcome.text))

    def refuse(self, reason: str) -> None:
        pass

    def _print(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self._output.write(data if data.endswith(b"\n") else data + b"\n")


#: The commands of the terminal, with what does the same for one prompt.
TERMINAL_COMMANDS: Mapping[str, str] = {
    "help": "zot --help",
    "model": "--model ID",
    "login": "zot login",
    "logout": "zot logout",
    "sessions": "zot sessions list",
    "session": "zot sessions",
    "compact": "zot, which starts the terminal",
    "undo-compact": "zot, which starts the terminal",
    "rewind": "zot sessions rewind",
    "clear": "a new session",
    "jump": "zot sessions show",
    "btw": "zot -p without --session",
    "skills": "zot skills",
    "lock": "--lock",
    "unlock": "no --lock",
    "reload-ext": "zot -p again: each run loads the extensions",
    "mcp": "zot mcp list",
    "approvals": "--policy",
    "cost": "zot sessions show",
    "export": "zot sessions export",
    "exit": "Ctrl+C",
}


class OneRun(WritingSubscriber, JobObserver):
    """Run one prompt and show it: the run waits for a slow reader."""

    def __init__(self, session: Session, output: StreamWriter, face: OutputFormat) -> None:
        super().__init__(output)
        self._session = session
        self._face = face
        self._outcome = RunSummary()
        self._drop_reason = ""
        #: Tool calls that could not run, although nothing forbids them.
        self.blocked: Sequence[BlockedCall] = ()
        session.history.subscribe(self)

    async def run(self, prompt: str) -> None:
        """Run the prompt, or the command it contains, to its end. Raise AgentError if there is no answer."""
        answer = await self._command(prompt)
        if answer is not None and not answer.prompt:
            return
        await self._ask(prompt if answer is None else answer.prompt)

    async def _command(self, prompt: str) -> CommandAnswer | None:
        """Run ``prompt`` as a command, such as "/name args", and return its answer; None if it is not a command."""
        name, args = _command_in(prompt)
        if not name:
            return None
        try:
            answer = await self._session.run_command(name, args)
            if answer.panel_id:
                self._session.extensions.panels.close(answer.panel_id)
                raise UserError(
                    f"/{name} opens a panel, which needs a terminal: start zot without -p, then type /{name}"
                )
        except NoSuchCommand as problem:
            what = f"/{name} cannot be run: {problem.absent}." if problem.absent else ""
            if instead := TERMINAL_COMMANDS.get(name):
                what = f"/{name} is a command of the terminal; here, use: {instead}."
            if not what:
                known = [one.name for one in await self._session.commands()] + [*TERMINAL_COMMANDS]
                near = did_you_mean(name, [f"/{one}" for one in known])
                if not near:  # Not a command: treat it as a prompt.
                    return None
                what = f"unknown command /{name}{near}"
            failure = UserError(f"{what} To send it as a prompt, put a space before the slash")
            self._face.deny(name, args, str(failure))
            raise failure from None
        except AgentError as problem:
            self._face.deny(name, args, str(problem))
            raise
        self._face.answer(name, args, answer)
        return answer

    async def _ask(self, prompt: str) -> None:
        job = self._session.prompt(prompt, observer=self)
        await self._session.worker.finish()
        self.blocked = job.blocked
        if self._drop_reason:
            raise UserError(self._drop_reason)
        if job.error is not None:
            raise job.error
        if job.aborted:
            raise RunCancelled("stopped before it was done")
        if self._outcome.stop == "length":
            raise NoAnswer(CUT_OFF)
        self._face.finish(self._outcome)

    def deliver(self, batch: Batch) -> None:
        self._outcome.take(batch.events)
        self._face.show(batch)
        sys.stderr.write(notice_lines(batch.events))

    def dropped(self, why: AgentError) -> None:
        self._drop_reason = str(why)
        self._face.refuse(self._drop_reason)


def blocked_lines(calls: Sequence[BlockedCall]) -> str:
    """Return a line for each tool that could not run and each reason: what happened, and the remedy."""
    lines = []
    for call in dict.fromkeys(calls):
        tool = printable_line(call.tool, _MAX_TOOL)
        if call.no_sandbox:
            why = f"--lock needs a sandbox, and {printable(call.no_sandbox)}"
            remedy = "Install bubblewrap, or run without --lock"
        else:
            why = "the policy asks for approval, and zot -p cannot ask"
            rule = shell_word(f"{tool}=allow")
            remedy = f"Allow it with: --policy {rule}, before any other --policy"
        lines.append(f"zot: {tool} was not run: {why}. {remedy}\n")
    return "".join(lines)


def _command_in(prompt: str) -> tuple[str, str]:
    """Return the name and arguments of the command that ``prompt`` may be; ("", "") if it cannot be one."""
    if not prompt.startswith("/") or prompt[1:2].isspace():
        return "", ""
    name, *rest = prompt[1:].split(maxsplit=1) or [""]
    return ("", "") if "/" in name else (name, "".join(rest))  # With a slash it is a path.


async def read_piped(descriptor: int, *, patience_s: float | None) -> str | None:
    """Return piped input up to its end; "" if there is none, None if nothing arrives within ``patience_s``.

    A terminal and the null device count as none. Raise UserError if the input is too long.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)):
        return ""
    chunks = read_chunks(descriptor)
    data = bytearray()
    try:
        async with asyncio.timeout(patience_s) as first:
            async for chunk in chunks:
                first.reschedule(None)
                data += chunk
                if len(data) > MAX_INPUT_BYTES:
                    raise UserError(f"standard input has more than {MAX_INPUT_BYTES // 1024**2} MiB")
    except TimeoutError:
        return None
    return data.decode("utf-8", "replace")
