"""Back to an earlier point of a session: its conversation, and the files that its tools have changed since."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from zot.errors import RewindRefused, ToolFailed
from zot.messages import Message
from zot.session.checkpoints import Plan, Step, planned, row_of
from zot.session.history import History
from zot.session.queue import Wish
from zot.store import Change, Spliced, Store, Wrote

log = logging.getLogger("zot")


class RestoredFile(msgspec.Struct, frozen=True):
    """A file that a rewind put back. ``path`` is relative to the directory that the session works in, or absolute."""

    path: str
    change: Literal["changed", "created", "removed"]


class Rewound(msgspec.Struct, frozen=True):
    """What came of a rewind: how many ``messages`` there are now, the files, and the row ``undo`` that undoes it."""

    messages: int
    files: tuple[RestoredFile, ...]
    undo: int


class Files(Protocol):
    """Who can put files back. Both methods may take long."""

    def problem(self, root: str, path: str, *, found: Sequence[str | None], then: str | None) -> str | None:
        """Return why a file, which must be one of ``found``, cannot become ``then``; None if it can, or is already."""

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        """Make ``data`` the content of a file; None removes it. Raise ToolFailed.

        Return the digest and the permissions of what was there; None if it was so already.
        """


async def way_back(store: Store, files: Files, wish: Wish, *, cwd: str) -> Plan:
    """Return what a rewind would do. Raise UserError if there is no such point, RewindRefused if it would refuse."""
    changes = await store.changes()
    at = row_of(changes, messages=wish.messages, at=wish.at, last_seq=store.last_seq)
    plan = planned(changes, at, cwd=cwd, resolved=os.path.realpath)
    if not wish.files:
        return msgspec.structs.replace(plan, steps=())
    problems = {plan.name(step): why for step in plan.steps if (why := await _problem(store, files, step)) is not None}
    if problems:
        raise _refused(problems, "nothing was changed")
    return plan


async def rewind(history: History, store: Store, files: Files, wish: Wish, *, cwd: str) -> Rewound:
    """Go back, as the store's only writer. Raise UserError, RewindRefused, StoreFailed.

    Files first: if we are killed before it is recorded, each of them is as it was or as it should be, and the same
    rewind finds nothing wrong with either.
    """
    await history.settled()  # only what is safe can be read
    plan = await way_back(store, files, wish, cwd=cwd)
    undo = store.last_seq
    wrote = await _restore(store, files, plan)
    changes: list[Change] = [*_spliced(history.transcript.messages, plan.messages), *wrote]
    if changes:
        history.replace(*changes)
        await history.settled()
    return Rewound(len(history.transcript), restored(plan), undo)


def restored(plan: Plan) -> tuple[RestoredFile, ...]:
    """Return what a plan does to files."""
    return tuple(RestoredFile(plan.name(step), _change(step)) for step in plan.steps)


def _change(step: Step) -> Literal["changed", "created", "removed"]:
    if step.then is None:
        return "removed"
    return "created" if step.now is None else "changed"


def _spliced(now: Sequence[Message], then: Sequence[Message]) -> list[Spliced]:
    same = 0
    while same < min(len(now), len(then)) and now[same] == then[same]:
        same += 1
    return [Spliced(same, len(now), tuple(then[same:]))] if len(now) > same or len(then) > same else []


async def _problem(store: Store, files: Files, step: Step) -> str | None:
    if step.then and await store.content(step.then) is None:
        return "what it was is lost"
    return await asyncio.to_thread(files.problem, step.root, step.path, found=step.found, then=step.then)


async def _restore(store: Store, files: Files, plan: Plan) -> list[Wrote]:
    """Put all files back and return what to record; or none: if one cannot be, the others are changed again."""
    done: list[Step] = []
    wrote: list[Wrote] = []
    try:
        for step in plan.steps:
            was = await _put(store, files, step)
            digest, mode = was or (step.now, step.mode)
            wrote.append(Wrote(plan.name(step), digest, step.then, mode=mode))
            if was is not None:
                done.append(msgspec.structs.replace(step, found=(step.then,), then=digest, mode=mode))
    except ToolFailed as problem:
        stuck = {plan.name(one): why for one, why in await _undo(store, files, done)}
        raise _refused({plan.name(step): str(problem)} | stuck, "the others are as they were") from problem
    return wrote


async def _put(store: Store, files: Files, step: Step) -> tuple[str | None, int] | None:
    data = None
    if step.then is not None and (data := await store.content(step.then)) is None:
        raise ToolFailed("what it was is lost")
    return await asyncio.to_thread(
        files.restore, step.root, step.path, data, found=step.found, then=step.then, mode=step.mode
    )


async def _undo(store: Store, files: Files, done: Sequence[Step]) -> list[tuple[Step, str]]:
    """Change files again that were put back, with the steps that do that; return those that could not be, and why."""
    stuck: list[tuple[Step, str]] = []
    for step in reversed(done):
        try:
            await _put(store, files, step)
        except ToolFailed as problem:
            log.warning("%s was put back, and could not be changed again: %s", step.path, problem)
            stuck.append((step, f"it was put back, and could not be changed again: {problem}"))
    return stuck


def _refused(problems: dict[str, str], rest: str) -> RewindRefused:
    told = "; ".join(f"{path}: {why}" for path, why in problems.items())
    return RewindRefused(f"files cannot be put back, {rest}: {told}", files=tuple(problems))
