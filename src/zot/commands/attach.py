"""`zot attach`: follow a session of the daemon and type into it."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from zot.client.client import RECONNECT_S, Client
from zot.client.session import ClientSession
from zot.commands.subcommands import FAILED, NOT_RUNNING, absolute_directory, print_note, write
from zot.commands.terminal import can_show_screen, load_app, run_app
from zot.config import flags
from zot.config.config import Config
from zot.config.paths import locate
from zot.encoding import encode, explain
from zot.errors import AgentError, ConnectionLost, UsageError, UserError
from zot.events import (
    AgentEvent,
    ApprovalAnswer,
    ApprovalRequest,
    CompactDone,
    ConversationReplaced,
    Done,
    Error,
    ExtNotify,
    QuestionAnswer,
    QuestionRequest,
    Retry,
    TextDelta,
    ToolCall,
    ToolResult,
    TurnEnd,
    UserMessage,
)
from zot.messages import text_of
from zot.run_summary import CUT_OFF
from zot.serve.streams import read_chunks
from zot.text import did_you_mean, escaped, printable, printable_line, shell_word
from zot.ui.conversation import OpenedConversation
from zot.ui.readable import match_session_id
from zot.ui.remote import ClientHome
from zot.ui.terminal.styles import beyond_summary, until
from zot.wire.jsonrpc import RpcError
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter, TooLong

if TYPE_CHECKING:
    from zot.ui.conversation import Home
    from zot.wire.daemon_types import SessionEntry
    from zot.wire.updates import TurnSummary

_WIDTH = 200


class Lines:
    """Turns events into text: the model's text as it streams, everything else in lines of its own."""

    def __init__(self) -> None:
        self._in_text = False

    def shown(self, event: AgentEvent) -> str:
        """Return the text for an event; "" for none."""
        if isinstance(event, TextDelta):
            self._in_text = not event.delta.endswith("\n")
            return escaped(event.delta)
        said = _line_for(event)
        if said is None:
            return ""
        before = "\n" if self._in_text else ""
        self._in_text = False
        return f"{before}{said}\n"


def _line_for(event: AgentEvent) -> str | None:
    """Return the line for an event; None if it has none."""
    match event:
        case UserMessage(content=content):
            return f"> {escaped(text_of(content))}"
        case ToolCall(name=name, args=args):
            return f"* {printable(name)} {printable_line(encode(args).decode(), _WIDTH)}"
        case ToolResult(content=content, is_error=is_error):
            return f"  {'failed' if is_error else 'done'}: {printable_line(text_of(content), _WIDTH)}"
        case ApprovalRequest(summary=summary):
            lines = [f"    {line}\n" for line in beyond_summary(event)]
            return f"{''.join(lines)}? {printable(summary)} -- /approve or /reject, until {until(event)}"
        case QuestionRequest(origin=origin, message=message, fields=fields, url=url):
            wants = " JSON" if fields else ""
            lines = [f"    {printable_line(encode(field).decode(), _WIDTH)}\n" for field in fields]
            asks = f"{printable(message)}{f' ({printable(url)})' if url else ''}"
            return f"{''.join(lines)}? {printable(origin)} asks: {asks} -- /answer{wants} or /decline"
        case QuestionAnswer(action=action, by=by):
            return f"? {action}{f' by {printable(by)}' if by else ''}"
        case ApprovalAnswer(decision=decision, by=by):
            return f"? {decision}{f' by {printable(by)}' if by else ''}"
        case Error(message=message):
            return f"! {printable_line(message, _WIDTH)}"
        case Retry(reason=reason, attempt=attempt):
            return f"! {printable_line(reason, _WIDTH)}; retrying, attempt {attempt}"
        case TurnEnd(stop="aborted"):
            return "! cancelled"
        case TurnEnd(stop="length"):
            return f"! {CUT_OFF}"
        case CompactDone():
            return "! the conversation was compacted"
        case ConversationReplaced(messages=messages):
            return "! the conversation was changed" if messages else "! the conversation was cleared"
        case ExtNotify(extension=extension, message=message):
            return f"! {printable(extension)}: {printable_line(message, _WIDTH)}"
        case Done():
            return ""
        case _:
            return None


def _number(text: str) -> int:
    """Parse a sequence number, or 0."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number")
    return int(text)


MANUAL = flags.Manual(
    "zot attach [SESSION]",
    """\
