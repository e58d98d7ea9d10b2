"""Rewind: restore an earlier point of a session, with the files its tools changed since."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from zot.agent.transcript import Transcript, repaired
from zot.errors import RewindRefused, ToolFailed, UserError
from zot.messages import Message, ResultBlock
from zot.session.history import History
from zot.session.transcripts import RewindTarget, fork_point
from zot.store import NOT_KEPT, Change, FileChanged, MessageAdded, MessagesReplaced, SettingsChanged, Store

if TYPE_CHECKING:
    from zot.tools.checkpoints import Restorer

log = logging.getLogger("zot")


class Step(msgspec.Struct, frozen=True):
    """A file whose content is ``now`` and was ``then``: digests, as in `FileChanged`. ``path`` is relative to ``root``.

    ``found`` are the contents that it may have now: two if the last change may not have been made.
    """

    root: str
    path: str
    now: str | None
    then: str | None
    mode: int
    found: tuple[str | None, ...]


class RewindPlan(msgspec.Struct, frozen=True):
    """A rewind to a row: the conversation at that row, and the files that have changed since.

    ``root`` is the session's current directory.
    """

    at: int
    messages: Sequence[Message]
    root: str
    steps: Sequence[Step]

    def name(self, step: Step) -> str:
        """Return a file's path relative to the session's current directory; absolute if it belongs to another one."""
        return step.path if step.root == self.root else os.path.join(step.root, step.path)


def row_of(
    changes: Sequence[tuple[int, Change]], *, messages: int | None = None, at: int | None = None, last_seq: int
) -> int:
    """Return the row to rewind to, given its number or the number of messages to keep. Raise UserError if there is
    none."""
    if (messages is None) is (at is None):
        raise UserError("a rewind needs either messages, how many to keep, or at, the number of a row")
    if messages is not None:
        return fork_point(changes, messages, purpose="rewind to")
    assert at is not None
    if not 0 <= at <= last_seq:
        raise UserError(f"the session has no row {at} to rewind to")
    return at


def make_plan(
    changes: Sequence[tuple[int, Change]], at: int, *, cwd: str, resolved: Callable[[str], str]
) -> RewindPlan:
    """Plan a rewind to the row ``at``. ``cwd`` is the session's directory where its rows name none.

    ``resolved`` returns a path with all links followed: each file must have one name only.
    """
    then, root, unsure = Transcript(), resolved(cwd), _unsure(changes)
    steps: dict[str, Step] = {}
    for seq, change in changes:
        if seq <= at:
            then.apply(change)
        match change:
            case SettingsChanged(cwd=directory):
                root = resolved(directory or cwd)
            case FileChanged(path=path) if seq > at:
                key = os.path.join(root, path)
                # The content right before our first change: programs other than our tools may have changed it earlier.
                before = steps[key].then if key in steps else change.before
                found = (change.after, change.before) if seq in unsure else (change.after,)
                steps[key] = Step(root, path, change.after, before, change.mode, found)
            case _:
                pass
    return RewindPlan(at, repaired(then.messages), root, [step for step in steps.values() if _differs(step)])


def _unsure(changes: Sequence[tuple[int, Change]]) -> set[int]:
    """Return the rows of file changes that may not have been made: their tool call failed or has no result."""
    failed: dict[str, bool] = {}
    unsure: set[int] = set()
    for seq, change in reversed(changes):
        match change:
            case MessageAdded(message=Message(role="tool", content=blocks)):
                failed.update({block.call_id: block.is_error for block in blocks if isinstance(block, ResultBlock)})
            case FileChanged(call=str(call)) if failed.get(call, True):
                unsure.add(seq)
            case _:
                pass
    return unsure


def _differs(step: Step) -> bool:
    """True if a file changed, or if an unkept content leaves that unknown."""
    return step.now != step.then or step.now == NOT_KEPT


class RestoredFile(msgspec.Struct, frozen=True):
    """A file that a rewind restored. ``path`` is relative to the session's directory, or absolute."""

    path: str
    change: Literal["changed", "created", "removed"]


class Rewound(msgspec.Struct, frozen=True):
    """The result of a rewind: how many ``messages`` are left, the restored files, and the row ``undo``.

    A rewind to that row undoes this one.
    """

    messages: int
    files: tuple[RestoredFile, ...]
    undo: int


async def plan_rewind(store: Store, files: Restorer, wish: RewindTarget, *, cwd: str) -> RewindPlan:
    """Plan a rewind without doing it. Raise UserError if there is no such point, RewindRefused if a file prevents
    it."""
    changes = await store.changes()
    at = row_of(changes, messages=wish.messages, at=wish.at, last_seq=store.last_seq)
    plan = make_plan(changes, at, cwd=cwd, resolved=os.path.realpath)
    if not wish.files:
        return msgspec.structs.replace(plan, steps=())
    problems = {plan.name(step): why for step in plan.steps if (why := await _problem(store, files, step)) is not None}
    if problems:
        raise _refused(problems, "nothing was changed")
    return plan


async def rewind(history: History, files: Restorer, wish: RewindTarget, *, cwd: str) -> Rewound:
    """Rewind as the holder of the lease. Raise UserError, RewindRefused, StoreFailed.

    Files come first: after a crash before the row is stored, each file has its old or its new content, and the same
    rewind accepts both.
    """
    store = history.store
    await store.settled()  # Only stored rows can be read.
    plan = await plan_rewind(store, files, wish, cwd=cwd)
    undo = store.last_seq
    if wish.preview:
        return Rewound(len(plan.messages), restored(plan), undo)
    wrote = await _restore(store, files, plan)
    changes: list[Change] = [*_spliced(history.transcript.messages, plan.messages), *wrote]
    if changes:
        history.replace(*changes)
        await store.settled()
    return Rewound(len(history.transcript), restored(plan), undo)


