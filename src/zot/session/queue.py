"""The session's queue: jobs that wait for their turn, and messages that steer the running one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from zot.agent.approvals import WaitingForApproval
from zot.agent.compaction import undo_compaction
from zot.agent.transcript import Transcript
from zot.errors import AgentError, QueueFull, RunCancelled, UserError
from zot.messages import Counters, ImageBlock, Message
from zot.run_summary import BlockedCall
from zot.session.recovery import WaitingRuns
from zot.session.transcripts import RewindTarget
from zot.store import Answers, MessagesReplaced, Row
from zot.text import has_surrogate

if TYPE_CHECKING:
    from zot.session.rewind import Rewound  # Imported lazily by the worker: few sessions need it.

log = logging.getLogger("zot")

#: The most jobs that may wait while one runs.
MAX_QUEUE = 32

T = TypeVar("T")


class JobObserver:
    """Learns what becomes of a job. Override the methods of interest; an exception in one is logged."""

    def started(self) -> None:
        """The job starts: a run emits its first event right after this; an edit has been made."""

    def dropped(self, why: AgentError) -> None:
        """The job will never run: RunCancelled if it was aborted or withdrawn, else the failure."""

    def parked(self) -> None:
        """The run waits for an approval, and another process will finish it."""


class EditCompletion(JobObserver):
    """Awaits an edit: ``over`` has no result, or the error that dropped it."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def started(self) -> None:
        self.over.set_result(None)

    def dropped(self, why: AgentError) -> None:
        self.over.set_exception(why)


_NO_OBSERVER = JobObserver()


class RepeatedPrompt:
    """A prompt that may have been sent before: its text is decided when its turn comes."""

    def text_after(self, messages: Sequence[Message]) -> str | None:
        """Return the text to add to the conversation; None if the run continues from its end."""
        del messages
        return None

    def stored_answer(self, answers: Answers, newest_run: int) -> bytes | None:
        """Return the answer if the prompt has been answered: it then does not run.

        Called in another thread while the lease is acquired; writes join that transaction.
        """
        del answers, newest_run
        return None


def _new_future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


class _QueuedJob(msgspec.Struct, eq=False, kw_only=True):
    """The part that all jobs share. After the end, ``error`` has the failure; ``aborted`` says if an abort ended it."""

    observer: JobObserver = _NO_OBSERVER
    #: Aborted before its turn came: it ends as soon as it has begun.
    is_unwanted: bool = False
    error: AgentError | None = None
    aborted: bool = False
    #: Whether the run is left to another process.
    is_parked: bool = False
    #: Tool calls of the run that could not run.
    blocked: Sequence[BlockedCall] = ()

    def start(self) -> None:
        """Report that it starts."""
        _notify(self.observer.started)

    def drop(self, why: AgentError) -> None:
        """Report that it will never run."""
        if isinstance(why, RunCancelled):
            self.aborted = True
        else:
            self.error = why
        _notify(self.observer.dropped, why)

    def park(self) -> None:
        """Report that another process will finish it."""
        self.is_parked = True
        _notify(self.observer.parked)

    def forget(self) -> None:
        """Release the observer of a finished job: it may refer to the job."""
        self.observer = _NO_OBSERVER


class PromptJob(_QueuedJob):
    """A prompt. ``prompt_id`` is the caller's name for it, ``by`` that of the caller's token.

    ``channel`` is stored with the message.

    A ``repeated`` prompt is removed from the conversation again if it does not fit the model's window;
    ``stored_answer`` is set instead of a run if it had been answered.
    """

    text: str
    images: Sequence[ImageBlock] = ()
    prompt_id: str = ""
    by: str = ""
    channel: str = ""
    repeated: RepeatedPrompt | None = None
    stored_answer: bytes | None = None


class CompactJob(_QueuedJob):
    """A compaction of the conversation."""


class ResumedJob(_QueuedJob):
    """The rest of a run whose process is gone: it waits for an approval, or continues at once."""

    waiting: WaitingForApproval | None


class ReplaceJob(_QueuedJob):
    """A replacement of the whole conversation by ``messages``."""

    messages: tuple[Message, ...]

    def change(self, transcript: Transcript) -> MessagesReplaced:
        """Return the change to record."""
        return MessagesReplaced(0, len(transcript), self.messages)


class UndoCompactJob(_QueuedJob):
    """The undoing of the newest compaction."""

    def change(self, transcript: Transcript) -> MessagesReplaced:
        """Return the change to record. Raise UserError if there is no compaction to undo."""
        return undo_compaction(transcript)


class RewindJob(_QueuedJob):
    """A rewind to an earlier point; its caller awaits ``result``."""

    target: RewindTarget
    result: asyncio.Future[Rewound] = msgspec.field(default_factory=_new_future)

    def drop(self, why: AgentError) -> None:
        """Reject ``result``: nothing was rewound."""
        self.fail(why)

    def fail(self, problem: Exception) -> None:
        """Reject ``result``, unless its caller has given up."""
        _reject(self.result, problem)


class RecordJob(_QueuedJob):
    """Rows to record outside of any run, or before a waiting run resumes; its caller awaits ``over``.

    ``used`` are tokens to count in a row of their own.
    """

    rows: Sequence[Row] = ()
    used: Counters | None = None
    over: asyncio.Future[None] = msgspec.field(default_factory=_new_future)

    def drop(self, why: AgentError) -> None:
        """Reject ``over``: the rows will never be recorded."""
        _reject(self.over, why)