Follow a session of the running daemon and type into it: each line is a prompt. Without SESSION, the newest one;
the beginning of an id is enough. When the input ends, attach waits for the running turns.

  /cancel             cancel the running turn
  /approve [always]   approve the tool call that waits
  /reject             reject it
  /answer [JSON]      answer the question of a tool, with the values of its fields
  /decline            decline it
  /quit               leave; the run continues
  /NAME WORDS         run an extension's command
  //WORDS             send a prompt that begins with a slash""",
    (
        flags.Flag("--new", "Create a session in the current directory."),
        flags.Flag("--agent", "With --new: use this agent (default: default).", value="NAME"),
        flags.Flag("--cwd", "Use this directory for a new session, or for one whose directory is gone.", value="DIR"),
        flags.Flag("--plain", "Print lines instead of drawing a screen."),
        flags.Flag("--after", "Replay the updates after this sequence number first; 0 replays all.", value="N",
                   parse=_number),
        flags.MAX_LINE_FLAG,
        flags.WAIT_FLAG,
        *flags.PLACE_FLAGS,
    ),
    examples=(
        ("echo 'Run the tests' | zot attach --new", "Send one prompt to a new session and wait for the answer."),
        ("zot attach 2026-11", "Join the session whose id begins like this."),
    ),
    exits={
        0: "Every turn succeeded.",
        1: "A turn failed, or the session does not exist.",
        2: "Wrong usage.",
        3: "No daemon is running.",
    },
)  # fmt: skip
#: How long to wait for an event before looking whether the session is idle.
_LOOK_S = 1.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    if len(words) > 1 or (words and settings.get("new")):
        raise UsageError("zot attach takes one session, or --new")
    return asyncio.run(_attach(words[0] if words else None, settings))


async def _attach(name: str | None, settings: dict[str, Any]) -> int:
    # A screen shows the lost connection and has keys to leave: it need not give up.
    patience_s = math.inf if _has_screen(settings) else RECONNECT_S
    client = Client.connect(
        socket=settings.get("socket"),
        config_dir=settings.get("config_dir"),
        reconnect_s=patience_s,
        wait_s=settings.get("wait", 0.0),
        questions=True,
    )
    try:
        await client.__aenter__()
    except ConnectionLost as problem:
        print_note(str(problem))
        return NOT_RUNNING
    try:
        session = await _open_chosen(client, name, settings)
        if _has_screen(settings):
            return await _on_screen(client, session, settings)
        return await _in_lines(session, settings)
    except ConnectionLost as problem:
        print_note(str(problem))
        return FAILED
    finally:
        await client.close()


async def _open_chosen(client: Client, name: str | None, settings: dict[str, Any]) -> ClientSession:
    """Return the session to attach to. Raise UserError if there is none, or more than one."""
    if settings.get("new"):
        return await client.session(agent=settings.get("agent", "default"), cwd=absolute_directory(settings.get("cwd")))
    entry = _find(await client.sessions(), name)
    if "cwd" not in settings:
        try:  # Reopen it: it may have been closed.
            return await client.session(entry.session_id, entry.agent_alias)
        except RpcError as problem:
            print_note(str(problem))  # It can still be read.
            return await client.attach(entry.session_id)
    if await asyncio.to_thread(os.path.isdir, entry.cwd):
        raise UserError(f"session {entry.session_id!r} works in {entry.cwd}, which exists: --cwd is not needed")
    return await client.session(entry.session_id, entry.agent_alias, absolute_directory(settings["cwd"]))


def _find(entries: Sequence[SessionEntry], name: str | None) -> SessionEntry:
    """Return the session ``name``, or the newest without a name. Raise UserError."""
    if name is None:
        if not entries:
            raise UserError("the daemon has no sessions; create one with: zot attach --new")
        return entries[0]
    known = {one.session_id: one for one in entries}
    found = match_session_id(name, [*known])
    if found is None:
        near = did_you_mean(name, known)
        raise UserError(f"no session matches {name!r}{near or '; list them with: zot call session/list'}")
    return known[found]


def _has_screen(settings: dict[str, Any]) -> bool:
    """True for a terminal that can show a screen, unless a replay is requested, which is shown in lines."""
    if settings.get("plain") or "after" in settings or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False

    return can_show_screen(os.environ)


