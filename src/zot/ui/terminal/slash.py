"""Slash commands, and the `Terminal` interface that they use."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from zot.errors import NoSuchCommand, UserError
from zot.events import QuestionAction, QuestionChoice, QuestionField, QuestionRequest, SessionState
from zot.files import write_new
from zot.messages import text_of
from zot.panels import CommandInfo
from zot.questions import typed
from zot.text import did_you_mean
from zot.ui.conversation import Conversation, Home, ModelInfo, SessionInfo, Untrusted
from zot.ui.readable import counted, format_time, one_line
from zot.ui.terminal.styles import Level, tokens

T = TypeVar("T")


class Option(msgspec.Struct, Generic[T], frozen=True):
    """A choice, made by its ``key`` if it has one, or from a list."""

    value: T
    label: str
    key: str = ""


class Terminal(Protocol):
    """A front end, as commands use it. An unanswered question returns None."""

    @property
    def conversation(self) -> Conversation: ...

    @property
    def home(self) -> Home: ...

    @property
    def extension_commands(self) -> Sequence[CommandInfo]:
        """The commands of extensions that are known so far."""

    def note(self, text: str, level: Level = "info") -> None:
        """Show a note outside of the conversation."""

    def present(self, text: str, source: str) -> None:
        """Show Markdown outside of the conversation."""

    def insert(self, text: str) -> None:
        """Insert text into the editor."""

    def now(self) -> float: ...

    def enter_panel(self, panel_id: str, since: float) -> None:
        """Focus a panel requested at ``since``, unless the user has typed since."""

    def busy(self, text: str) -> AbstractContextManager[None]:
        """Show ``text`` as the current task during the block."""

    async def choose(
        self, title: str, options: Sequence[Option[T]], *, body: str = "", sudden: bool = False
    ) -> T | None:
        """Let the user choose. ``body`` describes the subject; ``sudden``: the user did not ask for the question."""

    async def ask(self, title: str, *, secret: bool = False) -> str | None:
        """Let the user type a line."""

    async def submit(self, text: str) -> None:
        """Send a prompt."""

    async def start_run(self, start: Awaitable[None], doing: str = "") -> None:
        """Await ``start``, which starts a run, and show ``doing`` as its activity. May return at the end of the run."""

    async def switch(self, session: str | None) -> None:
        """Switch to another session, or to a new one."""

    async def jump(self) -> None:
        """Let the user go to an earlier message."""

    def page(self) -> str:
        """Return the help on keys, as Markdown."""

    def leave(self) -> None: ...


async def ask_trust(terminal: Terminal, *kinds: Literal["extension", "skill"]) -> None:
    """Ask about each untrusted extension and skill of the project, or those of the given kinds."""
    for one in await terminal.home.untrusted():
        if kinds and one.kind not in kinds:
            continue
        yes = await terminal.choose(
            f"Trust the {one.kind} {one.name} of this project?", _OPTIONS, body=_trust_body(one)
        )
        if yes:
            await terminal.home.trust(one)


_OPTIONS = [Option(value=False, label="not now", key="n"), Option(value=True, label="trust it, as it is now", key="y")]


def _trust_body(one: Untrusted) -> str:
    what = (
        "It is a program: it can do whatever you can do."
        if one.kind == "extension"
        else "It is text that the model may follow."
    )
    shadows = f"\nIt would replace the one in {one.shadows}." if one.shadows else ""
    covers = "".join(f"\n{line}" for line in one.covers)
    return f"{one.directory}\n{what}{shadows}{covers}"


_COMMAND = re.compile(r"/[\w.:-]+(\s|$)")
_COUNT = re.compile(r"[0-9]{0,9}")

Action: TypeAlias = Callable[[Terminal, str], Awaitable[None]]


class SlashCommand(msgspec.Struct, frozen=True):
    """A slash command: its action, the usage of its arguments, and its help."""

    action: Action
    takes: str
    help: str


def is_command(text: str) -> bool:
    """True if a text is a command and not a path."""
    return _COMMAND.match(text) is not None


async def run(terminal: Terminal, line: str) -> None:
    """Run a line that starts with a slash. Raise AgentError if it fails."""
    (name, args), began = _split(line[1:]), terminal.now()
    try:
        await _dispatch(terminal, name, args, began)
    except TimeoutError:
        raise UserError(f"/{name}: there was no answer in time") from None
    except OSError as problem:
        what = problem.strerror or str(problem)
        raise UserError(f"/{name}: {problem.filename}: {what}" if problem.filename else f"/{name}: {what}") from None


async def _dispatch(terminal: Terminal, name: str, args: str, began: float) -> None:
    command = COMMANDS.get(name)
    if command is not None:
        await command.action(terminal, args)
        return
    try:
        await _extension(terminal, name, args, began)
    except NoSuchCommand as problem:
        if problem.absent:
            raise UserError(f"/{name} cannot be run: {problem.absent}") from None
        near = did_you_mean(name, [f"/{one}" for one in COMMANDS])
        raise UserError(f"unknown command /{name}{near or '; /help lists the commands'}") from None


def _split(text: str) -> tuple[str, str]:
    """Return the first word of a text, and the rest, which may start in another line."""
    first, rest, *_ = [*text.split(maxsplit=1), "", ""]
    return first, rest.strip()


async def _extension(terminal: Terminal, name: str, args: str, began: float) -> None:
    """Run an extension's command, entered at ``began``, and carry out the action that it requests."""
    answer = await terminal.conversation.run_command(name, args)
    match answer.action:
        case "prompt":
            await terminal.submit(answer.prompt)
        case "insert":
            terminal.insert(answer.insert)
        case "display":
            terminal.present(answer.display, answer.extension)
        case "open_panel":
            terminal.enter_panel(answer.panel_id, began)  # The panel opens by an event.
        case _:
            pass


