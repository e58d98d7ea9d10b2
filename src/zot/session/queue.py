"""The session's queue: jobs that wait for their turn, and messages that steer the running one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, ParamSpec, TypeAlias, TypeVar

import msgspec

from zot.agent.transcript import Transcript
from zot.errors import AgentError, QueueFull, RunCancelled, SystemFailed, Unforeseen, UserError
from zot.messages import ImageBlock, Message
from zot.store import Spliced
from zot.text import has_half

log = logging.getLogger("zot")

T = TypeVar("T")
P = ParamSpec("P")

#: Returns how a conversation is to be changed. Raise UserError if it cannot be.
Edit: TypeAlias = Callable[[Transcript], Spliced]
#: Returns what a prompt says to a conversation; None if it has been said.
Words: TypeAlias = Callable[[Sequence[Message]], str | None]


#: Hears that what was asked begins, or why it never will: RunCancelled if somebody wanted that.
Started: TypeAlias = Callable[[], None]
Dropped: TypeAlias = Callable[[AgentError], None]


def begun() -> None:
    """Nobody wants to know."""


def unwanted(why: AgentError) -> None:
    """Nobody wants to know."""


class Wish(msgspec.Struct, frozen=True):
    """Where a rewind goes: to the first ``messages``, or to the row ``at``. Without ``files``, these stay."""

    messages: int | None = None
    at: int | None = None
    files: bool = True


class Errand(Generic[T]):
    """Work that a session lets nothing else come between; whoever wants it waits for what is ``over``."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self.over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.job = Job(None, (), started=lambda: None, dropped=self.fail, errand=self.run)

    async def run(self) -> None:
        """Do it."""
        try:
            result = await self._work()
        except Exception as problem:  # whoever waits hears it
            self.fail(problem)
        else:
            if not self.over.done():
                self.over.set_result(result)

    def drop(self, why: AgentError) -> None:
        """It will never be done."""
        self.over.cancel(str(why))

    def fail(self, problem: Exception) -> None:
        """It cannot be done."""
        if not self.over.done():
            self.over.set_exception(problem)


