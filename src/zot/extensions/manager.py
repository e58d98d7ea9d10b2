"""Manager of a session's extensions: ordered interceptors, tools, commands and panels."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from zot.agent.hooks import CallDecision, MessageDecision
from zot.errors import NoSuchCommand, UserError
from zot.events import (
    AgentEvent,
    AssistantMessage,
    Done,
    ExtNotify,
    ExtWaiting,
    PanelClosed,
    PanelOpened,
    PanelRendered,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from zot.extensions.discovery import Located
from zot.extensions.peer import (
    CommandRegistered,
    GivenUp,
    Notified,
    PanelCloseReceived,
    PanelOpenReceived,
    PanelRenderReceived,
    PeerBroken,
    PeerEnded,
    PeerEvent,
    ProtocolViolation,
    RequestTimedOut,
    Settled,
    SlowRequest,
    SubscribeReceived,
    ToolRegistered,
)
from zot.extensions.sources import Carrier, ExtensionSource, LaunchSettings, ProgramSource, RemoteSource
from zot.extensions.supervisor import (
    ExtensionTool,
    SlowWaitNotice,
    SupervisedExtension,
)
from zot.messages import CallBlock, TextBlock, timestamp
from zot.panels import CommandAnswer, CommandInfo, ExtensionInfo, SessionPanels
from zot.store import GuardSet
from zot.text import printable
from zot.tools.base import Tool
from zot.wire import extension as wire

log = logging.getLogger("zot")

#: Rounds of questions: the first to all, the others to guards, about what others have changed.
_MAX_ROUNDS: Final = 4
_NO_AGREEMENT: Final = "not run: the guards of this session do not agree on what should happen"

_KEYS: Final[tuple[wire.Key, ...]] = get_args(wire.Key)


#: Why an extension with this standing does not run.
_WRONG: Final = {
    "broken": "it is broken",
    "refused": "it cannot be confined",
    "untrusted": "it has changed, and is not trusted as it is now",
}


class Manager:
    """Implementation of `agent.hooks.Extensions` for the ``found`` extensions, in order, and those that `join`.

    ``taken`` are tool names that extensions cannot use; ``wanted`` are the tools that the model may see, None for all.
    With ``joinable``, guards that connected earlier are missing until they reconnect. ``find`` returns the extensions
    found now, for `reload`.
    """

    def __init__(
        self,
        found: Sequence[Located],
        settings: LaunchSettings,
        *,
        taken: Sequence[str],
        wanted: Sequence[str] | None = None,
        joinable: bool = False,
        find: Callable[[], Sequence[Located]] | None = None,
    ) -> None:
        self._found = found
        self._settings = settings
        #: Shows events outside of any run to all subscribers of the session.
        self.show: Callable[[Sequence[AgentEvent]], None] = lambda shown: None
        self._taken = frozenset(taken)
        self._wanted = wanted
        self._joinable = joinable
        self._find = find
        self._roster = Roster(settings, self)
        #: Extensions that start for a `reload`. Their failures are its error, and not shown.
        self._candidates: set[SupervisedExtension] = set()
        self._started = False
        self._begun = False
        self._clashes: set[tuple[str, str]] = set()
        self._closed = False
        self.panels = ExtensionPanels(self)
        self._tools: list[Tool] | None = None
        #: Names of extensions whose slow start was announced.
        self._slow: set[str] = set()
        if not found:
            self._warn_of_missing_tools()

    # Lifecycle.

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        self.show = show

    def start(self) -> None:
        if not self._started and not self._closed:
            self._started = True
            self._roster.begin(self._sources(self._found))

    def recall(self, guarded: GuardSet) -> None:
        if self._joinable and not self._closed:
            self._roster.recall(guarded)

    def is_connected(self, name: str) -> bool:
        return any(
            one.name == name and not one.returns and not self._roster.is_away(one) for one in self._roster.extensions
        )

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(extension.close() for extension in (*self._roster.extensions, *self._candidates)))

    async def reload(self, check_idle: Callable[[], None]) -> list[str]:
        """Replace the extensions by those found now; return their names. Those that joined must connect again.

        Raise UserError and keep the old ones if one does not start, or if one that ran is now broken or untrusted.
        ``check_idle`` raises if a run has begun meanwhile: the old ones guard that run to its end.
        """
        if self._find is None:
            raise UserError("extensions cannot be reloaded here")
        found = self._find()
        self._check_kept(found)
        fresh = Roster(self._settings, self)
        fresh.begin(self._sources(found))
        started = fresh.extensions
        self._candidates.update(started)
        try:
            await asyncio.gather(*(self._settled(extension) for extension in started))
            self._check_running(started)
            check_idle()
        except BaseException:
            await asyncio.gather(*(extension.close() for extension in started))
            raise
        finally:
            self._candidates.difference_update(started)
        fresh.recall_from(self._roster)
        former, self._roster = self._roster.extensions, fresh
        self._found, self._started, self._tools = found, True, None
        self._clashes.clear()
        self._begin()
        await asyncio.gather(*(extension.close() for extension in former))
        return [extension.name for extension in self._roster.extensions]

    def _check_kept(self, found: Sequence[Located]) -> None:
        """Raise UserError if an extension that ran may not run now. Removed or disabled ones are intended."""
        now = {one.directory: one for one in found}
        reasons = []
        for former in self._found:
            # If its parent directory cannot be read, the extension may still be there.
            one = now.get(former.directory) or now.get(os.path.dirname(former.directory))
            if former.counts and one is not None and one.standing in _WRONG:
                reasons.append(f"{former.name}: {one.problem or _WRONG[one.standing]}")
        if reasons:
            raise UserError(f"the extensions were not reloaded: {'; '.join(reasons)}")

    def _check_running(self, started: Sequence[SupervisedExtension]) -> None:
        """Raise UserError if an extension did not start, or the session was closed meanwhile."""
        failed = [one for one in started if one.condition != "running"]
        if failed:
            reasons = "; ".join(f"{one.name}: {one.explained or 'it did not start in time'}" for one in failed)
            raise UserError(f"the extensions were not reloaded: {reasons}")
        if self._closed:
            raise UserError("the session is over")

    def join(
        self,
        name: str,
        carrier: Carrier,
        guards: Callable[[GuardSet], None] = lambda guarded: None,
        *,
        token: str = "",
    ) -> SupervisedExtension:
        """Add an extension that connected from outside; `SupervisedExtension.over` waits for its end.

        It comes last in order. One that reconnects under its name takes its place again, with the events that it left
        blocked, if it has the same ``token``. ``guards`` is called with the events it blocks even while absent. Raise
        UserError if the name is in use, invalid or a guard's with another token, or if the session is closed.
        """
        if self._closed:
            raise UserError("the session is over")
        self.start()
        return self._roster.join(name, carrier, guards, token)

    # Hooks of the agent.

    @property
    def attentive(self) -> bool:
        return bool(self._roster) or any(one.counts for one in self._found)

    @property
    def holds_messages(self) -> bool:
        return any(extension.connection.peer.decides("assistant_message") for extension in self._roster.extensions)

    def text_held(self) -> None:
        holders = [one.name for one in self._roster.extensions if one.connection.peer.decides("assistant_message")]
        self.show([ExtWaiting(name, "held assistant_message", timestamp()) for name in holders])

    def tools(self) -> Sequence[Tool]:
        if self._tools is None:
            found: dict[str, Tool] = {}
            for extension in self._roster.extensions:
                for tool in extension.offer.tools.values():
                    if tool.name not in self._taken and (self._wanted is None or tool.name in self._wanted):
                        found.setdefault(tool.name, ExtensionTool(extension, tool))
            self._tools = list(found.values())
        return self._tools

    async def ready(self) -> None:
        self.start()
        if self._roster.extensions:
            await asyncio.gather(*(self._settled(extension) for extension in self._roster.extensions))
        if not self._begun:
            self._begin()

    def _begin(self) -> None:
        """Begin the session for extensions that are ready or timed out."""
        self._begun = True
        for extension in self._roster.extensions:
            self._report_clashes(extension)
        if self._found:
            self._warn_of_missing_tools()
        self._notify(wire.Event("session_start"))

    def _warn_of_missing_tools(self) -> None:
        """Warn of wanted tools that neither zot nor an extension has; one that has them may still join."""
        if self._joinable:
            return
        known = {*self._taken, *(tool.spec.name for tool in self.tools())}
        for name in self._wanted or ():
            if name not in known:
                log.warning("no extension provides the requested tool %s", printable(name))

    async def turn_starting(self, step: int) -> str | None:
        try:
            for extension in self._roster.extensions:
                decision = await extension.decide("turn_start", step=step)
                if decision.block:
                    return decision.reason
            return None
        finally:
            self._released("turn_start", str(step))

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        original, notes = args, list[str]()
        judged: dict[SupervisedExtension, dict[str, Any]] = {}
        asked: Sequence[SupervisedExtension] = self._roster.extensions
        try:
            for _ in range(_MAX_ROUNDS):
                for extension in asked:
                    decision = await extension.decide("tool_call", tool_id=call.id, tool_name=call.name, tool_args=args)
                    if decision.block:
                        return CallDecision(args, refusal=decision.reason)
                    changed = decision.modified_args is not None and (
                        extension not in judged or _differ(decision.modified_args, args)
                    )
                    if changed or (decision.reason and extension not in judged):
                        notes.append(_note(extension.name, decision.reason, changed=changed))
                    args = judged[extension] = args if decision.modified_args is None else decision.modified_args
                # What a guard allowed may have been changed by another extension: it has the last word.
                asked = [one for one in self._guards("tool_call") if one not in judged or _differ(judged[one], args)]
                if not asked:
                    note = "\n".join(notes)
                    return CallDecision(args, note=note) if note or args is not original else CallDecision(args)
            return CallDecision(args, refusal=_NO_AGREEMENT)
        finally:
            self._released("tool_call", call.id)

    async def message_written(self, text: str) -> MessageDecision:
        judged: dict[SupervisedExtension, str] = {}
        asked: Sequence[SupervisedExtension] = self._roster.extensions
        for _ in range(_MAX_ROUNDS):
            for extension in asked:
                decision = await extension.decide("assistant_message", text=text)
                if decision.block:
                    return MessageDecision(text, refusal=decision.reason, extension=extension.name)
                text = judged[extension] = text if decision.replace_text is None else decision.replace_text
            asked = [one for one in self._guards("assistant_message") if judged.get(one) != text]
            if not asked:
                return MessageDecision(text)
        return MessageDecision(text, refusal=_NO_AGREEMENT, extension=asked[0].name)

    def _guards(self, event: wire.Intercepted) -> list[SupervisedExtension]:
        return [one for one in self._roster.extensions if one.guards(event)]

    def observe(self, happened: Sequence[AgentEvent]) -> None:
        if not self._roster.extensions:  # Most sessions have none, and every delta comes by here.
            return
        for event in happened:
            match event:
                case TurnStart(step=step):
                    self._notify(wire.Event("turn_start", step=step), str(step))
                case ToolCall(id=call_id, name=name, args=args):
                    self._notify(wire.Event("tool_call", tool_id=call_id, tool_name=name, tool_args=args), call_id)
                case AssistantMessage(content=content):
                    text = "".join(part.text for part in content if isinstance(part, TextBlock))
                    self._notify(wire.Event("assistant_message", text=text))
                case TurnEnd(stop=stop, error=error):
                    self._notify(wire.Event("turn_end", stop=stop, error=error or ""))
                case ToolResult(id=call_id):
                    self._released("tool_call", call_id)
                case Done():
                    for extension in self._roster.extensions:
                        extension.events.release_all()
                case _:
                    pass

    # States and commands.

    def listed(self) -> Sequence[ExtensionInfo]:
        present = [
            ExtensionInfo(one.name, one.condition, one.problem, (*one.offer.tools,), (*one.offer.commands,))
            for one in self._roster.extensions
        ]
        names = {one.name for one in present}
        absent = [
            ExtensionInfo(one.name, "starting" if one.standing == "runs" else one.standing, one.problem)
            for one in self._found
            if one.name not in names
        ]
        return [*present, *absent]

    def commands(self) -> Sequence[CommandInfo]:
        return [
            CommandInfo(command.name, command.description, extension.name)
            for extension, command in self._commands().values()
        ]

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        name = name.removeprefix("/")  # Users type a slash; names have none.
        found = self._commands().get(name)
        if found is None:
            known = ", ".join(self._commands())
            reason = f"there are: {known}" if known else "no extension has any"
            raise NoSuchCommand(f"there is no command named {name!r}; {reason}", absent=self._absent(name))
        extension, _ = found
        response = await extension.run_command(name, args)
        if response.error:
            raise UserError(response.error)
        panel = response.open_panel if response.action == "open_panel" else None
        if panel is not None and (owner := self.panels.owner(panel.id) or extension.name) != extension.name:
            raise UserError(f"extension {owner} has a panel {panel.id!r} open; close that first")
        return CommandAnswer(
            extension.name,
            response.action,
            prompt=response.prompt if response.action == "prompt" else "",
            insert=response.insert if response.action == "insert" else "",
            display=response.display if response.action == "display" else "",
            panel_id="" if panel is None else panel.id,
        )

    # Events of extensions.

    def on_peer_event(self, extension: SupervisedExtension, peer_event: PeerEvent) -> None:
        """Show and apply an event of an extension."""
        if isinstance(peer_event, SubscribeReceived):
            self._roster.put_on_record(extension)
        if extension in self._candidates:
            self._on_candidate_event(extension, peer_event)
            return
        match peer_event:
            case ToolRegistered() | CommandRegistered():
                self._tools = None
                if self._begun:
                    self._report_clashes(extension)
            case Settled():
                self._tools = None  # Registrations from before a crash that were not repeated are dropped.
            case SubscribeReceived() if self._begun:
                # A slow or restarted extension: its session starts now.
                extension.connection.notify(wire.Event("session_start"))
            case Notified(level=level, message=message):
                self.show([ExtNotify(extension.name, level, message)])
            case ProtocolViolation(reason=reason, notice=True) | RequestTimedOut(kind="intercept", reason=reason):
                # Callers get the failures of tools and commands; a missing decision has no other report.
                self.show([ExtNotify(extension.name, "warn", reason)])
            case PanelOpenReceived() | PanelRenderReceived() | PanelCloseReceived():
                self.panels.on_peer_event(extension, peer_event)
            case SlowRequest(what=what, since=since):
                self.show([ExtWaiting(extension.name, what, since)])
            case GivenUp(reason=reason):
                self._tools = None
                if reason:
                    self.show([ExtNotify(extension.name, "warn", reason)])
            case PeerBroken():
                self.show([ExtNotify(extension.name, "error", extension.explained)])
            case PeerEnded(reason=reason, wanted=False):
                self._tools = None
                if extension.problem == reason:  # Otherwise the broken connection was reported already.
                    self.show([ExtNotify(extension.name, "error", extension.explained)])
            case _:
                pass

    def _on_candidate_event(self, extension: SupervisedExtension, peer_event: PeerEvent) -> None:
        """Show only its own notices: it may never be in use, and `reload` reports why it does not start."""
        match peer_event:
            case Notified(level=level, message=message):
                self.show([ExtNotify(extension.name, level, message)])
            case SlowRequest(what=what, since=since):
                self.show([ExtWaiting(extension.name, what, since)])
            case PanelOpenReceived(panel=opened):
                extension.connection.close_panel(opened.id)
            case _:
                pass

    def on_guard_dismissed(self, name: str) -> None:
        """Show that a missing guard was dismissed."""
        self.show([ExtNotify(name, "warn", "was dismissed and no longer blocks")])

    def _sources(self, found: Sequence[Located]) -> list[ProgramSource]:
        """Return how to start the extensions. Broken ones report their problem and keep blocking what they guard."""
        return [
            ProgramSource(
                one.manifest,
                one.directory,
                self._settings,
                broken=one.problem if one.standing == "broken" else "",
                fingerprint=one.fingerprint,
            )
            for one in found
            if one.counts and one.manifest is not None  # Set wherever `counts` is true.
        ]

    async def _settled(self, extension: SupervisedExtension) -> None:
        """Wait until prompts need not wait for it. Announces a wait of more than a second, once."""

        def tell(since: str) -> None:
            if extension.name not in self._slow:
                self._slow.add(extension.name)
                what, limit_s = extension.connection.peer.start_deadline
                notice = (
                    f"waiting for extension {extension.name} to say {what}, {limit_s:g} s at most "
                    f"(--ext-deadline {what}=SECONDS changes that)"
                )
                self.show([ExtWaiting(extension.name, "start", since), ExtNotify(extension.name, "warn", notice)])

        with SlowWaitNotice(tell):
            await extension.settled()
        self._slow.discard(extension.name)

    def _commands(self) -> Mapping[str, tuple[SupervisedExtension, wire.RegisterCommand]]:
        """Return the commands by name with their extensions; the first extension in order wins a name."""
        found: dict[str, tuple[SupervisedExtension, wire.RegisterCommand]] = {}
        for extension in self._roster.extensions:
            for command in extension.offer.commands.values():
                found.setdefault(command.name, (extension, command))
        return found

    def _absent(self, command: str) -> str:
        """Return which extensions might have the command but do not run, and why; "" if there are none."""
        absent = [
            f"extension {one.name} does not run: {one.explained}" for one in self._roster.extensions if one.is_over
        ]
        for one in self._found:
            if one.standing == "untrusted":
                absent.append(f"extension {one.name} is not trusted; try: zot ext trust {one.name}")
            elif one.standing == "disabled" and one.name == command:
                absent.append(f"extension {one.name} is disabled; try: zot ext enable {one.name}")
            elif one.standing == "broken" and not one.counts:
                absent.append(f"extension {one.name} does not run: {one.problem}")
        return "; ".join(absent)

    def named(self, name: str) -> SupervisedExtension | None:
        """Return the extension of this name; None if there is none."""
        return next((one for one in self._roster.extensions if one.name == name), None)

    def _notify(self, event: wire.Event, about: str = "") -> None:
        for extension in self._roster.extensions:
            extension.events.notify(event, about)

    def _released(self, event: wire.Intercepted, about: str) -> None:
        for extension in self._roster.extensions:
            extension.events.release(event, about)

    def _report_clashes(self, extension: SupervisedExtension) -> None:
        """Log the names that an earlier extension or zot has already, each once."""
        tools = {tool.spec.name: tool.spec.extension for tool in self.tools()}
        for tool in extension.connection.peer.tools:
            owner = "zot" if tool.name in self._taken else tools.get(tool.name, extension.name)
            self._report_clash(extension, f"tool {tool.name}", owner)
        commands = self._commands()
        for command in extension.connection.peer.commands:
            self._report_clash(extension, f"command {command.name}", commands[command.name][0].name)

    def _report_clash(self, extension: SupervisedExtension, what: str, owner: str) -> None:
        if owner != extension.name and (extension.name, what) not in self._clashes:
            self._clashes.add((extension.name, what))
            extension.log.note(f"the {what} is not offered: {owner} has one of that name, and comes first")


def _differ(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether arguments differ, also as 1 and true do."""
    return one is not other and _sorted(one) != _sorted(other)