async def _help(terminal: Terminal, args: str) -> None:
    lines = ["**Commands**", ""]
    lines += [f"- `/{name}{f' {one.takes}' if one.takes else ''}` {one.help}" for name, one in COMMANDS.items()]
    if terminal.extension_commands:
        lines += ["", "**Of extensions**", ""]
        lines += [f"- `/{one.name}` {one.description} ({one.extension})" for one in terminal.extension_commands]
    terminal.present("\n".join([*lines, "", terminal.page()]), "zot")


async def _model(terminal: Terminal, args: str) -> None:
    models = await terminal.conversation.models()
    fits = [one for one in models if args in (one.id, f"{one.provider}/{one.id}")]
    if args and not fits:
        raise UserError(f"no model is named {args!r}; list them with: /model")
    now = await terminal.conversation.state()
    chosen = fits[0] if fits else None
    if chosen is None:
        options = [Option(one, _model_label(one.provider, one.id, one.context_window)) for one in models]
        chosen = await terminal.choose(f"Model (now {now.model})", options)
    if chosen is not None:
        await terminal.conversation.use_model(chosen)
        terminal.note(f"the next model call uses {chosen.provider}/{chosen.id}")


def _model_label(provider: str, model: str, window: int) -> str:
    return f"{provider}/{model}" + (f"  {tokens(window)}" if window else "")


async def _login(terminal: Terminal, args: str) -> None:
    known = await terminal.home.providers()
    provider = args or await terminal.choose("Store the key of", [Option(name, name) for name in known])
    if provider is None:
        return
    if provider not in known:  # Do not repeat the input: it may be a key.
        names = ", ".join(known)
        raise UserError(f"unknown provider; use /login and one of these: {names}{did_you_mean(provider, known)}")
    key = await terminal.ask(f"Key for {provider} (it is not shown)", secret=True)
    if key:
        with terminal.busy(f"asking {provider}"):
            terminal.note(await terminal.home.login(provider, key), "success")


async def _logout(terminal: Terminal, args: str) -> None:
    provider = args or await terminal.choose(
        "Forget the key of", [Option(name, name) for name in await terminal.home.providers()]
    )
    if provider is not None:
        terminal.note(await terminal.home.logout(provider), "success")


async def _sessions(terminal: Terminal, args: str) -> None:
    if args:
        await terminal.switch(args)
        return
    cwd = (await terminal.conversation.state()).cwd
    known = sorted(await terminal.home.sessions(), key=lambda one: one.cwd != cwd)
    if not known:
        terminal.note("no session has been recorded yet")
        return
    options = [Option(one.id, _session_label(one, cwd)) for one in known]
    chosen = await terminal.choose("Switch to which session?", options)
    if chosen is not None:
        await terminal.switch(chosen)


def _session_label(one: SessionInfo, cwd: str) -> str:
    place = "" if one.cwd == cwd else f"  {one.cwd}"
    return f"{format_time(one.updated)}  {counted(one.messages, 'message')}  {one_line(one.title, 60) or one.id}{place}"


async def _session(terminal: Terminal, args: str) -> None:
    word, rest = _split(args)
    match word:
        case "":
            await _show_session(terminal)
        case "new":
            await terminal.switch(None)
        case "export":
            await _export_session(terminal, rest)
        case "import":
            if not rest:
                raise UserError("name a file: /session import FILE")
            await _check_idle(terminal)
            made = await terminal.home.import_(_absolute(rest))
            await terminal.switch(made)
            terminal.note(f"switched to session {made}", "success")
        case "fork":
            await _fork(terminal, rest)
        case "tree":
            terminal.note(tree(await terminal.home.sessions(), (await terminal.conversation.state()).session))
        case _:
            raise UserError(f"/session has no {word!r}; use: new, export, import, fork, tree")