def restored(plan: RewindPlan) -> tuple[RestoredFile, ...]:
    """Return the files that a plan changes."""
    return tuple(RestoredFile(plan.name(step), _change(step)) for step in plan.steps)


def _change(step: Step) -> Literal["changed", "created", "removed"]:
    if step.then is None:
        return "removed"
    return "created" if step.now is None else "changed"


def _spliced(now: Sequence[Message], then: Sequence[Message]) -> list[MessagesReplaced]:
    same = 0
    while same < min(len(now), len(then)) and now[same] == then[same]:
        same += 1
    return [MessagesReplaced(same, len(now), tuple(then[same:]))] if len(now) > same or len(then) > same else []


async def _problem(store: Store, files: Restorer, step: Step) -> str | None:
    if step.then and await store.content(step.then) is None:
        return "its earlier content is lost"
    return await asyncio.to_thread(files.problem, step.root, step.path, found=step.found, then=step.then)


async def _restore(store: Store, files: Restorer, plan: RewindPlan) -> list[FileChanged]:
    """Restore all files and return the rows to record. If one fails, undo the others and raise RewindRefused."""
    done: list[Step] = []
    wrote: list[FileChanged] = []
    try:
        for step in plan.steps:
            was = await _put(store, files, step)
            digest, mode = was or (step.now, step.mode)
            wrote.append(FileChanged(plan.name(step), digest, step.then, mode=mode))
            if was is not None:
                done.append(msgspec.structs.replace(step, found=(step.then,), then=digest, mode=mode))
    except ToolFailed as problem:
        stuck = {plan.name(one): why for one, why in await _undo(store, files, done)}
        raise _refused({plan.name(step): str(problem)} | stuck, "the others are as they were") from problem
    return wrote


async def _put(store: Store, files: Restorer, step: Step) -> tuple[str | None, int] | None:
    data = None
    if step.then is not None and (data := await store.content(step.then)) is None:
        raise ToolFailed("its earlier content is lost")
    return await asyncio.to_thread(
        files.restore, step.root, step.path, data, found=step.found, then=step.then, mode=step.mode
    )


async def _undo(store: Store, files: Restorer, done: Sequence[Step]) -> list[tuple[Step, str]]:
    """Undo restored files by the steps ``done``; return those that could not be undone, and why."""
    stuck: list[tuple[Step, str]] = []
    for step in reversed(done):
        try:
            await _put(store, files, step)
        except ToolFailed as problem:
            log.warning("%s was put back, and could not be changed again: %s", step.path, problem)
            stuck.append((step, f"it was put back, and could not be changed again: {problem}"))
    return stuck


def _refused(problems: dict[str, str], rest: str) -> RewindRefused:
    reasons = "; ".join(f"{path}: {why}" for path, why in problems.items())
    return RewindRefused(f"files cannot be restored, {rest}: {reasons}", files=tuple(problems))


class FilePair(msgspec.Struct, frozen=True):
    """A file as two sessions last knew it: digests as in `FileChanged`."""

    path: str
    one: str | None
    other: str | None


class Branches(msgspec.Struct, frozen=True):
    """A comparison of two sessions: the shared part, the messages only ``one`` or the ``other`` has, and files that
    differ.

    ``seq`` is the number of the last shared row.
    """

    seq: int
    shared: int
    one: Sequence[Message]
    other: Sequence[Message]
    files: Sequence[FilePair]


def compare(one: Sequence[tuple[int, Change]], other: Sequence[tuple[int, Change]]) -> Branches:
    """Compare two sessions by their rows: a fork has the rows of its origin, under the same numbers."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    mine, theirs = _transcript(one), _transcript(other)
    shared = 0
    while shared < min(len(mine), len(theirs)) and mine[shared] == theirs[shared]:
        shared += 1
    return Branches(one[same - 1][0] if same else 0, shared, mine[shared:], theirs[shared:], _files(one, other, same))


def _transcript(changes: Sequence[tuple[int, Change]]) -> Sequence[Message]:
    transcript = Transcript()
    for _, change in changes:
        transcript.apply(change)
    return transcript.messages


def _files(one: Sequence[tuple[int, Change]], other: Sequence[tuple[int, Change]], same: int) -> list[FilePair]:
    """Return the files that either session has changed since the fork and whose contents now differ."""
    mine, theirs = _last(one[same:]), _last(other[same:])
    # A session that did not change a file has it as the other one found it.
    found = {**_first(other[same:]), **_first(one[same:])}
    pairs = (FilePair(path, mine.get(path, found[path]), theirs.get(path, found[path])) for path in sorted(found))
    # Whether unkept contents differ is unknown: list them.
    return [pair for pair in pairs if pair.one != pair.other or pair.one == NOT_KEPT]


def _first(changes: Sequence[tuple[int, Change]]) -> dict[str, str | None]:
    """Return each file's content before the first of these changes."""
    return {change.path: change.before for _, change in reversed(changes) if isinstance(change, FileChanged)}


def _last(changes: Sequence[tuple[int, Change]]) -> dict[str, str | None]:
    """Return each file's content after the last of these changes."""
    return {change.path: change.after for _, change in changes if isinstance(change, FileChanged)}