async def _on_screen(client: Client, session: ClientSession, settings: dict[str, Any]) -> int:
    """Open the session in the full-screen terminal."""
    own = _own_home if _shares_home(settings) else None
    home = ClientHome(client, cwd=absolute_directory(None), own=own)

    app = load_app()(OpenedConversation(home, home.conversation(session)))
    code = await run_app(app)
    if app.left is not None:
        _print_attach_command(app.left.session, settings)
    return code


async def _in_lines(session: ClientSession, settings: dict[str, Any]) -> int:
    """Show the session line by line. On a terminal, print how to return to it, however it ends."""
    is_person = sys.stdin.isatty()
    limit = settings.get("max_line_bytes", MAX_LINE_BYTES)
    attachment = AttachedSession(session, patient=not is_person, max_line_bytes=limit)
    try:
        return await attachment.serve(settings.get("after"))
    except asyncio.CancelledError:
        write("\n")  # After the ^C that the terminal shows.
        raise
    finally:
        if is_person:
            _print_attach_command(session.id, settings)


def _print_attach_command(session: str, settings: dict[str, Any]) -> None:
    """Print the command that returns to the session, at the same daemon."""
    words = ["zot", "attach", shell_word(session)]
    for flag in flags.PLACE_FLAGS:
        if (value := settings.get(flag.key)) is not None:
            words += [flag.name, shell_word(value)]
    write(f"To continue this session: {' '.join(words)}\n")
    sys.stdout.flush()


def _shares_home(settings: dict[str, Any]) -> bool:
    """True if the daemon uses this user's home: no flag or variable names another one."""
    if "socket" in settings or os.environ.get("ZEROCLAW_SOCKET"):
        return False
    place = locate(os.environ, config_dir=settings.get("config_dir"))
    return place.config_dir is None and place.journal is None


def _own_home(cwd: str, agent: str) -> Home:
    from zot.ui.local import LocalHome  # Imported lazily: a conversation with a daemon does not need it.

    return LocalHome(Config(cwd=cwd, agent=agent))


