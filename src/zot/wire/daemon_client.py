"""Client side of the daemon protocol: requests, resumption and session updates. Does no I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from zot.encoding import learned
from zot.errors import AgentError, ConnectionLost, EpochChanged, PromptLost
from zot.events import AgentEvent, Done, UserMessage
from zot.messages import text_of
from zot.panels import OpenPanels
from zot.text import without_halves
from zot.wire.daemon import FEATURES, LOOKS, PROMPT_IDS, TELLS_RESUMED, TELLS_STOPPING
from zot.wire.daemon_greeting import Initialized
from zot.wire.daemon_types import Attached, FailedTurn, Prompted
from zot.wire.jsonrpc import (
    NULL,
    STOPPING,
    Reply,
    Request,
    RpcError,
    decode,
    encode_request,
    frame_too_large,
    refused_above,
)
from zot.wire.lines import MAX_LINE_BYTES, LineSplitter
from zot.wire.updates import OutcomeName, Turn, TurnSummary


def shown_from(attached: Attached) -> int:
    """Return the number above which a session is heard that was attached to: a question that waits is shown again.

    A daemon that does not say where that stands is believed to have asked it last.
    """
    if isinstance(attached.asked_seq, int):
        return attached.asked_seq - 1
    return attached.last_seq - (attached.state == "waiting_approval")


class Listener:
    """Somebody who hears a session. ``cursor`` is the number of the last event that it was given.

    None is for who hears from now on, whatever number that is. ``wake`` is called when there is something new.
    """

    def __init__(self, cursor: int | None, wake: Callable[[], None]) -> None:
        self.cursor = cursor
        self.unread: deque[tuple[int, AgentEvent]] = deque()
        #: Why it will hear nothing more.
        self.problem: AgentError | None = None
        #: What comes before everything above its cursor was asked for is not for it.
        self.is_open = False
        self.wake = wake

    def open(self, from_now: int) -> None:
        """Everything above its cursor comes from here on."""
        self.cursor = from_now if self.cursor is None else self.cursor
        self.is_open = True

    def hear(self, seq: int, event: AgentEvent) -> None:
        """Take what happened; 0 is the number of what is not recorded."""
        if self.is_open and (not seq or seq > (self.cursor or 0)):
            self.cursor = seq or self.cursor
            self._take(seq, event)

    def fail(self, problem: AgentError) -> None:
        """It will hear nothing more. The first reason counts."""
        self.problem = self.problem or problem
        self.wake()

    def _take(self, seq: int, event: AgentEvent) -> None:
        self._put(seq, event)

    def _put(self, seq: int, event: AgentEvent) -> None:
        self.unread.append((seq, event))
        self.wake()


class Phase(enum.Enum):
    """How far a prompt is."""

    WAITING = "its turn has not begun, as far as is known"
    RUNNING = "its turn has begun"
    OVER = "its turn is over, or there will be none"


class Asked(Listener):
    """One prompt: which turn is its, and what came of it. Hears the events of that turn only.

    Its turn is the one that begins with its id. So it is found also if the answer was lost with the connection, and
    need not be sent again; see `settle` for one that never arrived. A daemon that knows no ids is not asked for more
    than the ``text``: see `Following`.
    """

    def __init__(self, prompt_id: str, text: str, cursor: int | None, wake: Callable[[], None]) -> None:
        super().__init__(cursor, wake)
        self.prompt_id = prompt_id
        self.text = without_halves(text)
        self.phase = Phase.WAITING
        #: True if the answer to it will never come: the connection on which it was sent is gone.
        self.is_doubtful = False
        self.summary: TurnSummary | None = None
        self._turn = Turn()

    @property
    def is_over(self) -> bool:
        """True if nothing more will be heard."""
        return self.phase is Phase.OVER or self.problem is not None

    def answer(self, answer: msgspec.Raw | AgentError) -> None:
        """Take the answer to the prompt. It comes last, so what has not been heard by then never happened."""
        match answer:
            case ConnectionLost(was_sent=True):
                self.is_doubtful = True
                self.wake()
            case RpcError(data={"stopReason": "error"} as data) if self.phase is not Phase.OVER:
                told = msgspec.convert(data, learned(FailedTurn))
                self._end(TurnSummary("failed", "error", told.content, told.usage.counters, answer.message))
            case AgentError() if self.phase is not Phase.OVER:
                self.fail(answer)
            case msgspec.Raw() if self.phase is not Phase.OVER:
                said = msgspec.json.decode(answer, type=learned(Prompted))
                how: OutcomeName = "cancelled" if said.stop_reason == "cancelled" else "completed"
                self._end(
                    TurnSummary(how, said.stop_reason, said.content, said.usage.counters, notice=said.notice or "")
                )
            case _:
                pass  # Everything is known already.

    def settle(self) -> None:
        """The session is at rest, so what has not been heard of a prompt without an answer never will be."""
        if self.phase is Phase.RUNNING:
            self._end(self._turn.summary())
        elif self.phase is Phase.WAITING:
            self.fail(PromptLost("the connection broke, and nothing shows that the daemon has got the prompt"))

    def _take(self, seq: int, event: AgentEvent) -> None:
        if isinstance(event, UserMessage) and event.prompt_id == self.prompt_id and self.phase is Phase.WAITING:
            self.phase = Phase.RUNNING
        ends = isinstance(event, Done)
        # The end of a turn that could not be recorded is told by the answer: it may be that of another one.
        if self.phase is Phase.RUNNING and (seq or not ends):
            self._turn.take(event)
            self._put(seq, event)
            if ends:
                self._conclude(self._turn.summary())

    def _end(self, summary: TurnSummary) -> None:
        """End without the event that says so, and say it."""
        self._put(0, Done())
        self._conclude(summary)

    def _conclude(self, summary: TurnSummary) -> None:
        self.summary, self.phase = summary, Phase.OVER
        self.wake()


class Following:
    """One session that is followed, by any number of listeners.

    ``cursor`` is the number of its newest event, None until the daemon has said it. Where the daemon does not name
    prompts, a turn is that of the first prompt with its words that still waits for one.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.cursor: int | None = None
        self.epoch: int | None = None
        self.is_attached = False
        self._in_turn = False
        self._panels = OpenPanels()
        #: In the order in which they came.
        self.listeners: dict[Listener, None] = {}

    @property
    def after(self) -> int | None:
        """The number above which everything must be asked for, so that nobody misses anything."""
        cursors = [one.cursor for one in self.listeners if one.cursor is not None]
        return self.cursor if self.cursor is None else min([self.cursor, *cursors])

    def add(self, listener: Listener) -> bool:
        """Let somebody hear it. True if the past must be asked for, too, for its sake."""
        self.listeners[listener] = None
        if listener.cursor is None:
            listener.cursor = self.cursor
        if self.is_attached and listener.cursor == self.cursor:
            listener.is_open = True
            self._tell(self._panels.shown, listener)
        return not listener.is_open

    def remove(self, listener: Listener) -> None:
        """Let somebody hear no more."""
        self.listeners.pop(listener, None)

    def attached(self, said: Attached) -> None:
        """The daemon tells what is above the number that was asked for, and what happens, from here on."""
        from_now = shown_from(said)
        if self.epoch not in (None, said.epoch):
            self._begin_anew(said)
        if self.cursor is None:
            self.cursor, self._in_turn = from_now, said.state != "idle"
        self.epoch, self.is_attached = said.epoch, True
        for listener in self.listeners:
            listener.open(from_now)

    def hear(self, seq: int, event: AgentEvent, *, names_prompts: bool = True) -> None:
        """Tell everybody what happened."""
        if seq > (self.cursor or 0):
            if isinstance(event, UserMessage) and not (names_prompts or self._in_turn):
                event = self._named(event)
            self.cursor, self._in_turn = seq, not isinstance(event, Done)
        self._panels.hear([event])
        for listener in list(self.listeners):
            listener.hear(seq, event)

    def lost(self) -> None:
        """The connection is gone. Which panels are open is told again by whoever is there next, if they still are."""
        self.is_attached = False
        gone = self._panels.gone()
        for listener in self.listeners:
            self._tell(gone, listener)
            listener.is_open = False

    def fail(self, problem: AgentError) -> None:
        """Nobody will hear anything more."""
        for listener in self.listeners:
            listener.fail(problem)

    def _tell(self, unrecorded: Sequence[AgentEvent], listener: Listener) -> None:
        for event in unrecorded:
            listener.hear(0, event)

    def _named(self, begin: UserMessage) -> UserMessage:
        waiting = (one for one in self.listeners if isinstance(one, Asked) and one.phase is Phase.WAITING)
        ours = next((one for one in waiting if one.text == text_of(begin.content)), None)
        return begin if ours is None else msgspec.structs.replace(begin, prompt_id=ours.prompt_id)

    def _begin_anew(self, said: Attached) -> None:
        why = (
            f"session {self.session_id!r} is not what was shown: it was deleted and made anew, or a part of it is lost"
        )
        self.fail(EpochChanged(why, epoch=said.epoch))
        self.listeners.clear()
        self.cursor = None


