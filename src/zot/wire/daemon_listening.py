"""What a client of the daemon hears of one session: every event once, in order, whatever becomes of connections.

Numbers do it: an event that is not above what a listener has had is left out, and after a new connection everything
above is asked for. Does no I/O.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from zot.errors import AgentError, ConnectionLost, EpochChanged, PromptLost
from zot.events import AgentEvent, Done, UserMessage
from zot.learned import learned
from zot.messages import text_of
from zot.panels import OpenPanels
from zot.surrogates import without_halves
from zot.wire.daemon_types import Attached, FailedTurn, Prompted
from zot.wire.jsonrpc import RpcError
from zot.wire.turn import OutcomeName, Turn, TurnSummary


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