async def _show_session(terminal: Terminal) -> None:
    now = await terminal.conversation.state()
    terminal.note(
        f"session    {now.session or 'not recorded'}\nmodel      {now.provider}/{now.model}\ndirectory  {now.cwd}\n"
        f"messages   {now.message_count}\ncontext    {tokens(now.context_tokens)} of {tokens(now.context_window)}"
    )


async def _recorded_id(terminal: Terminal) -> str:
    session = (await terminal.conversation.state()).session
    if not session:
        raise UserError("this session is not recorded; to record one, start zot with --session NAME")
    return session


async def _check_idle(terminal: Terminal) -> None:
    """Raise UserError during a run: a new session could not be switched to."""
    if (await terminal.conversation.state()).busy:
        raise UserError("a run is active here; abort it first")


async def _export_session(terminal: Terminal, path: str) -> None:
    session = await _recorded_id(terminal)
    path = _absolute(path) if path else _free_path(session, ".jsonl")
    await terminal.home.export(session, path)
    terminal.note(f"exported the session to {path}", "success")


async def _fork(terminal: Terminal, count: str) -> None:
    await _recorded_id(terminal)
    if not _COUNT.fullmatch(count):
        raise UserError("/session fork takes a number of messages, or nothing")
    await _check_idle(terminal)
    made = await terminal.conversation.fork(int(count) if count else None)
    await terminal.switch(made)
    terminal.note(f"switched to session {made}; the original is unchanged", "success")


def tree(sessions: Sequence[SessionInfo], here: str) -> str:
    """Return the sessions forked from the same root as ``here``, as an indented tree."""
    by_id = {one.id: one for one in sessions}
    root = by_id.get(here)
    while root is not None and root.parent in by_id:
        root = by_id[root.parent]
    if root is None:
        return "this session is not recorded; to record one, start zot with --session NAME"

    def lines(one: SessionInfo, depth: int) -> list[str]:
        mark = "*" if one.id == here else "-"
        title = f"  {one_line(one.title, 50)}" if one.title else ""
        own = f"{'  ' * depth}{mark} {one.id}{title} ({counted(one.messages, 'message')})"
        children = sorted((other for other in sessions if other.parent == one.id), key=lambda other: other.id)
        return [own, *(line for child in children for line in lines(child, depth + 1))]

    return "\n".join(lines(root, 0))


async def _compact(terminal: Terminal, args: str) -> None:
    await terminal.start_run(terminal.conversation.compact(), "summarising the conversation")


async def _undo_compact(terminal: Terminal, args: str) -> None:
    await terminal.conversation.undo_compact()  # The event shows the restored messages in all terminals.


async def _rewind(terminal: Terminal, args: str) -> None:
    """Go back to before a message of the user, after showing which files would change."""
    session = await _recorded_id(terminal)
    if not _COUNT.fullmatch(args):
        raise UserError("/rewind takes the number of messages to keep, or nothing")
    await _check_idle(terminal)
    keep = int(args) if args else await _rewind_point(terminal)
    if keep is None:
        return
    plan = await terminal.conversation.rewind(keep, preview=True)
    options = [Option(value=False, label="only the conversation", key="c")]
    if plan.files:
        options.insert(0, Option(value=True, label="the conversation and these files", key="y"))
    files = [f"{change}  {one_line(path, 200)}" for path, change in plan.files] or ["No file would change."]
    body = "\n".join([*files, f"To undo it later: zot sessions rewind {session} --at {plan.undo}"])
    chosen = await terminal.choose(f"Go back to the first {counted(plan.messages, 'message')}?", options, body=body)
    if chosen is not None:  # The event shows the earlier conversation in all terminals.
        await terminal.conversation.rewind(keep, files=chosen)


async def _rewind_point(terminal: Terminal) -> int | None:
    """Let the user choose one of their messages; return the number of messages before it."""
    messages = await terminal.conversation.messages()
    options = [Option(at, one_line(text_of(one.content), 200)) for at, one in enumerate(messages) if one.role == "user"]
    if not options:
        raise UserError("nothing has been said yet")
    options.reverse()
    return await terminal.choose("Go back to before", options)


async def _clear(terminal: Terminal, args: str) -> None:
    await terminal.conversation.clear()  # The event clears all terminals, this one included.