def _sorted(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _note(name: str, reason: str, *, changed: bool) -> str:
    what = f"[the arguments were changed by extension {name}" if changed else f"[extension {name}"
    return f"{what}: {reason}]" if reason else f"{what}]"


class ExtensionPanels(SessionPanels):
    """The only record of the session's open panels; an extension's peer knows its own."""

    def __init__(self, manager: Manager) -> None:
        super().__init__()
        self._manager = manager

    def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        known = next((name for name in _KEYS if name == key), None)
        if known is None:
            raise UserError(f"unknown key {key!r}; use one of: {', '.join(_KEYS)}")
        self._extension(panel_id).connection.send_key(panel_id, known, text)

    def close(self, panel_id: str) -> None:
        extension = self._extension(panel_id)
        extension.connection.close_panel(panel_id)
        self._closed(extension.name, panel_id)

    def on_peer_event(
        self,
        extension: SupervisedExtension,
        peer_event: PanelOpenReceived | PanelRenderReceived | PanelCloseReceived,
    ) -> None:
        """Show a change that an extension made."""
        name = extension.name
        match peer_event:
            case PanelOpenReceived(panel=panel) if self.owner(panel.id) in (None, name):
                self._show(PanelOpened(name, panel.id, panel.title, panel.lines, panel.footer))
            case PanelOpenReceived(panel=panel):  # Another extension has a panel of this id.
                extension.connection.close_panel(panel.id)
            case PanelRenderReceived(panel=panel) if self.owner(panel.panel_id) == name:
                self._show(PanelRendered(name, panel.panel_id, panel.title, panel.lines, panel.footer))
            case PanelRenderReceived():
                pass
            case PanelCloseReceived(panel_id=panel_id):
                self._closed(name, panel_id)

    def _extension(self, panel_id: str) -> SupervisedExtension:
        extension = self._manager.named(self.owner(panel_id) or "")
        if extension is None:
            raise UserError(f"no panel {panel_id!r} is open")
        return extension

    def _closed(self, extension: str, panel_id: str) -> None:
        if self.owner(panel_id) == extension:
            self._show(PanelClosed(extension, panel_id))

    def _show(self, event: PanelOpened | PanelRendered | PanelClosed) -> None:
        self.apply([event])
        self._manager.show([event])


class Roster:
    """A session's extensions, in order.

    A guard that connected in an earlier process is missing until it connects again, and blocks its events.
    """

    def __init__(self, settings: LaunchSettings, manager: Manager) -> None:
        #: Replaced when one comes or goes: a round of decisions under way asks those that it began with.
        self.extensions: tuple[SupervisedExtension, ...] = ()
        self._settings = settings
        self._manager = manager
        self._begun = False
        #: Events blocked by guards that connected earlier, by name.
        self._recorded_guards: dict[str, frozenset[wire.Intercepted]] = {}
        self._missing: dict[str, SupervisedExtension] = {}
        #: Callbacks that record the events guarded by connected extensions.
        self._guards: dict[SupervisedExtension, Callable[[GuardSet], None]] = {}
        #: Tokens of connected extensions, and those that guards are bound to, by name.
        self._tokens: dict[SupervisedExtension, str] = {}
        self._bound: dict[str, str] = {}

    def __bool__(self) -> bool:
        """True with any extension, present or missing."""
        return bool(self.extensions or self._recorded_guards)

    def begin(self, sources: Sequence[ExtensionSource]) -> None:
        """Start the session's extensions in parallel, and add placeholders for missing guards."""
        self._begun = True
        self.extensions = tuple(SupervisedExtension(source, self._settings, self._manager) for source in sources)
        for name in self._recorded_guards:
            self._add_missing(name)

    def recall(self, guarded: GuardSet) -> None:
        """Note a recorded guard, which may be missing; without events it was dismissed."""
        if guarded.intercept:
            self._bound[guarded.name] = guarded.token
            self._recorded_guards[guarded.name] = frozenset(one for one in wire.INTERCEPTED if one in guarded.intercept)
            if self._begun:
                self._add_missing(guarded.name)
        elif self._recorded_guards.pop(guarded.name, None) is not None:
            self._bound.pop(guarded.name, None)
            self._dismiss(guarded.name)

    def recall_from(self, former: Roster) -> None:
        """Take over the recorded guards: those that are not connected keep blocking."""
        for name, intercept in former._recorded_guards.items():
            self.recall(GuardSet(name, tuple(sorted(intercept)), former._bound.get(name, "")))

    def join(self, name: str, carrier: Carrier, guards: Callable[[GuardSet], None], token: str) -> SupervisedExtension:
        """Add an extension that connected from outside, as `Manager.join` specifies. Raise UserError."""
        if (bound := self._bound.get(name)) and bound != token:
            raise UserError(f"{name!r} guards this session and is bound to another token")
        earlier = next((one for one in self.extensions if one.name == name), None)
        if earlier is not None and not self.is_away(earlier):
            raise UserError(f"the session has an extension named {name!r} already")
        caller = RemoteSource(
            name, carrier, self._settings, frozenset() if earlier is None else earlier.connection.peer.closed
        )
        # Drop disconnected extensions that block nothing.
        self.extensions = tuple(one for one in self.extensions if one is not earlier and not _is_gone(one))
        extension = SupervisedExtension(caller, self._settings, self._manager)
        self._guards = {one: hear for one, hear in self._guards.items() if one in self.extensions}
        self._guards[extension] = guards
        self._tokens = {one: known for one, known in self._tokens.items() if one in self.extensions}
        self._tokens[extension] = token
        self.extensions += (extension,)
        return extension

    def put_on_record(self, extension: SupervisedExtension) -> None:
        """Record the events that a connected extension guards, if any."""
        if extension.connection.peer.closed and extension in self._guards:
            closed = self._recorded_guards[extension.name] = extension.connection.peer.closed
            token = self._bound[extension.name] = self._tokens[extension]
            self._guards[extension](GuardSet(extension.name, tuple(sorted(closed)), token))

    def _add_missing(self, name: str) -> None:
        """Add a placeholder for a missing guard, unless it is connected. A program of its name is another one."""
        if all(one.name != name or one.returns for one in self.extensions):
            missing = RemoteSource(name, None, self._settings, self._recorded_guards[name])
            self._missing[name] = SupervisedExtension(missing, self._settings, self._manager)
            self.extensions += (self._missing[name],)

    def _dismiss(self, name: str) -> None:
        """Remove a missing guard. One that has reconnected in the meantime is recorded again."""
        for one in [one for one in self.extensions if one.name == name]:
            if self.is_away(one):
                self.extensions = tuple(other for other in self.extensions if other is not one)
                self._manager.on_guard_dismissed(name)
            else:
                self.put_on_record(one)

    def is_away(self, extension: SupervisedExtension) -> bool:
        """Return whether an extension from outside has disconnected or has not reconnected yet."""
        return not extension.returns and (extension.is_over or self._missing.get(extension.name) is extension)


def _is_gone(extension: SupervisedExtension) -> bool:
    """Return whether an extension from outside has disconnected without leaving events blocked."""
    return not extension.returns and extension.is_over and not extension.connection.peer.closed