#: What comes to the same if it is asked twice.
REPEATABLE: Final = LOOKS | {"session/attach", "session/delete", "session/rename"}
#: What can be asked of the next daemon if this one ends before it has begun with it.
_FOR_THE_NEXT: Final = REPEATABLE | {"session/prompt"}
#: The type of the update that says that a session is another one.
_RESTARTED: Final = "restarted"
#: A replayed event may be as long as what a tool said.
_MAX_LINE_BYTES: Final = 64 << 20

#: The result as it was written, or why there is none.
Answer: TypeAlias = msgspec.Raw | AgentError


class Call:
    """Something that is asked. ``answered`` gets the answer, once."""

    def __init__(
        self,
        line: bytes,
        answered: Callable[[Answer], None],
        *,
        is_repeatable: bool,
        is_for_the_next: bool = False,
        prompts: str = "",
    ) -> None:
        """``prompts`` is the session that it is a prompt of."""
        self.line = line
        self.prompts = prompts
        self.answered = answered
        self.is_repeatable = is_repeatable
        self.was_sent = False
        #: Whether another daemon may be asked if this one is about to end, and whether that is still to come.
        self.is_for_the_next = is_for_the_next
        self.can_wait = is_for_the_next

    @property
    def size(self) -> int:
        """How long it is, in bytes, without the end of its line."""
        return len(self.line) - 1