async def _jump(terminal: Terminal, args: str) -> None:
    await terminal.jump()


async def _btw(terminal: Terminal, args: str) -> None:
    if not args:
        raise UserError("ask a question: /btw QUESTION")
    with terminal.busy("answering a side question"):
        aside = await terminal.conversation.aside(args)
    cost = aside.usage.cost
    terminal.present(f"*{one_line(args, 200)}*\n\n{aside.text}", "btw" if not cost else f"btw, ${cost:.4f}")


async def _skills(terminal: Terminal, args: str) -> None:
    skills = await terminal.home.skills()
    lines = [f"- **{one.name}** {one_line(one.description, 200)} ({one.place})" for one in skills]
    terminal.present("\n".join(lines) or "There are no skills.", "skills")


async def _lock(terminal: Terminal, args: str) -> None:
    await terminal.conversation.lock(locked=True)
    terminal.note("the tools are confined to the directory", "success")


async def _unlock(terminal: Terminal, args: str) -> None:
    await terminal.conversation.lock(locked=False)
    terminal.note("the tools are not confined", "warn")


async def _reload(terminal: Terminal, args: str) -> None:
    await ask_trust(terminal, "extension")
    with terminal.busy("reloading the extensions"):
        names = await terminal.conversation.reload_extensions()
    terminal.note(f"running: {', '.join(names)}" if names else "there are no extensions", "success")


async def _mcp(terminal: Terminal, args: str) -> None:
    servers = (await terminal.conversation.state()).mcp
    if not servers:
        terminal.note("there are no MCP servers; in a shell, run: zot mcp add NAME COMMAND")
        return
    lines = [
        f"{one.name}  {one.state}, {counted(one.tools, 'tool')}{f': {one.problem}' if one.problem else ''}"
        for one in servers
    ]
    terminal.note("\n".join(lines))


async def _approvals(terminal: Terminal, args: str) -> None:
    known = await terminal.conversation.remembered()
    if not known:
        terminal.note("no call is always allowed")
        return
    options = [Option(one, f"{one.tool}  {one.subject}".rstrip()) for one in known]
    chosen = await terminal.choose("These calls are always allowed in this session. Revoke which one?", options)
    if chosen is not None:
        await terminal.conversation.forget(chosen)
        terminal.note(f"revoked: zot asks again before {chosen.tool} {chosen.subject}".rstrip())


async def _cost(terminal: Terminal, args: str) -> None:
    used = (await terminal.conversation.state()).usage
    cost = "its price is not known" if used.cost is None else f"${used.cost:.4f}"
    terminal.note(
        f"input      {used.input}\noutput     {used.output}\ncache      {used.cache_read} read, "
        f"{used.cache_write} written\ncost       {cost}"
    )


async def _export(terminal: Terminal, args: str) -> None:
    from zot.ui.html import page  # Imported lazily: needed for `/export` only, with an extra.

    now = await terminal.conversation.state()
    path = _absolute(args) if args else _free_path(now.session or "conversation", ".html")
    title = now.session or "A conversation"
    said = await terminal.conversation.messages()

    def write() -> None:
        write_new(path, [page(title, said, model=now.model, usage=now.usage).encode("utf-8", "replace")])

    await asyncio.to_thread(write)  # In a thread: long conversations take a while.
    terminal.note(f"exported the conversation to {path}", "success")


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError:
        raise UserError("the directory that zot was started in is gone; give an absolute path") from None


def _free_path(name: str, suffix: str) -> str:
    """Return the path of a file that does not exist yet, numbered if necessary."""
    numbers = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    return next(path for number in numbers if not os.path.lexists(path := _absolute(f"{name}{number}{suffix}")))


async def _exit(terminal: Terminal, args: str) -> None:
    terminal.leave()


