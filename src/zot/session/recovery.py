"""What a session does about a run that a dead process left without its end: it is ended, or gone on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from zot.agent.parking import Parked, find_parked, missed
from zot.errors import SessionBusy, StoreFailed, UserError
from zot.session.history import History
from zot.session.queue import Errand, Job
from zot.session.recovery_part import recover
from zot.session.transcripts import Past
from zot.store import Configured, Guarded, Row, Store


class TakenUp(msgspec.Struct, frozen=True):
    """A run that goes on here: where it stands, what it has recorded so far, and how long a person may still answer."""

    parked: Parked
    rows: Sequence[Row]
    left_s: float


async def mend(history: History, store: Store, newest: Sequence[Row], *, now: Callable[[], str]) -> None:
    """End a newest run that has no end, unless it waits for a person, or somebody else runs the session."""
    history.must_recover = _is_cut_off(history, newest)
    if not history.must_recover or not recover(history.transcript, newest, now="").rows:
        return
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return  # It is not dead.
    try:
        history.run = store.last_run
        rows = [row for _, row in await store.newest()]
        history.amend(recover(history.transcript, rows, now=now()).rows)
        await history.settled()
    finally:
        store.end()


async def take_up(
    history: History,
    store: Store,
    newest: Sequence[Row],
    *,
    now: Callable[[], str],
    clock: Callable[[], float],
) -> TakenUp | None:
    """Return a newest run without an end that can go on here, as the store's only writer. End any other.

    Only one that was begun here can: what a file or another session says that a person allowed, nobody has.
    """
    history.must_recover = _is_cut_off(history, newest)
    if not store.left_behind and not history.must_recover:
        return None
    try:
        history.learn([row for _, row in await store.begin()])
    except SessionBusy:
        return None  # It is not dead.
    taken = None
    try:
        history.run = store.last_run
        taken = await _see_to(history, store, now=now, clock=clock)
        if taken is None:
            await history.settled()
        return taken
    finally:
        if taken is None:
            store.end()


async def catch_up(
    history: History,
    store: Store,
    others: Sequence[tuple[int, Row]],
    *,
    now: Callable[[], str],
    clock: Callable[[], float] | None,
) -> TakenUp | None:
    """Know what ``others`` have recorded, and end what they could not: a dead one leaves its run without an end.

    One that waits for a person is returned instead, if ``clock`` says that it is not too late. We are the only writer.
    """
    history.learn([row for _, row in others])
    history.run = store.last_run
    if not history.must_recover and not others:
        return None
    history.must_recover = True
    taken = await _see_to(history, store, now=now, clock=clock)
    history.must_recover = taken is not None
    return taken


async def _see_to(
    history: History, store: Store, *, now: Callable[[], str], clock: Callable[[], float] | None
) -> TakenUp | None:
    """Return a newest run that waits for a person, and end any other; every one without a ``clock``."""
    rows = [row for _, row in await store.newest()]
    parked = find_parked(history.transcript, rows) if clock is not None and store.left_behind else None
    left_s = 0 if parked is None or clock is None else parked.left_s(clock())
    if parked is not None and (parked.answer is not None or left_s > 0):
        return TakenUp(parked, rows, left_s)
    if parked is not None:
        late = missed(parked, now())
        history.amend(late)
        rows = [*rows, *late]
    history.amend(recover(history.transcript, rows, now=now(), parks=False).rows)
    return None


async def conclude(store: Store, past: Past, *, now: Callable[[], str]) -> None:
    """End a run that a dead process left in a session that nobody can use, unless it waits for a person."""
    history = History(
        store,
        charge=lambda counters: counters,
        measured=lambda usage, transcript: None,
        recall=lambda allowed: None,
        observe=lambda events: None,
        on_failure=lambda problem: None,
    )
    history.learn(past.changes)
    history.totals = past.totals
    await mend(history, store, past.newest, now=now)


async def note(history: History, store: Store, row: Row, *, begun: bool) -> None:
    """Record something beside any run, or in the one that has ``begun``. Raise SessionBusy, StoreFailed."""
    if begun or not store.shared:
        history.amend([row])
        return
    others = await store.begin()
    try:
        history.learn([other for _, other in others])
        if others:
            history.must_recover = True  # Whoever it was may be dead by now.
            history.overheard(others[-1][0])
        history.run = store.last_run
        history.amend([row])
        await history.settled()
    finally:
        store.end()


async def keep(history: History, make: Callable[[], Row], accept: Callable[[Job], object]) -> None:
    """Record something at once while the session is written to, else as soon as it can be, and wait until it is safe.

    It is made in the moment in which it is recorded. Raise AgentError.
    """

    async def record() -> None:
        history.amend([make()])
        await history.settled()

    try:
        history.amend([make()])
    except StoreFailed:  # Nothing runs.
        errand = Errand(record)
        accept(errand.job)
        await errand.over
    else:
        await history.settled()


def dismissal(name: str, guarded: Guarded | None, *, attends: bool) -> Guarded:
    """Return what lifts what a guard blocks that is away. Raise UserError if none is missed, or it is there."""
    if guarded is None or not guarded.intercept:
        raise UserError(f"no guard named {name!r} is missed in this session")
    if attends:
        raise UserError(f"the guard {name!r} is connected; only one that is away can be dismissed")
    return Guarded(name, ())


async def establish(history: History, store: Store, configured: Configured) -> None:
    """Record what a session works with, durably, unless that is on record or somebody else runs it."""
    if store.shared and configured != history.configured:
        with suppress(SessionBusy):  # Then its next run does it.
            await note(history, store, configured, begun=False)


def _is_cut_off(history: History, newest: Sequence[Row]) -> bool:
    """True if the newest run, or the transcript, is not as whoever brings it to its end would leave it."""
    return bool(recover(history.transcript, newest, now="", parks=False).rows)
