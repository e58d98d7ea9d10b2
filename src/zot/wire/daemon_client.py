"""Client side of the daemon protocol: calls, resumption after a reconnect, session events. Does no I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import AgentError, ConnectionLost, EpochChanged, PromptLost
from zot.events import AgentEvent, Done, UserMessage
from zot.messages import text_of
from zot.panels import OpenPanels
from zot.run_summary import RunSummary
from zot.text import replace_surrogates
from zot.wire.daemon import FEATURES, PROMPT_IDS, QUESTIONS, READ_ONLY, TELLS_RESUMED, TELLS_STOPPING, Initialized
from zot.wire.daemon_types import Attached, FailedTurn, Prompted
from zot.wire.jsonrpc import (
    NULL,
    STOPPING,
    Reply,
    RpcError,
    RpcRequest,
    decode,
    encode_request,
    frame_too_large,
    refused_above,
)
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter
from zot.wire.updates import OutcomeName, TurnSummary

#: Methods whose repetition has no further effect.
REPEATABLE: Final = READ_ONLY | {"session/attach", "session/delete", "session/rename"}
#: Methods that the next daemon may be asked if this one stops before it has begun with them.
_FOR_THE_NEXT: Final = REPEATABLE | {"session/prompt"}
#: Type of the update that announces another session with the same id.
_RESTARTED: Final = "restarted"
#: A replayed event may be as long as a tool's output.
_MAX_LINE_BYTES: Final = 64 << 20

#: The result, undecoded, or why the call failed.
Answer: TypeAlias = msgspec.Raw | AgentError


def shown_from(attached: Attached) -> int:
    """Return the cursor for a session just attached to. A pending approval request lies above it, so it is replayed.

    If the daemon does not send its number, the request is taken to be the last event.
    """
    if isinstance(attached.asked_seq, int):
        return attached.asked_seq - 1
    return attached.last_seq - (attached.state == "waiting_approval")


class UpdateListener:
    """A subscriber to one session. ``cursor`` is the number of the last event delivered to it.

    None starts with the next event. ``wake`` is called when there is something new.
    """

    def __init__(self, cursor: int | None, wake: Callable[[], None]) -> None:
        self.cursor = cursor
        self.unread: deque[tuple[int, AgentEvent]] = deque()
        #: Why no more events will follow.
        self.problem: AgentError | None = None
        #: False until the daemon replays from its cursor: earlier events are not for it.
        self.is_open = False
        self.wake = wake

    def open(self, from_now: int) -> None:
        """Start delivery: the daemon sends everything above the cursor from now on."""
        self.cursor = from_now if self.cursor is None else self.cursor
        self.is_open = True

    def hear(self, seq: int, event: AgentEvent) -> None:
        """Deliver an event unless it was delivered before. ``seq`` 0 means that it is not recorded."""
        if self.is_open and (not seq or seq > (self.cursor or 0)):
            self.cursor = seq or self.cursor
            self._take(seq, event)

    def fail(self, problem: AgentError) -> None:
        """End the subscription. The first reason counts."""
        self.problem = self.problem or problem
        self.wake()

    def _take(self, seq: int, event: AgentEvent) -> None:
        self._put(seq, event)

    def _put(self, seq: int, event: AgentEvent) -> None:
        self.unread.append((seq, event))
        self.wake()


class FollowPhase(enum.Enum):
    """Progress of a prompt."""

    WAITING = "its turn has not begun, as far as is known"
    RUNNING = "its turn has begun"
    OVER = "its turn is over, or there will be none"


class Asked(UpdateListener):
    """A prompt and its turn, whose events alone it receives.

    Its turn is the one that starts with its id, so it is found even if the connection broke before the answer, and the
    prompt need not be sent again; `settle` handles one that never arrived. With a daemon that does not support prompt
    ids, the turn is found by ``text``: see `Following`.
    """

    def __init__(self, prompt_id: str, text: str, cursor: int | None, wake: Callable[[], None]) -> None:
        super().__init__(cursor, wake)
        self.prompt_id = prompt_id
        self.text = replace_surrogates(text)
        self.phase = FollowPhase.WAITING
        #: True if the connection broke after it was sent: the answer will never come.
        self.is_doubtful = False
        self.summary: TurnSummary | None = None
        self._run = RunSummary()

    @property
    def is_over(self) -> bool:
        """True if no more events will follow."""
        return self.phase is FollowPhase.OVER or self.problem is not None

    def answer(self, answer: msgspec.Raw | AgentError) -> None:
        """Handle the answer to the prompt. The daemon sends it after all events of the turn."""
        match answer:
            case ConnectionLost(was_sent=True):
                self.is_doubtful = True
                self.wake()
            case RpcError(data={"stopReason": "error"} as data) if self.phase is not FollowPhase.OVER:
                failed = msgspec.convert(data, thread_safe_type(FailedTurn))
                self._end(TurnSummary("failed", "error", failed.content, failed.usage.counters, answer.message))
            case AgentError() if self.phase is not FollowPhase.OVER:
                self.fail(answer)
            case msgspec.Raw() if self.phase is not FollowPhase.OVER:
                done = msgspec.json.decode(answer, type=thread_safe_type(Prompted))
                outcome: OutcomeName = "cancelled" if done.stop_reason == "cancelled" else "completed"
                usage, notice = done.usage.counters, done.notice or ""
                self._end(TurnSummary(outcome, done.stop_reason, done.content, usage, notice=notice))
            case _:
                pass  # The events have already ended the turn.

    def settle(self) -> None:
        """End a prompt without an answer, given that the session is idle: no more of its events can follow."""
        if self.phase is FollowPhase.RUNNING:
            self._end(TurnSummary.of(self._run))
        elif self.phase is FollowPhase.WAITING:
            self.fail(PromptLost("the connection broke, and nothing shows that the daemon has got the prompt"))

    def _take(self, seq: int, event: AgentEvent) -> None:
        if isinstance(event, UserMessage) and event.prompt_id == self.prompt_id and self.phase is FollowPhase.WAITING:
            self.phase = FollowPhase.RUNNING
        ends = isinstance(event, Done)
        # An unrecorded `done` may belong to another turn, so only the answer can end this one.
        if self.phase is FollowPhase.RUNNING and (seq or not ends):
            self._run.take((event,))
            self._put(seq, event)
            if ends:
                self._conclude(TurnSummary.of(self._run))

    def _end(self, summary: TurnSummary) -> None:
        """End a turn whose own `done` did not arrive: emit one in its place."""
        self._put(0, Done())
        self._conclude(summary)

    def _conclude(self, summary: TurnSummary) -> None:
        self.summary, self.phase = summary, FollowPhase.OVER
        self.wake()


class Following:
    """One attached session and its subscribers.

    ``cursor`` is the number of its newest event, None until the daemon sends one. With a daemon that does not support
    prompt ids, a turn belongs to the first waiting prompt with the same text.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.cursor: int | None = None
        self.epoch: int | None = None
        self.is_attached = False
        self._in_turn = False
        self._panels = OpenPanels()
        #: In order of subscription.
        self.listeners: dict[UpdateListener, None] = {}

    @property
    def after(self) -> int | None:
        """The lowest cursor of all subscribers: a replay after it leaves no gap. None if no subscriber has one."""
        cursors = [one for one in (self.cursor, *(listener.cursor for listener in self.listeners)) if one is not None]
        return min(cursors, default=None)

    def add(self, listener: UpdateListener) -> bool:
        """Add a subscriber. Return True if it needs a replay of earlier events."""
        self.listeners[listener] = None
        if listener.cursor is None:
            listener.cursor = self.cursor
        if self.is_attached and listener.cursor == self.cursor:
            listener.is_open = True
            self._deliver_unrecorded(self._panels.shown, listener)
        return not listener.is_open

    def remove(self, listener: UpdateListener) -> None:
        """Remove a subscriber."""
        self.listeners.pop(listener, None)

    def attached(self, answer: Attached) -> None:
        """Handle the answer to `session/attach`: replay and live events follow it."""
        from_now = shown_from(answer)
        if self.epoch not in (None, answer.epoch):
            self._change_epoch(answer)
        if self.cursor is None:
            self.cursor, self._in_turn = from_now, answer.state != "idle"
        self.epoch, self.is_attached = answer.epoch, True
        for listener in self.listeners:
            listener.open(from_now)

    def hear(self, seq: int, event: AgentEvent, *, names_prompts: bool = True) -> None:
        """Deliver an event to all subscribers."""
        if seq > (self.cursor or 0):
            if isinstance(event, UserMessage) and not (names_prompts or self._in_turn):
                event = self._with_prompt_id(event)
            self.cursor, self._in_turn = seq, not isinstance(event, Done)
        self._panels.apply([event])
        for listener in list(self.listeners):
            listener.hear(seq, event)

    def lost(self) -> None:
        """Handle the loss of the connection. Close all panels: the next connection reopens those that still exist."""
        self.is_attached = False
        gone = self._panels.gone()
        for listener in self.listeners:
            self._deliver_unrecorded(gone, listener)
            listener.is_open = False

    def fail(self, problem: AgentError) -> None:
        """End all subscriptions."""
        for listener in self.listeners:
            listener.fail(problem)

    def _deliver_unrecorded(self, events: Sequence[AgentEvent], listener: UpdateListener) -> None:
        for event in events:
            listener.hear(0, event)

    def _with_prompt_id(self, begin: UserMessage) -> UserMessage:
        waiting = (one for one in self.listeners if isinstance(one, Asked) and one.phase is FollowPhase.WAITING)
        ours = next((one for one in waiting if one.text == text_of(begin.content)), None)
        return begin if ours is None else msgspec.structs.replace(begin, prompt_id=ours.prompt_id)

    def _change_epoch(self, answer: Attached) -> None:
        why = f"session {self.session_id!r} is not what was shown: it was deleted and created again, or lost rows"
        self.fail(EpochChanged(why, epoch=answer.epoch))
        self.listeners.clear()
        self.cursor = None