class AttachedSession:
    """A user's or a program's connection to a session. If ``patient``, answers wait for their approval requests."""

    def __init__(self, session: ClientSession, *, patient: bool = False, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._session = session
        self._max_line_bytes = max_line_bytes
        self._patient = patient
        self._failed = False
        #: The id of the pending approval; "" if there is none.
        pending = session.opened.pending_approval
        self._question = pending.request_id if pending else ""
        #: The ids of open questions of tools.
        self._asked: list[str] = []
        self._turns: set[asyncio.Task[None]] = set()
        #: Sequence numbers of the last event shown, and of the last one to show before the end.
        self._shown = self._due = 0
        self._moved = asyncio.Event()
        #: How many runs have been shown to their end.
        self._ended = 0

    async def serve(self, after: int | None) -> int:
        """Show events and run typed lines, until /quit, or until the input and its prompts end.

        Return the exit code: 1 if a piped prompt failed; on a terminal the user has seen it.
        """
        print_note(f"attached to {printable(self._session.id)}; /quit leaves, /cancel ends a turn")
        if after is None:
            begin = await self._beginning()
        else:
            begin, last = after, self._session.opened.last_event_seq
            self._due = last if isinstance(last, int) and last > after else 0  # Older daemons do not report it.
        showing = asyncio.create_task(self._show(begin), name="zot showing")
        typing = asyncio.create_task(self._read_input(), name="zot typing")
        await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (showing, typing, *self._turns):
            task.cancel()
        await asyncio.wait({showing, typing, *self._turns})
        for task in (showing, typing):
            if not task.cancelled():
                task.result()
        return FAILED if self._failed and self._patient else 0

    async def _beginning(self) -> int:
        """Return the sequence number before the active turn and before the pending approval."""
        before = (await self._session.past()).last_seq
        return min(self._session.opened_at, before or self._session.opened_at)

    async def _show(self, after: int) -> None:
        lines = Lines()
        async with aclosing(self._session.follow(after)) as events:
            async for seq, event in events:
                if isinstance(event, ApprovalRequest):
                    self._question = event.id
                elif isinstance(event, ApprovalAnswer):
                    self._question = ""
                elif isinstance(event, QuestionRequest):
                    self._asked.append(event.id)
                elif isinstance(event, QuestionAnswer) and event.id in self._asked:
                    self._asked.remove(event.id)
                if text := lines.shown(event):
                    write(text)
                    sys.stdout.flush()
                self._shown = seq or self._shown
                self._ended += isinstance(event, Done)
                self._moved.set()

    async def _read_input(self) -> None:
        lines = LineSplitter(max_line_bytes=self._max_line_bytes)
        async for data in read_chunks(0):
            for line in lines.feed(data):
                if not await self._handle_line(self._text(line)):
                    return
        for line in lines.finish():
            await self._handle_line(self._text(line))
        if self._turns:
            await asyncio.wait(self._turns)
        while self._shown < self._due:
            self._moved.clear()
            await self._moved.wait()

    def _text(self, line: bytes | TooLong) -> str:
        """Return a typed line; "" for one that is too long, which counts as a failed prompt."""
        if isinstance(line, bytes):
            return line.decode("utf-8", "replace")
        self._failed = True
        print_note(f"a line is longer than {line.limit} bytes and was not read; --max-line-bytes raises the limit")
        return ""

    async def _handle_line(self, line: str) -> bool:
        """Run a typed line. False for /quit."""
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "":
                    pass
                case "/quit":
                    return False
                case "/cancel":
                    await self._session.cancel()
                case "/approve" | "/reject":
                    await self._decide(word, rest.strip())
                case "/answer" | "/decline":
                    await self._answer(word, rest.strip())
                case _ if word.startswith("/") and not word.startswith("//"):
                    await self._command(word[1:], rest)
                case _:
                    self._prompt(line.strip().removeprefix("/") if word.startswith("//") else line)
        except ConnectionLost:
            raise
        except AgentError as problem:
            print_note(str(problem))
        return True

    async def _decide(self, word: str, how: str) -> None:
        while self._patient and not self._question and self._turns:
            await self._until_moved()
        if not self._question:
            raise UserError("no approval is waiting")
        allowed = "allow_always" if how == "always" else "allow_once"
        question, self._question = self._question, ""  # The next answer is for the next request.
        await self._session.approve(question, allowed if word == "/approve" else "reject")

    async def _answer(self, word: str, values: str) -> None:
        while self._patient and not self._asked and self._turns:
            await self._until_moved()
        if not self._asked:
            raise UserError("no question is waiting")
        try:
            content: dict[str, Any] = msgspec.json.decode(values or "{}", type=dict[str, Any])
        except msgspec.MsgspecError as problem:
            raise UserError(f"the values are not a JSON object: {explain(problem)}") from None
        await self._session.answer(self._asked[0], "accept" if word == "/answer" else "decline", content)

    async def _until_moved(self) -> None:
        """Wait until an event was shown, or a turn is over."""
        self._moved.clear()
        moved = asyncio.create_task(self._moved.wait(), name="zot moved")
        try:
            await asyncio.wait({moved, *self._turns}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            moved.cancel()
            await asyncio.wait([moved])

    async def _command(self, name: str, args: str) -> None:
        ended = self._ended
        try:
            answer = await self._session.run_command(name, args)
        except AgentError:
            self._failed = True
            raise
        for text in filter(None, (answer.display, answer.insert)):
            write(f"{printable(text)}\n")
        while self._patient and answer.prompt and self._ended == ended:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._until_moved()
            except TimeoutError:
                # A prompt that the daemon could not start ends without an event.
                if (await self._session.state()).state == "idle":
                    return

    def _prompt(self, text: str) -> None:
        turn = self._session.prompt(text)

        async def consume() -> None:
            try:
                async for _ in turn:
                    pass
            except AgentError as problem:
                self._failed = True
                print_note(str(problem))
            else:
                self._note_outcome(turn.outcome)
                self._due = max(self._due, turn.last_seq)

        task = asyncio.create_task(consume(), name="zot turn")
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)

    def _note_outcome(self, ended: TurnSummary | None) -> None:
        """Note a prompt without an answer, as `zot -p` does: an answer that was cut off counts as none."""
        if ended is not None and ended.stop_reason == "length":
            self._failed = True
            if self._patient:  # On a terminal, the user sees it after the answer.
                print_note(CUT_OFF)
        self._failed |= ended is None or ended.outcome == "failed"
