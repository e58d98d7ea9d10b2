"""The session's queue: jobs that wait for their turn, and messages that steer the running one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from zot.agent.transcript import Transcript
from zot.errors import AgentError, InternalError, QueueFull, RunCancelled, SystemFailed, UserError
from zot.messages import ImageBlock, Message
from zot.store import MessagesReplaced
from zot.text import has_surrogate

log = logging.getLogger("zot")

#: The most jobs that may wait while one runs.
MAX_QUEUE = 32

T = TypeVar("T")
P = ParamSpec("P")

#: Returns a change of the conversation. Raises UserError if there is none to make.
Edit: TypeAlias = Callable[[Transcript], MessagesReplaced]
#: Returns the text to add to a conversation; None if the prompt is in it already.
PromptText: TypeAlias = Callable[[Sequence[Message]], str | None]
#: Called when a job starts, or with the reason why it never will: RunCancelled if it was aborted or withdrawn.
Started: TypeAlias = Callable[[], None]
Dropped: TypeAlias = Callable[[AgentError], None]


def ignore_start() -> None:
    """Do nothing: the default observer of a start."""


def ignore_drop(why: AgentError) -> None:
    """Do nothing: the default observer of a drop."""


class RewindTarget(msgspec.Struct, frozen=True):
    """The target of a rewind: the first ``messages``, or the row ``at``. Without ``files``, files stay unchanged."""

    messages: int | None = None
    at: int | None = None
    files: bool = True


class ExclusiveTask(Generic[T]):
    """Exclusive work in a session's queue; its caller awaits the future ``over``."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self.over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.job = Job(None, (), started=lambda: None, dropped=self.fail, errand=self.run)

    async def run(self) -> None:
        """Do the work and resolve ``over``."""
        try:
            result = await self._work()
        except Exception as problem:  # Raised where `over` is awaited.
            self.fail(problem)
        else:
            if not self.over.done():
                self.over.set_result(result)

    def drop(self, why: AgentError) -> None:
        """Cancel ``over``: the work will never run."""
        self.over.cancel(str(why))

    def fail(self, problem: Exception) -> None:
        """Reject ``over`` with ``problem``."""
        if not self.over.done():
            self.over.set_exception(problem)


class Job:
    """A queued prompt, compaction, edit or errand, and the callbacks of its caller.

    ``edit`` changes the conversation and starts nothing else; the job counts as started once that is done. ``errand``
    is awaited instead of a run; with ``passes`` it is dropped as done when a parked run resumes instead. ``words``
    returns a prompt's text when its turn comes, or None if the transcript has it already and the run only continues. A
    job that ``yields`` is removed from the conversation again if it does not fit the model's window. ``parked`` is
    called when another process will finish the job, because it waits for an approval. ``prompt_id`` is the caller's
    name for it, ``by`` that of the caller's token.

    After the end, ``error`` has the failure and ``aborted`` tells that an abort ended it.
    """

    def __init__(
        self,
        text: str | None,
        images: Sequence[ImageBlock],
        *,
        started: Callable[[], None],
        dropped: Dropped,
        parked: Started = ignore_start,
        edit: Edit | None = None,
        errand: Callable[[], Awaitable[None]] | None = None,
        words: PromptText | None = None,
        channel: str = "",
        prompt_id: str = "",
        by: str = "",
        yields: bool = False,
        passes: bool = False,
    ) -> None:
        self.text = text
        self.edit = edit
        self.errand = errand
        self.images = images
        self._started = started
        self._dropped = dropped
        self._parked = parked
        self.channel = channel
        self.prompt_id = prompt_id
        self.by = by
        self.words: PromptText = words or (lambda messages: text)
        self.yields = yields
        self.passes = passes
        #: Aborted before its turn came: it ends as soon as it has begun.
        self.is_unwanted = False
        self.error: AgentError | None = None
        self.aborted = False

    @staticmethod
    def going_on() -> Job:
        """Return the job of a run that another process began: no caller here waits for its start."""
        return Job("", (), started=lambda: None, dropped=ignore_drop)

    @property
    def is_compact(self) -> bool:
        return self.text is None and not self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """True if it is no run, and so emits no events of a run."""
        return self.edit is not None or self.errand is not None

    def forget(self) -> None:
        """Drop the callbacks of a finished job: they may refer to a caller that refers to the job."""
        self._started, self._dropped = ignore_start, ignore_drop

    def drop(self, why: AgentError) -> None:
        """Report that it will never run: RunCancelled for an abort or a withdrawal, else the failure."""
        if isinstance(why, RunCancelled):
            self.aborted = True
        else:
            self.error = why
        _notify(self._dropped, why)

    def start(self) -> None:
        """Report that it starts."""
        _notify(self._started)

    def park(self) -> None:
        """Report that another process will finish it."""
        _notify(self._parked)