class _Update(msgspec.Struct, frozen=True, rename="camel"):
    """What `session/update` says with the feature `events`."""

    session_id: str
    type: str = ""
    event: AgentEvent | None = None
    seq: int = 0


class DaemonPeer:
    """What is asked, what is followed, and what is to be sent: `taken`."""

    def __init__(self, *, name: str = "", version: str = "") -> None:
        #: What the daemon said of itself; None until it has, on each connection.
        self.greeting: Initialized | None = None
        self._client = {"name": name, "version": version}
        self._number = 0
        self._calls: dict[int, Call] = {}
        self._followed: dict[str, Following] = {}
        self._lines = LineSplitter(max_line_bytes=_MAX_LINE_BYTES)
        self._unsent: list[bytes] = []
        #: Whether the daemon at the other end is about to end, or has said so and goes on after all.
        self._is_ending = False
        self._has_resumed = False
        #: The prompts that it may have begun, or give back: those behind them wait for that.
        self._in_doubt: set[int] = set()
        #: Called when there is something to send.
        self.wake: Callable[[], None] = lambda: None
        #: Called with what a daemon says that does not greet us as it should.
        self.refused: Callable[[AgentError], None] = lambda problem: None

    # What is asked.

    def ask(
        self, method: str, params: Any, answered: Callable[[Answer], None], *, is_repeatable: bool | None = None
    ) -> int:
        """Ask for something, as soon as there is a connection; return its number.

        What is longer than the daemon reads is not sent: over a WebSocket that would end the connection.
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
        # A daemon that is about to end may not read a prompt any more, and then nobody knows what became of it.
        if self.greeting is not None and not (self._is_ending and prompts) and not self._must_wait(self._number):
            self._send(call)
        return self._number

    def forget(self, number: int) -> None:
        """Nobody waits for this answer any more; what was not sent is not."""
        self._calls.pop(number, None)

    def following(self, session_id: str) -> Following:
        """Return who hears a session; nobody, if it is a new one."""
        return self._followed.setdefault(session_id, Following(session_id))

    def attach(
        self, session_id: str, after: int | None, answered: Callable[[Answer], None], *, is_repeatable: bool = True
    ) -> int:
        """Follow a session, from a number on. Listeners are told of it before ``answered`` is."""
        following = self.following(session_id)

        def attached(answer: Answer) -> None:
            if isinstance(answer, msgspec.Raw):
                following.attached(msgspec.json.decode(answer, type=learned(Attached)))
            answered(answer)

        params = {"sessionId": session_id} if after is None else {"sessionId": session_id, "after": after}
        return self.ask("session/attach", params, attached, is_repeatable=is_repeatable)

    def listen(self, session_id: str, listener: Listener) -> None:
        """Let somebody hear a session that is followed."""
        if self.following(session_id).add(listener) and self.greeting is not None:
            self._attach_again(self.following(session_id))

    def leave(self, session_id: str, listener: Listener) -> None:
        """Let it hear nothing more."""
        if (following := self._followed.get(session_id)) is not None:
            following.remove(listener)

    def unfollow(self, session_id: str) -> None:
        """Remember nothing of a session."""
        self._followed.pop(session_id, None)

    # What becomes of connections.

    def connected(self) -> None:
        """There is a new connection, on which nothing has been said."""
        self._lines, self._unsent, self.greeting = LineSplitter(max_line_bytes=_MAX_LINE_BYTES), [], None
        self._is_ending = self._has_resumed = False
        self._in_doubt.clear()
        params = {"protocolVersion": 1, "features": FEATURES, "client": self._client}
        self._number += 1
        self._calls[self._number] = call = Call(
            encode_request("initialize", params, self._number), self._greeted, is_repeatable=False
        )
        self._send(call)

    def broken(self) -> None:
        """The connection is gone. What must not be asked twice fails; the rest waits for the next one."""
        self.greeting, self._unsent = None, []
        for following in self._followed.values():
            following.lost()
        for number, call in list(self._calls.items()):
            if call.was_sent and not call.is_repeatable:
                del self._calls[number]
                call.answered(ConnectionLost("the connection to the daemon broke before it answered", was_sent=True))
            call.was_sent = False

    def give_up(self, problem: AgentError) -> None:
        """There will be no connection any more."""
        for call in list(self._calls.values()):
            call.answered(problem)
        self._calls.clear()
        for following in self._followed.values():
            following.fail(problem)
        self._followed.clear()

    def feed(self, data: bytes) -> None:
        """Take what the daemon said."""
        for line in self._lines.feed(data):
            if isinstance(line, bytes):
                self._take(line)

    def taken(self) -> bytes:
        """Return what is to be sent now."""
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
            case Request(method="session/update", params=params):
                self._hear(params)
            case Request(method=method) if method == TELLS_STOPPING:
                self._stop()
            case Request(method=method) if method == TELLS_RESUMED:
                self._resume()
            case _:
                pass  # What we did not ask for.

    def _stop(self) -> None:
        """The daemon is about to end. It may do so more than once."""
        self._is_ending, self._has_resumed = True, False
        for number, call in self._calls.items():
            call.can_wait = call.is_for_the_next
            if call.prompts and call.was_sent:
                self._in_doubt.add(number)

    def _resume(self) -> None:
        """The daemon goes on: it is as good as the next one."""
        self._is_ending, self._has_resumed = False, True
        self._send_unsent()

    def _answer(self, number: int, answer: Answer | None) -> None:
        """Give an answer to who waits for it. What was not begun is asked once more, as a rule of the next daemon.

        A daemon that goes on after all may say so before it has given back everything that waited.
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
        """A daemon that reads less than others has not read the number of what it refuses, only that it is too long."""
        limit = refused_above(refusal)
        for number, call in list(self._calls.items()):
            if limit is not None and call.was_sent and call.size > limit:
                self._answer(number, refusal)

    def _hear(self, params: msgspec.Raw) -> None:
        try:
            update = msgspec.json.decode(params, type=learned(_Update))
        except msgspec.ValidationError:
            return  # An event that a newer daemon knows.
        following = self._followed.get(update.session_id)
        if following is None:
            return
        if update.type == _RESTARTED:
            self._attach_again(following)  # The answer says which session it is by now, or that there is none.
        elif update.event is not None:
            following.hear(update.seq, update.event, names_prompts=self._names_prompts)

    @property
    def _names_prompts(self) -> bool:
        return self.greeting is not None and PROMPT_IDS in self.greeting.features

    def _greeted(self, answer: Answer) -> None:
        if isinstance(answer, AgentError):
            self.refused(answer)
            return
        self.greeting = msgspec.json.decode(answer, type=learned(Initialized))
        for following in list(self._followed.values()):
            if following.cursor is not None:
                self._attach_again(following)
        self._send_unsent()

    def _attach_again(self, following: Following) -> None:
        def answered(answer: Answer) -> None:
            if isinstance(answer, AgentError) and not isinstance(answer, ConnectionLost):
                following.fail(answer)
                self.unfollow(following.session_id)

        # Every new connection does it anew.
        self.attach(following.session_id, following.after, answered, is_repeatable=False)

    def _send_unsent(self) -> None:
        for number, call in sorted(self._calls.items()):
            if not call.was_sent and number in self._calls and not self._must_wait(number):
                self._send(call)

    def _must_wait(self, number: int) -> bool:
        """True if a prompt would overtake another one of its session that may still be given back."""
        session = self._calls[number].prompts
        return any(one < number and self._calls[one].prompts == session for one in self._in_doubt & self._calls.keys())

    def _send(self, call: Call) -> None:
        call.was_sent = True
        self._unsent.append(call.line)
        self.wake()
