"""What a session was asked to do and has not begun: each job has its turn or is dropped, and who asked hears it."""

from __future__ import annotations

from collections import deque

from zot.errors import AgentError, QueueFull, UserError
from zot.session.queue import Job

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