def _notify(observer: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call an observer. Log its exception: a failing observer must not harm the session or later jobs."""
    try:
        observer(*args, **kwargs)
    except Exception:
        log.exception("what became of a job could not be told to whoever asked for it")


def explained(problem: BaseException) -> AgentError:
    """Return the error to show. Unexpected exceptions are logged in full and shown without details."""
    if isinstance(problem, AgentError):
        return problem
    if isinstance(problem, OSError):
        log.info("a run failed", exc_info=problem)
        return SystemFailed.of(problem)
    log.error("unexpected error in a run", exc_info=problem)
    return InternalError(f"internal error ({type(problem).__name__}); the log has the details")


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
        self._steers: deque[Job] = deque()

    def __len__(self) -> int:
        """Return the number of jobs that wait for their turn."""
        return len(self._jobs)

    @property
    def is_quiet(self) -> bool:
        """True if none of the waiting jobs is a run."""
        return all(job.is_quiet for job in self._jobs)

    def add(self, job: Job) -> None:
        """Enqueue a job. Raise QueueFull."""
        self._check_room()
        self._jobs.append(job)

    def put_back(self, job: Job) -> None:
        """Return a job to the front of the queue."""
        self._jobs.appendleft(job)

    def add_steer(self, job: Job) -> None:
        """Enqueue a message that steers the running job. Raise QueueFull."""
        self._check_room()
        self._steers.append(job)

    def next(self) -> Job | None:
        """Take the next job, if there is one. Messages that came too late to steer go first."""
        self._jobs.extendleft(reversed(self._steers))
        self._steers.clear()
        return self._jobs.popleft() if self._jobs else None

    def next_steer(self) -> Job | None:
        """Take the next steering message, if there is one."""
        return self._steers.popleft() if self._steers else None

    def forestall(self) -> None:
        """Mark the first waiting run as aborted: it ends as soon as it has begun."""
        for job in [job for job in self._jobs if not job.is_quiet][:1]:
            job.is_unwanted = True

    def remove(self, job: Job) -> bool:
        """Remove a job that waits for its turn. False if it does not wait."""
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        return True

    def take_out(self, prompt_id: str) -> Job:
        """Remove and return the job with this id. Raise UserError if there is none."""
        for jobs in (self._steers, self._jobs):
            for job in jobs:
                if prompt_id and job.prompt_id == prompt_id:
                    jobs.remove(job)
                    return job
        raise UserError("it cannot be taken back: it has been said already, or nobody has it any more")

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
        """Drop every waiting prompt and compaction, but no edit or errand."""
        self.drop_steers(why)
        for job in [job for job in self._jobs if not job.is_quiet]:
            if self.remove(job):
                job.drop(why)

    def _check_room(self) -> None:
        if len(self._jobs) + len(self._steers) >= MAX_QUEUE:
            raise QueueFull(f"{MAX_QUEUE} prompts are waiting already; wait for one to end")
