"""What rows say about files: what they were at a point, and what has become of them since. Does no I/O."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from zot.agent.transcript import Transcript, repaired
from zot.errors import UserError
from zot.messages import Message, ResultBlock
from zot.session.transcripts import fork_point
from zot.store import UNKEPT, Change, Configured, Said, Wrote


class Step(msgspec.Struct, frozen=True):
    """A file that has the content ``now`` and had ``then``: digests, as in `Wrote`. ``path`` begins at ``root``.

    ``found`` are the contents that it may have now: two if nobody knows whether its last change was made.
    """

    root: str
    path: str
    now: str | None
    then: str | None
    mode: int
    found: tuple[str | None, ...]


class Plan(msgspec.Struct, frozen=True):
    """A way back to a row: the conversation as it was, and the files that have changed since.

    ``root`` is the directory that the session works in now.
    """

    at: int
    messages: Sequence[Message]
    root: str
    steps: Sequence[Step]

    def name(self, step: Step) -> str:
        """Return the path of a file, from the directory that the session works in now; absolute if it is of another."""
        return step.path if step.root == self.root else os.path.join(step.root, step.path)


def row_of(
    changes: Sequence[tuple[int, Change]], *, messages: int | None = None, at: int | None = None, last_seq: int
) -> int:
    """Return the row that a rewind goes back to: named by its number, or by how many messages are kept.

    Raise UserError if there is none.
    """
    if (messages is None) is (at is None):
        raise UserError("a rewind needs either messages, how many to keep, or at, the number of a row")
    if messages is not None:
        return fork_point(changes, messages, purpose="rewind to")
    assert at is not None
    if not 0 <= at <= last_seq:
        raise UserError(f"the session has no row {at} to rewind to")
    return at


def planned(changes: Sequence[tuple[int, Change]], at: int, *, cwd: str, resolved: Callable[[str], str]) -> Plan:
    """Return the way back to the row ``at``. ``cwd`` is where the session works if its rows do not say.

    ``resolved`` returns a path with all links followed: a file must have one name only.
    """
    then, root, unsure = Transcript(), resolved(cwd), _unsure(changes)
    steps: dict[str, Step] = {}
    for seq, change in changes:
        if seq <= at:
            then.apply(change)
        match change:
            case Configured(cwd=directory):
                root = resolved(directory or cwd)
            case Wrote(path=path) if seq > at:
                key = os.path.join(root, path)
                # What was there right before the first change since then: others may have had a hand in it.
                before = steps[key].then if key in steps else change.before
                found = (change.after, change.before) if seq in unsure else (change.after,)
                steps[key] = Step(root, path, change.after, before, change.mode, found)
            case _:
                pass
    return Plan(at, repaired(then.messages), root, [step for step in steps.values() if _differs(step)])


def _unsure(changes: Sequence[tuple[int, Change]]) -> set[int]:
    """Return the rows of changes to files that may not have been made: their calls failed, or have no result."""
    failed: dict[str, bool] = {}
    unsure: set[int] = set()
    for seq, change in reversed(changes):
        match change:
            case Said(message=Message(role="tool", content=blocks)):
                failed.update({block.call_id: block.is_error for block in blocks if isinstance(block, ResultBlock)})
            case Wrote(call=str(call)) if failed.get(call, True):
                unsure.add(seq)
            case _:
                pass
    return unsure


def _differs(step: Step) -> bool:
    """False if a file is what it was. Of what was not kept nobody knows."""
    return step.now != step.then or step.now == UNKEPT
