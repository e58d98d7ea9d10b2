"""The daemon's dialect, about sessions: what its methods take and answer. Does no I/O."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from zot.messages import Counters
from zot.wire.spelling import Spelled

Absent: TypeAlias = msgspec.UnsetType
ABSENT = msgspec.UNSET
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
SessionState: TypeAlias = Literal["idle", "running", "waiting_approval"]
Decision: TypeAlias = Literal["allow_once", "allow_always", "reject"]


class Used(Spelled, frozen=True):
    """Tokens and money. ``cost_usd`` is null where no price is known."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cost_usd: float | None
    reasoning: int = 0

    @staticmethod
    def of(counters: Counters) -> Used:
        """Return counters as this dialect says them."""
        used = counters
        return Used(used.input, used.output, used.cache_read, used.cache_write, used.cost, used.reasoning)

    @property
    def counters(self) -> Counters:
        """The same as counters."""
        cost, known = self.cost_usd or 0.0, self.cost_usd is not None
        return Counters(self.input, self.output, self.cache_read, self.cache_write, cost, known, self.reasoning)


class OfSession(Spelled, frozen=True):
    """What takes nothing but the session."""

    session_id: str


class New(Spelled, frozen=True):
    """Create a session, or resume the one of this id."""

    agent_alias: str
    cwd: str | None = None
    session_id: str | None = None


class Opened(Spelled, frozen=True, kw_only=True):
    session_id: str
    agent_alias: str
    message_count: int
    workspace_dir: str
    last_seq: int
    epoch: int


class Attachment(Spelled, frozen=True):
    """A file by its ``path``, over the local socket only, or by its content, which wins."""

    path: str | None = None
    data_b64: bytes | None = None
    filename: str | None = None
    mime_type: str | None = None
    source: str | None = None


#: What a client calls something that it says.
PromptId: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]


class Steer(Spelled, frozen=True):
    session_id: str
    prompt: str = ""
    attachments: tuple[Attachment, ...] = ()
    prompt_id: PromptId | None = None


class Prompt(Steer, frozen=True):
    """``prompt_id`` is what the client calls it: what begins and ends its turn says it, too."""


class TakeBack(Spelled, frozen=True):
    session_id: str
    prompt_id: PromptId


class Prompted(Spelled, frozen=True):
    """A turn is over. ``content`` is what the model said last; ``notice`` why an extension blocked that."""

    session_id: str
    stop_reason: Literal["end_turn", "length", "cancelled"]
    content: str
    usage: Used
    notice: str | Absent = ABSENT


class FailedTurn(Spelled, frozen=True):
    """The data of the error that answers a prompt whose turn failed. ``content`` is what had been said."""

    content: str
    usage: Used
    stop_reason: Literal["error"] = "error"


class Steered(Spelled, frozen=True):
    session_id: str
    accepted: bool = True


class TakenBack(Spelled, frozen=True):
    session_id: str
    prompt_id: str
    taken_back: bool = True


class Cancelled(Spelled, frozen=True):
    session_id: str
    cancelled: bool = True


class Closed(Spelled, frozen=True):
    session_id: str
    closed: bool = True


class Deleted(Spelled, frozen=True):
    session_id: str
    deleted: bool = True


class Killed(Spelled, frozen=True):
    session_id: str
    killed: bool = True


class Detached(Spelled, frozen=True):
    session_id: str
    detached: bool = True


class Cleared(Spelled, frozen=True):
    session_id: str
    cleared: bool = True


class Compacted(Spelled, frozen=True):
    session_id: str
    summary: str
    usage: Used


class Approve(Spelled, frozen=True):
    session_id: str
    request_id: str
    decision: Literal["allow_once", "allow_always", "reject", "reject_once"]

    @property
    def verdict(self) -> Decision:
        """The decision, by the one name that it has with us."""
        return "reject" if self.decision == "reject_once" else self.decision


class Approved(Spelled, frozen=True):
    session_id: str
    request_id: str
    acknowledged: bool = True