class RecoverJob(_QueuedJob):
    """Recovery from the death of another process; its caller awaits ``over``.

    Every job recovers the session when it acquires the lease; this one has no other purpose. ``waiting`` says what
    happens to a run that waits for an approval.
    """

    waiting: WaitingRuns
    over: asyncio.Future[None] = msgspec.field(default_factory=_new_future)

    def drop(self, why: AgentError) -> None:
        """Reject ``over``: nothing was recovered."""
        _reject(self.over, why)


EditJob: TypeAlias = ReplaceJob | UndoCompactJob
Job: TypeAlias = PromptJob | CompactJob | ResumedJob | EditJob | RewindJob | RecordJob | RecoverJob


def is_run(job: Job) -> bool:
    """True if the job emits the events of a run, and so ends with `done`."""
    return isinstance(job, PromptJob | CompactJob | ResumedJob)


def _reject(future: asyncio.Future[T], problem: Exception) -> None:
    if not future.done():
        future.set_exception(problem)


def _notify(report: Callable[..., None], *facts: object) -> None:
    """Call an observer. Log its exception: a failing observer must not harm the session or later jobs."""
    try:
        report(*facts)
    except Exception:
        log.exception("the observer of a job raised")


def checked_prompt(text: str, images: Sequence[ImageBlock]) -> tuple[str, tuple[ImageBlock, ...]]:
    """Return a prompt that can be stored, shown and sent. Raise UserError for any other."""
    if not isinstance(text, str) or has_surrogate(text):
        raise UserError("the message must be a str without lone surrogates (halves of a character)")
    if isinstance(images, ImageBlock) or not all(_is_image(image) for image in images):
        raise UserError('images must be a list of ImageBlock(mime_type="image/png", data=<bytes>)')
    if not text.strip() and not images:
        raise UserError("the prompt is empty; give it a message or images")
    return text, tuple(images)


def _is_image(image: object) -> bool:
    return isinstance(image, ImageBlock) and isinstance(image.data, bytes) and isinstance(image.mime_type, str)


class JobQueue:
    """The jobs that wait for their turn, first in first out, and the messages that steer the running one."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._steers: deque[PromptJob] = deque()

    def __len__(self) -> int:
        """Return the number of jobs that wait for their turn."""
        return len(self._jobs)

    @property
    def prompts(self) -> Sequence[tuple[PromptJob, bool]]:
        """The waiting prompts in the order of their turns, each with whether it steers the running one."""
        jobs = [(job, False) for job in self._jobs if isinstance(job, PromptJob)]
        return [*((job, True) for job in self._steers), *jobs]

    @property
    def has_run(self) -> bool:
        """True if one of the waiting jobs is a run."""
        return any(map(is_run, self._jobs))

    def add(self, job: Job) -> None:
        """Enqueue a job. Raise QueueFull."""
        self._check_room()
        self._jobs.append(job)

    def put_back(self, job: Job) -> None:
        """Return a job to the front of the queue."""
        self._jobs.appendleft(job)

    def add_steer(self, job: PromptJob) -> None:
        """Enqueue a message that steers the running job. Raise QueueFull."""
        self._check_room()
        self._steers.append(job)

    def next(self) -> Job | None:
        """Take the next job, if there is one. Messages that came too late to steer go first."""
        self._jobs.extendleft(reversed(self._steers))
        self._steers.clear()
        return self._jobs.popleft() if self._jobs else None

    def next_steer(self) -> PromptJob | None:
        """Take the next steering message, if there is one."""
        return self._steers.popleft() if self._steers else None

    def abort_first_run(self) -> None:
        """Mark the first waiting run as aborted: it ends as soon as it has begun."""
        for job in [job for job in self._jobs if is_run(job)][:1]:
            job.is_unwanted = True

    def remove(self, job: Job) -> bool:
        """Remove a job that waits for its turn, or to steer. False if it does not wait."""
        if isinstance(job, PromptJob) and job in self._steers:
            self._steers.remove(job)
        elif job in self._jobs:
            self._jobs.remove(job)
        else:
            return False
        return True

    def withdraw(self, prompt_id: str) -> None:
        """Drop the waiting prompt or steering message with this id. Raise UserError if there is none."""
        for job in (*self._steers, *self._jobs):
            if prompt_id and isinstance(job, PromptJob) and job.prompt_id == prompt_id:
                self.remove(job)
                job.drop(RunCancelled("withdrawn before it was sent"))
                return
        raise UserError("it cannot be withdrawn: it has been sent or dropped already")

    def drop(self, why: AgentError) -> None:
        """Drop every job and steering message."""
        self.drop_steers(why)
        while self._jobs:
            self._jobs.popleft().drop(why)

    def drop_steers(self, why: AgentError) -> None:
        """Drop the steering messages."""
        while self._steers:
            self._steers.popleft().drop(why)

    def drop_prompts(self, why: AgentError) -> None:
        """Drop every waiting prompt and compaction, but no other job."""
        self.drop_steers(why)
        for job in [job for job in self._jobs if is_run(job)]:
            if self.remove(job):
                job.drop(why)

    def _check_room(self) -> None:
        if len(self._jobs) + len(self._steers) >= MAX_QUEUE:
            raise QueueFull(f"{MAX_QUEUE} prompts are waiting already; wait for one to end")