class Call:
    """A call to the daemon. ``answered`` receives the answer, once."""

    def __init__(
        self,
        line: bytes,
        answered: Callable[[Answer], None],
        *,
        is_repeatable: bool,
        is_for_the_next: bool = False,
        prompts: str = "",
    ) -> None:
        """``prompts`` is the id of the session that it prompts; "" if it is no prompt."""
        self.line = line
        self.prompts = prompts
        self.answered = answered
        self.is_repeatable = is_repeatable
        self.was_sent = False
        #: Whether the next daemon may be asked if this one stops, and whether that has not happened yet.
        self.is_for_the_next = is_for_the_next
        self.can_wait = is_for_the_next

    @property
    def size(self) -> int:
        """Length in bytes, without the LF."""
        return len(self.line) - 1


class _Update(msgspec.Struct, frozen=True, rename="camel"):
    """Parameters of `session/update` with the feature `events`."""

    session_id: str
    type: str = ""
    event: AgentEvent | None = None
    seq: int = 0


class DaemonPeer:
    """State of a client: pending calls and attached sessions, kept across connections; output waits in `taken`."""

    def __init__(self, *, name: str = "", version: str = "", questions: bool = False) -> None:
        """``questions``: the client answers questions of tools."""
        self._features = [one for one in FEATURES if questions or one != QUESTIONS]
        #: The answer to `initialize`; None until it arrives on the current connection.
        self.greeting: Initialized | None = None
        self._client = {"name": name, "version": version}
        self._number = 0
        self._calls: dict[int, Call] = {}
        self._followed: dict[str, Following] = {}
        self._lines = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
        self._unsent: list[bytes] = []
        #: Whether the daemon is about to stop, and whether it was and has resumed.
        self._is_ending = False
        self._has_resumed = False
        #: Prompts that a stopping daemon may have begun or may return: later ones of the session wait for that.
        self._in_doubt: set[int] = set()
        #: Called when there is output in `taken`.
        self.wake: Callable[[], None] = lambda: None
        #: Called with the error if the daemon refuses `initialize`.
        self.refused: Callable[[AgentError], None] = lambda problem: None

    # Calls and subscriptions.

    def ask(
        self, method: str, params: Any, answered: Callable[[Answer], None], *, is_repeatable: bool | None = None
    ) -> int:
        """Send a call once there is a connection; return its number.

        A line longer than the daemon reads is refused here: over a WebSocket it would end the connection.
        """
        self._number += 1
        repeats = method in REPEATABLE if is_repeatable is None else is_repeatable
        waits = repeats or method in _FOR_THE_NEXT
        line = encode_request(method, params, self._number)
        prompts = params.get("sessionId", "") if method == "session/prompt" else ""
        call = Call(line, answered, is_repeatable=repeats, is_for_the_next=waits, prompts=prompts)
        limit = (self.greeting.max_line_bytes if self.greeting is not None else None) or MAX_LINE_BYTES
        if call.size > limit:
            answered(frame_too_large(limit))
            return self._number
        self._calls[self._number] = call
        # A stopping daemon may not read another prompt, which would leave its fate unknown.
        if self.greeting is not None and not (self._is_ending and prompts) and not self._must_wait(self._number):
            self._send(call)
        return self._number

    def forget(self, number: int) -> None:
        """Drop a call whose answer is no longer wanted; if unsent, it stays unsent."""
        self._calls.pop(number, None)

    def following(self, session_id: str) -> Following:
        """Return the state of an attached session; create it if there is none."""
        return self._followed.setdefault(session_id, Following(session_id))

    def attach(
        self, session_id: str, after: int | None, answered: Callable[[Answer], None], *, is_repeatable: bool = True
    ) -> int:
        """Attach to a session, replaying from ``after`` on. Listeners open before ``answered`` is called."""
        following = self.following(session_id)

        def attached(answer: Answer) -> None:
            if isinstance(answer, msgspec.Raw):
                following.attached(msgspec.json.decode(answer, type=thread_safe_type(Attached)))
            answered(answer)

        params = {"sessionId": session_id} if after is None else {"sessionId": session_id, "after": after}
        return self.ask("session/attach", params, attached, is_repeatable=is_repeatable)

    def listen(self, session_id: str, listener: UpdateListener) -> None:
        """Subscribe to an attached session."""
        if self.following(session_id).add(listener) and self.greeting is not None:
            self._attach_again(self.following(session_id))

    def leave(self, session_id: str, listener: UpdateListener) -> None:
        """End a subscription."""
        if (following := self._followed.get(session_id)) is not None:
            following.remove(listener)

    def unfollow(self, session_id: str) -> None:
        """Drop the state of a session."""
        self._followed.pop(session_id, None)

    # The connection.

    def connected(self) -> None:
        """Start on a new connection: send `initialize`."""
        self._lines, self._unsent, self.greeting = LineSplitter(max_line_bytes=_MAX_LINE_BYTES), [], None
        self._is_ending = self._has_resumed = False
        self._in_doubt.clear()
        params = {"protocolVersion": 1, "features": self._features, "client": self._client}
        self._number += 1
        self._calls[self._number] = call = Call(
            encode_request("initialize", params, self._number), self._greeted, is_repeatable=False
        )
        self._send(call)

    def broken(self) -> None:
        """Handle the loss of the connection. Sent calls that are not repeatable fail; the others wait for the next."""
        self.greeting, self._unsent = None, []
        for following in self._followed.values():
            following.lost()
        for number, call in list(self._calls.items()):
            if call.was_sent and not call.is_repeatable:
                del self._calls[number]
                call.answered(ConnectionLost("the connection to the daemon broke before it answered", was_sent=True))
            call.was_sent = False

    def give_up(self, problem: AgentError) -> None:
        """Fail all calls and subscriptions: there will be no further connection."""
        for call in list(self._calls.values()):
            call.answered(problem)
        self._calls.clear()
        for following in self._followed.values():
            following.fail(problem)
        self._followed.clear()

    def feed(self, data: bytes) -> None:
        """Process bytes from the daemon."""
        for line in self._lines.feed(data):
            if isinstance(line, bytes):
                self._take(line)

    def taken(self) -> bytes:
        """Return and clear the pending output."""
        data, self._unsent = b"".join(self._unsent), []
        return data

    def _take(self, line: bytes) -> None:
        match decode(line):
            case Reply(id=number, result=result, error=error):
                refusal = None if error is None else RpcError(error.code, error.message, error.data or None)
                if number == NULL and refusal is not None:
                    self._refuse_longer(refusal)
                else:
                    self._answer(int(bytes(number)) if bytes(number).isdigit() else 0, refusal or result)
            case RpcRequest(method="session/update", params=params):
                self._on_update(params)
            case RpcRequest(method=method) if method == TELLS_STOPPING:
                self._on_stopping()
            case RpcRequest(method=method) if method == TELLS_RESUMED:
                self._on_resumed()
            case _:
                pass  # Other notifications are not for us.

    def _on_stopping(self) -> None:
        """Hold prompts back: the daemon is about to stop. It may announce that more than once."""
        self._is_ending, self._has_resumed = True, False
        for number, call in self._calls.items():
            call.can_wait = call.is_for_the_next
            if call.prompts and call.was_sent:
                self._in_doubt.add(number)

    def _on_resumed(self) -> None:
        """Send the held-back prompts: the daemon does not stop after all."""
        self._is_ending, self._has_resumed = False, True
        self._send_unsent()

    def _answer(self, number: int, answer: Answer | None) -> None:
        """Pass an answer to its caller. A call that a stopping daemon returned is sent again, once, to the next one.

        A daemon that resumes may announce it before it has returned all queued calls.
        """
        call = self._calls.pop(number, None)
        if call is None:
            return
        if isinstance(answer, RpcError) and answer.code == STOPPING and call.can_wait:
            self._calls[number] = call
            call.was_sent = call.can_wait = False
        else:
            call.answered(answer or msgspec.Raw(b"null"))
        self._in_doubt.discard(number)
        if self._has_resumed:
            self._send_unsent()

    def _refuse_longer(self, refusal: RpcError) -> None:
        """Match a refusal without an id to all sent calls above its limit: the daemon did not read their ids."""
        limit = refused_above(refusal)
        for number, call in list(self._calls.items()):
            if limit is not None and call.was_sent and call.size > limit:
                self._answer(number, refusal)

    def _on_update(self, params: msgspec.Raw) -> None:
        try:
            update = msgspec.json.decode(params, type=thread_safe_type(_Update))
        except msgspec.ValidationError:
            return  # An event of a newer version.
        following = self._followed.get(update.session_id)
        if following is None:
            return
        if update.type == _RESTARTED:
            self._attach_again(following)  # The answer has the new epoch, or fails if the session is gone.
        elif update.event is not None:
            following.hear(update.seq, update.event, names_prompts=self._names_prompts)

    @property
    def _names_prompts(self) -> bool:
        return self.greeting is not None and PROMPT_IDS in self.greeting.features

    def _greeted(self, answer: Answer) -> None:
        if isinstance(answer, AgentError):
            self.refused(answer)
            return
        self.greeting = msgspec.json.decode(answer, type=thread_safe_type(Initialized))
        for following in list(self._followed.values()):
            if following.cursor is not None:
                self._attach_again(following)
        self._send_unsent()

    def _attach_again(self, following: Following) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, AgentError) and not isinstance(answer, ConnectionLost):
                following.fail(answer)
                self.unfollow(following.session_id)

        # Not repeatable: every new connection attaches again by itself.
        self.attach(following.session_id, following.after, answered, is_repeatable=False)

    def _send_unsent(self) -> None:
        for number, call in sorted(self._calls.items()):
            if not call.was_sent and number in self._calls and not self._must_wait(number):
                self._send(call)

    def _must_wait(self, number: int) -> bool:
        """True if a prompt would overtake an earlier one of its session that the daemon may still return."""
        session = self._calls[number].prompts
        return any(one < number and self._calls[one].prompts == session for one in self._in_doubt & self._calls.keys())

    def _send(self, call: Call) -> None:
        call.was_sent = True
        self._unsent.append(call.line)
        self.wake()