class PendingApproval(Spelled, frozen=True):
    """A call that a person must decide about. ``timeout_secs`` is what is left of the time until its ``deadline``."""

    request_id: str
    tool_name: str
    arguments_summary: str
    timeout_secs: int
    deadline: str


class List(Spelled, frozen=True):
    query: str | None = None
    limit: Count | None = None
    agent_alias: str | None = None
    cwd: str | None = None


class SessionEntry(Spelled, frozen=True, kw_only=True):
    """A session in a list. ``name`` is its title, by the name that released clients read."""

    session_id: str
    session_key: str
    agent_alias: str
    cwd: str
    title: str
    name: str
    created_at: str
    last_activity: str
    message_count: int
    state: SessionState
    last_seq: int
    #: The session that it is a copy of.
    parent_id: str | Absent = ABSENT


class Sessions(Spelled, frozen=True):
    sessions: tuple[SessionEntry, ...]


class State(Spelled, frozen=True, kw_only=True):
    """``queued`` prompts wait for the one that runs. The window is 0 if nobody knows it.

    With ``locked``, the tools are kept inside the directory.
    """

    session_id: str
    state: SessionState
    agent_alias: str
    provider: str
    model: str
    cwd: str
    message_count: int
    queued: int
    usage: Used
    last_seq: int
    epoch: int
    context_tokens: int = 0
    context_window: int = 0
    pending_approval: PendingApproval | Absent = ABSENT
    locked: bool = False


class Lock(Spelled, frozen=True):
    """Keep the tools inside the directory of the session, or let them out."""

    session_id: str
    locked: bool


class ModelEntry(Spelled, frozen=True):
    provider: str
    id: str
    name: str
    context_window: int


class ListModels(Spelled, frozen=True):
    """With ``all``, also those of other providers that can be used, over the local socket only."""

    session_id: str
    all: bool = False


class Models(Spelled, frozen=True):
    session_id: str
    models: tuple[ModelEntry, ...]


class AllowedEntry(Spelled, frozen=True):
    """A call that a person allowed for good: a tool, and the command or path; "" if it may be about anything."""

    tool: str
    subject: str


class AllowedCalls(Spelled, frozen=True):
    session_id: str
    allowed: tuple[AllowedEntry, ...]


class Forget(Spelled, frozen=True):
    session_id: str
    tool: str
    subject: str = ""


class Forgotten(Spelled, frozen=True):
    session_id: str
    forgotten: bool = True


class Attach(Spelled, frozen=True):
    """Follow a session: first what happened ``after`` that number, else only what happens from now on."""

    session_id: str
    after: Count | None = None


class Attached(Spelled, frozen=True, kw_only=True):
    """``asked_seq`` is the number of the question that waits: what was configured since may stand behind it."""

    session_id: str
    last_seq: int
    epoch: int
    state: SessionState
    pending_approval: PendingApproval | Absent = ABSENT
    asked_seq: int | Absent = ABSENT
    last_event_seq: int | Absent = ABSENT


class Fork(Spelled, frozen=True):
    """Copy the first ``messages`` of a session, or all, into a new one."""

    session_id: str
    new_session_id: str | None = None
    messages: Count | None = None


class Overrides(Spelled, frozen=True):
    """Another ``model_provider`` needs a ``model``, and is for whoever is on this machine."""

    model: str | None = None
    reasoning: str | None = None
    model_provider: str | None = None


class Configure(Spelled, frozen=True):
    session_id: str
    overrides: Overrides = Overrides()


class Configured(Spelled, frozen=True):
    """``overrides`` are all that hold by now."""

    session_id: str
    overrides: Overrides


class Rename(Spelled, frozen=True):
    session_id: str
    title: str


class Renamed(Spelled, frozen=True):
    session_id: str
    title: str


class GitBranch(Spelled, frozen=True):
    """Both are missing outside a repository."""

    session_id: str
    branch: str | Absent = ABSENT
    hash: str | Absent = ABSENT