COMMANDS: Mapping[str, SlashCommand] = {
    "help": SlashCommand(_help, "", "show these commands and the keys"),
    "model": SlashCommand(_model, "[ID]", "use another model"),
    "login": SlashCommand(_login, "[PROVIDER]", "store a provider's key"),
    "logout": SlashCommand(_logout, "[PROVIDER]", "delete a stored key"),
    "sessions": SlashCommand(_sessions, "[ID]", "switch to another session"),
    "session": SlashCommand(_session, "[new|export|import|fork|tree]", "show this session; start, export or fork one"),
    "compact": SlashCommand(_compact, "", "summarise older messages, to make room"),
    "undo-compact": SlashCommand(_undo_compact, "", "undo the newest compaction"),
    "rewind": SlashCommand(_rewind, "[MESSAGES]", "return to before a message, and restore the files changed since"),
    "clear": SlashCommand(_clear, "", "clear the conversation"),
    "jump": SlashCommand(_jump, "", "scroll to one of your earlier messages"),
    "btw": SlashCommand(_btw, "QUESTION", "ask a side question, which stays out of the conversation"),
    "skills": SlashCommand(_skills, "", "list the skills"),
    "lock": SlashCommand(_lock, "", "confine the tools to the directory"),
    "unlock": SlashCommand(_unlock, "", "stop confining the tools"),
    "reload-ext": SlashCommand(_reload, "", "reload the extensions"),
    "mcp": SlashCommand(_mcp, "", "list the MCP servers, and why one cannot be used"),
    "approvals": SlashCommand(_approvals, "", "list the calls that are always allowed; revoke one"),
    "cost": SlashCommand(_cost, "", "show the tokens and the cost so far"),
    "export": SlashCommand(_export, "[FILE]", "export the conversation as one HTML file"),
    "exit": SlashCommand(_exit, "", "leave"),
}


#: Other models of the same provider that are offered.
_MAX_SAME_PROVIDER = 4


async def offer_retry(terminal: Terminal, failure: str) -> None:
    """Offer to retry a failed run, with this model or another."""
    conversation = terminal.conversation
    now = await conversation.state()
    again = ModelInfo(now.provider, now.model)
    options = [Option(again, f"{now.provider}/{now.model}, once more")]
    options += [Option(one, f"{one.provider}/{one.id}") for one in _others(now, await conversation.models())]
    if terminal.conversation is not conversation:
        return  # The user has switched sessions.
    title = "The model call failed. Ask again?"
    chosen = await terminal.choose(title, options, body=one_line(failure, 600), sudden=True)
    if chosen is None:
        return
    if chosen != again:
        await conversation.use_model(chosen)
        terminal.note(f"asking {chosen.provider}/{chosen.id}")
    await terminal.start_run(terminal.conversation.retry())


#: Attempts to type a value that fits.
_TRIES = 5


async def ask_question(terminal: Terminal, request: QuestionRequest) -> None:
    """Ask the user a question of a tool, field by field, and send the answer."""
    conversation = terminal.conversation
    content: dict[str, Any] = {}
    try:
        action = await _consent(terminal, request)
        if action == "accept":
            content = {field.name: await _field(terminal, field) for field in request.fields}
    except _Left:
        action = "cancel"
    given = {name: value for name, value in content.items() if value is not None}
    await conversation.answer(request.id, action, given if action == "accept" else {})


class _Left(Exception):
    """The user left a question without an answer."""


async def _consent(terminal: Terminal, request: QuestionRequest) -> QuestionAction:
    does = "I have opened the address, or will" if request.url else "answer" if request.fields else "yes"
    options: list[Option[QuestionAction]] = [Option("accept", does, "y"), Option("decline", "decline", "n")]
    body = "\n".join(filter(None, [request.message, request.url and f"Open: {request.url}"]))
    chosen = await terminal.choose(f"{request.origin} asks", options, body=body, sudden=True)
    if chosen is None:
        raise _Left
    return chosen


async def _field(terminal: Terminal, field: QuestionField) -> Any:
    """Return the value of a field; None to leave it out. Raise _Left."""
    title = " - ".join(filter(None, [field.title or field.name, field.description]))
    if field.kind in ("choice", "boolean"):
        choices = field.choices or (QuestionChoice("yes"), QuestionChoice("no"))
        options = [Option(one.value, one.title or one.value) for one in choices]
        if not field.required:
            options.append(Option("", "leave it out" if field.default is None else f"default: {field.default}"))
        chosen = await terminal.choose(title, options)
        if chosen is None:
            raise _Left
        return typed(field, chosen)
    usual = "" if field.default is None else f" (default: {field.default})"
    choices_text = f" [{', '.join(one.value for one in field.choices)}]" if field.choices else ""
    for _ in range(_TRIES):
        text = await terminal.ask(f"{title}{choices_text}{usual}")
        if text is None:
            raise _Left
        try:
            value = typed(field, text)
        except UserError as problem:
            terminal.note(str(problem), "warn")
            continue
        if value is not None or not field.required or field.default is not None:
            return value
        terminal.note(f"{field.name} is required", "warn")
    raise _Left


def _others(now: SessionState, models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """Return a few other models of this provider, and the first of each other provider."""
    same = [one for one in models if one.provider == now.provider and one.id != now.model]
    firsts: dict[str, ModelInfo] = {}
    for one in models:
        if one.provider != now.provider:
            firsts.setdefault(one.provider, one)
    return [*same[:_MAX_SAME_PROVIDER], *firsts.values()]
