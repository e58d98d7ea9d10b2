"""`zot` on a terminal: a conversation with the user."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from zot.config import flags
from zot.config.config import (
    AGENT_FLAGS,
    FOREIGN_FLAGS,
    RESUME_FLAGS,
    Config,
    ConfigOverrides,
    ignore_foreign,
    pop_resume_flags,
    resolve,
)
from zot.errors import ExtraMissing, NoSuchSession, UsageError
from zot.runtime.check import check
from zot.serve.stdio import SIGNALS, leave
from zot.text import shell_word
from zot.ui.terminal.styles import Level, charset

if TYPE_CHECKING:
    from zot.events import SessionState
    from zot.ui.conversation import Conversation, Home
    from zot.ui.local import LocalHome
    from zot.ui.terminal.app import ZotApp

MANUAL = flags.Manual(
    "zot",
    "Talk to the agent in this terminal. Type /help there for commands and keys.",
    (
        flags.Flag("--plain", "Print lines instead of drawing a screen."),
        *RESUME_FLAGS,
        *AGENT_FLAGS,
    ),
    FOREIGN_FLAGS,
    (
        ("zot --provider lab", "Try it without a key."),
        ("zot -c", "Continue the newest session of this directory."),
    ),
    {0: "You left.", 1: "The session could not be opened, or failed.", 2: "Wrong usage."},
)
_NO_SCREEN = ("", "dumb", "unknown")
#: Time limits for closing a session: when the user leaves, and after a signal.
_OWN_TIME_S = 8.0
_SIGNAL_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (opening := parse_command_line(argv)) is None:
        return 0
    ignore_foreign({}, opening.words, "type prompts in the terminal, or use: zot -p PROMPT")
    return _screen(opening) if not opening.is_plain and can_show_screen(os.environ) else _plain(opening)


def report_missing_prompt(argv: Sequence[str]) -> int:
    """Handle flags without a prompt or a terminal: show the requested help, or raise the error in the flags, else
    UsageError for the missing prompt."""
    if (opening := parse_command_line(argv)) is None:
        return 0
    if opening.words:
        raise UsageError(f"unknown command {opening.words[0]!r} after the flags; to ask the agent: zot -p PROMPT")
    raise UsageError("standard input is not a terminal; to ask the agent: zot -p PROMPT")


def parse_command_line(argv: Sequence[str]) -> Opening | None:
    """Return the parsed command line; None if it asked for help, which is printed. Raise ConfigError or UsageError."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return None
    settings, words = given
    ignore_foreign(settings)
    is_plain = settings.pop("plain", False)
    earlier = pop_resume_flags(settings)
    keep = "no_session" not in settings
    config = resolve(settings)
    if config.session is None and earlier is None:
        check(config)  # The settings of an existing session are known only once it is open.
    return Opening(config, ConfigOverrides.of_flags(settings), earlier, words, keep=keep, is_plain=is_plain)


class Opening:
    """The `FirstConversation` of a terminal. Imports nothing before it is needed."""

    def __init__(
        self,
        config: Config,
        overrides: ConfigOverrides,
        earlier: str | None,
        words: Sequence[str] = (),
        *,
        keep: bool,
        is_plain: bool,
    ) -> None:
        #: The words that are no flags.
        self.words = words
        #: True if --plain was given.
        self.is_plain = is_plain
        self._config = config
        self._overrides = overrides
        self._earlier = earlier
        self._keep = keep
        self._home: LocalHome | None = None

    async def home(self) -> Home:
        """Make the home."""
        from zot.ui.local import LocalHome  # Imported lazily: the first frame is drawn before a session is opened.

        self._home = LocalHome(self._config, self._overrides, keep=self._keep)
        return self._home

    async def close(self) -> None:
        """Close the home, after its conversation."""
        if self._home is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._home.close(), _SIGNAL_S)

    async def session(self, home: Home) -> Conversation:
        """Open the requested session."""
        assert self._home is not None
        if self._earlier is None:
            return await self._home.begin()
        name = self._earlier or await self._home.newest()
        try:
            return await self._home.open(name)
        except NoSuchSession:  # Its message is for users inside the terminal.
            raise NoSuchSession(f"no session matches {name!r}; list them with: zot sessions list --all") from None


def can_show_screen(env: Mapping[str, str]) -> bool:
    """True if the terminal can show a screen and Textual is installed; print a hint if only Textual is missing."""
    if env.get("TERM", "") in _NO_SCREEN:
        return False

    if find_spec("textual") is None:
        sys.stderr.write(f"zot: {ExtraMissing('the extra `tui` is missing, so zot prints lines', 'tui')}\n")
        return False
    return True


def _screen(opening: Opening) -> int:
    app = load_app()(opening)

    async def talk() -> int:
        try:
            return await run_app(app)
        finally:
            await opening.close()

    code = asyncio.run(talk())
    _print_resume_command(app.left)
    return code


def _print_resume_command(left: SessionState | None) -> None:
    """Print the command that resumes a session, unless it is empty."""
    if left is not None and left.session and left.message_count:
        sys.stdout.write(f"To continue this session: zot --resume {shell_word(left.session)}\n")


def load_app() -> type[ZotApp]:
    """Return the full-screen terminal."""
    # Imported lazily: Textual is an extra, and slow to load.
    from zot.ui.terminal.textual_patches import collect_rarely, replace_unencodable

    collect_rarely()
    from zot.ui.terminal.app import ZotApp

    replace_unencodable(sys.__stdout__)  # The driver draws there.
    return ZotApp


async def run_app(app: ZotApp) -> int:
    """Run the app until the user leaves or a signal arrives, and restore the terminal."""
    loop, code = asyncio.get_running_loop(), None
    for number in SIGNALS:
        loop.add_signal_handler(number, app.exit, 128 + number)
    try:
        with logs_as_notes(app.terminal.note):
            code = await app.run_async()
    finally:
        await _close(app, within_s=_OWN_TIME_S if code == 0 else _SIGNAL_S)
    return (app.return_code or 0) if code is None else code


async def _close(app: ZotApp, *, within_s: float) -> None:
    """Close the conversation within a time limit. The terminal is restored by now, so a second signal exits at once."""
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, leave, 128 + number)
    with suppress(TimeoutError):
        await asyncio.wait_for(app.close(), within_s)


def _plain(opening: Opening) -> int:
    from zot.ui.terminal.plain import PlainTerminal  # Imported lazily: the screen does not need it.

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=charset())

    async def talk() -> int:
        terminal = PlainTerminal(opening)
        try:
            with logs_as_notes(terminal.note):
                code = await terminal.run()
        finally:
            await opening.close()
        _print_resume_command(terminal.left)
        return code

    return asyncio.run(talk())


class NoteHandler(logging.Handler):
    """Passes warnings and errors of all threads to ``note``, in the event loop."""

    def __init__(self, note: Callable[[str, Level], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._loop = asyncio.get_running_loop()

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop records that an event reports, too: the screen shows the event."""
        return not hasattr(record, "is_reported") and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "error" if record.levelno >= logging.ERROR else "warn"
        self._loop.call_soon_threadsafe(self._note, record.getMessage(), level)


@contextmanager
def logs_as_notes(note: Callable[[str, Level], None]) -> Iterator[None]:
    """Pass log records to ``note`` during the block, and to no other handler."""
    log, handler = logging.getLogger("zot"), NoteHandler(note)
    spreads, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = spreads