class Job:
    """A prompt or compact: waiting, running or over. Whoever asked hears when it starts, or that it never will.

    One that has started and waits for a person may be ``parked``: another process goes on with it.

    One with an ``edit`` runs nothing: it changes the conversation, and starts when that is done. Nor does one with an
    ``errand``, which is done instead; if it ``passes``, it is as good as done when a run goes on instead of it. When it
    is over, ``error`` says why it failed and ``aborted`` that somebody ended it.
    What a prompt has to say is decided by its ``words`` when its turn comes: nothing, which is None, if it stands in
    the transcript and is gone on with. One that ``yields`` is taken back if it does not fit the model's window.
    ``prompt_id`` is what whoever asked calls it.
    """

    def __init__(
        self,
        text: str | None,
        images: Sequence[ImageBlock],
        *,
        started: Callable[[], None],
        dropped: Dropped,
        parked: Started = begun,
        edit: Edit | None = None,
        errand: Callable[[], Awaitable[None]] | None = None,
        words: Words | None = None,
        channel: str = "",
        prompt_id: str = "",
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
        self.words: Words = words or (lambda messages: text)
        self.yields = yields
        self.passes = passes
        #: Whether it was aborted before its turn came: then it ends as soon as it has begun.
        self.is_unwanted = False
        self.error: AgentError | None = None
        self.aborted = False

    @staticmethod
    def going_on() -> Job:
        """Return a prompt that another process was asked: nobody here waits for it to begin."""
        return Job("", (), started=lambda: None, dropped=unwanted)

    @property
    def is_compact(self) -> bool:
        return self.text is None and not self.is_quiet

    @property
    def is_quiet(self) -> bool:
        """True if it runs nothing, so that there is nothing to hear of it."""
        return self.edit is not None or self.errand is not None

    def forget(self) -> None:
        """It is over, and nobody hears more of it: whoever asked may hold it, and is not held by it."""
        self._started, self._dropped = begun, unwanted

    def drop(self, why: AgentError) -> None:
        """It will never run: RunCancelled if somebody wanted that, else what keeps it from running."""
        if isinstance(why, RunCancelled):
            self.aborted = True
        else:
            self.error = why
        _tell(self._dropped, why)

    def start(self) -> None:
        """Its turn has come."""
        _tell(self._started)

    def park(self) -> None:
        """Another process goes on with it."""
        _tell(self._parked)


def _tell(hears: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Tell whoever asked. That they cannot hear it costs neither the session nor those who come after them."""
    try:
        hears(*args, **kwargs)
    except Exception:
        log.exception("what became of a job could not be told to whoever asked for it")


def explained(problem: BaseException) -> AgentError:
    """Return the error the user may see. What we did not foresee is logged here and hidden there."""
    if isinstance(problem, AgentError):
        return problem
    if isinstance(problem, OSError):
        log.info("a run failed", exc_info=problem)
        return SystemFailed.of(problem)
    log.error("unexpected error in a run", exc_info=problem)
    return Unforeseen(f"internal error ({type(problem).__name__}); the log has the details")


def checked_prompt(text: str, images: Sequence[ImageBlock]) -> tuple[str, tuple[ImageBlock, ...]]:
    """Return a prompt that can be stored, shown and sent. Raise UserError for one that cannot."""
    if not isinstance(text, str) or has_half(text):
        raise UserError("the message must be a str without lone surrogates (halves of a character)")
    if isinstance(images, ImageBlock) or not all(_is_image(image) for image in images):
        raise UserError('images must be a list of ImageBlock(mime_type="image/png", data=<bytes>)')
    if not text.strip() and not images:
        raise UserError("the prompt is empty; give it a message or images")
    return text, tuple(images)


def _is_image(image: object) -> bool:
    return isinstance(image, ImageBlock) and isinstance(image.data, bytes) and isinstance(image.mime_type, str)


#: How many may wait behind the one that runs.
MAX_QUEUE = 32


class Waiting:
    """The jobs that wait for their turn, first come first served, and those that are to steer the one that runs."""

    def __init__(self) -> None:
        self._turns: deque[Job] = deque()
        self._steers: deque[Job] = deque()

    def __len__(self) -> int:
        """Return how many wait for their turn."""
        return len(self._turns)

    @property
    def is_quiet(self) -> bool:
        """True if none of those that wait for their turn runs anything."""
        return all(job.is_quiet for job in self._turns)

    def add(self, job: Job) -> None:
        """Let a job wait for its turn. Raise QueueFull."""
        self._check_room()
        self._turns.append(job)

    def put_back(self, job: Job) -> None:
        """Let a job wait whose turn had come, before the others."""
        self._turns.appendleft(job)

    def add_steer(self, job: Job) -> None:
        """Let a job wait to steer the one that runs. Raise QueueFull."""
        self._check_room()
        self._steers.append(job)

    def next(self) -> Job | None:
        """Take the job whose turn it is, if there is one. What came too late to steer goes before the others."""
        self._turns.extendleft(reversed(self._steers))
        self._steers.clear()
        return self._turns.popleft() if self._turns else None

    def next_steer(self) -> Job | None:
        """Take the next job that is to steer, if there is one."""
        return self._steers.popleft() if self._steers else None

    def forestall(self) -> None:
        """Let the first job that runs something end as soon as it has begun."""
        for job in [job for job in self._turns if not job.is_quiet][:1]:
            job.is_unwanted = True

    def remove(self, job: Job) -> bool:
        """Take out a job that waits for its turn. False if it does not."""
        if job not in self._turns:
            return False
        self._turns.remove(job)
        return True

    def take_out(self, prompt_id: str) -> Job:
        """Take out the job of this name. Raise UserError if there is none."""
        for jobs in (self._steers, self._turns):
            for job in jobs:
                if prompt_id and job.prompt_id == prompt_id:
                    jobs.remove(job)
                    return job
        raise UserError("it cannot be taken back: it has been said already, or nobody has it any more")

    def drop(self, why: AgentError) -> None:
        """Let none of them ever run."""
        self.drop_steers(why)
        while self._turns:
            self._turns.popleft().drop(why)

    def drop_steers(self, why: AgentError) -> None:
        """Let none of them steer what runs."""
        while self._steers:
            self._steers.popleft().drop(why)

    def drop_prompts(self, why: AgentError) -> None:
        """Let no prompt and no compact ever run. What is only recorded is still done."""
        self.drop_steers(why)
        for job in [job for job in self._turns if not job.is_quiet]:
            if self.remove(job):
                job.drop(why)

    def _check_room(self) -> None:
        if len(self._turns) + len(self._steers) >= MAX_QUEUE:
            raise QueueFull(f"{MAX_QUEUE} prompts are waiting already; wait for one to end")
