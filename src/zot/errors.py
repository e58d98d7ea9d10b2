"""Every exception zot raises, by the party that can act on it. Details are attributes, not only text."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging  # Too large for the start of every command.

#: Said by the command line at start, and by the SDK when it is imported.
NOT_ON_WINDOWS = "zot does not run on Windows; it needs Linux or macOS, and also runs in WSL"


#: Raised for a user's file that is not there. A directory that may not be searched counts as empty: it belongs to
#: another user. After any other error the file may exist, and must not be ignored.
ABSENT = (FileNotFoundError, NotADirectoryError, PermissionError)


class AgentError(Exception):
    """Base class of the errors zot raises on purpose. Its text can be shown to a user."""


class UserError(AgentError):
    """The caller asked for something impossible; a different request may succeed."""


class ConfigError(UserError):
    """A flag, file or environment variable is invalid."""


class MalformedFile(ConfigError):
    """A user's file, or one line of it, cannot be decoded. ``place`` names it, ``reason`` says why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


class InvalidConfigFile(ConfigError):
    """config.toml is invalid. ``path`` is the file, ``problems`` has one entry for each wrong field. Not in the SDK."""

    def __init__(self, message: str, *, path: str, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.path = path
        self.problems = problems


class NoSuchAgent(ConfigError):
    """config.toml describes no such agent. The SDK does not read that file."""


class DirectoryGone(ConfigError):
    """The working directory of a session, ``cwd``, no longer exists."""

    def __init__(self, cwd: str, remedy: str) -> None:
        super().__init__(f"{cwd}, where this session works, is gone; {remedy}")
        self.cwd = cwd


class UsageError(ConfigError):
    """An invalid command line, whatever the configuration: exit code 2. Not in the SDK."""


class ExtraMissing(ConfigError):
    """A feature needs the packages of ``extra``, which are not installed. The text ends with the command to install
    them, by the tool that installed zot."""

    def __init__(self, message: str, extra: str) -> None:
        super().__init__(f"{message}; in a clone of zot, run: {_installer()} '.[{extra}]'")
        self.extra = extra


def _installer() -> str:
    """Return the command that installs zot again with an extra. pipx and uv each mark their environments."""
    for mark, command in (("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")):
        if os.path.exists(os.path.join(sys.prefix, mark)):
            return f"{command} install --force"
    return "pip install"


class KeyMissing(ConfigError):
    """A model service needs a key, and none is configured."""


class RuntimeBusy(UserError):
    """A prompt or compact is running on this Runtime; it runs one at a time."""


class RuntimeClosed(UserError):
    """The Runtime has been closed."""


class DaemonStopping(RuntimeClosed):
    """The daemon is shutting down. The request is safe to repeat: it has not started, or has an idempotency key.

    ``ahead`` is the number of requests queued before it on the same session.
    """

    def __init__(self, message: str, *, ahead: int = 0) -> None:
        super().__init__(message)
        self.ahead = ahead


class QueueFull(UserError):
    """A session's prompt queue is full: 32 prompts wait."""


class SessionBusy(UserError):
    """Another process, or another part of this one, is running this session.

    ``pid``, ``host`` and ``since`` describe the other run as far as known: 0 and "" otherwise.
    """

    def __init__(self, message: str, *, pid: int = 0, host: str = "", since: str = "") -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host
        self.since = since


class DaemonRunning(UserError):
    """Another daemon owns the endpoint. ``pid`` is its process, 0 if unknown. In `zot daemon` only."""

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class NoSuchCommand(UserError):
    """No running extension has the command. ``absent`` says which extensions do not run, and why; "" if all run."""

    def __init__(self, message: str, *, absent: str = "") -> None:
        super().__init__(f"{message}; {absent}" if absent else message)
        self.absent = absent


class NoSuchSession(UserError):
    """The journal has no session with this id."""


class TooManySessions(UserError):
    """The limit of open sessions is reached. In `zot daemon` only."""


class PromptTooLong(UserError):
    """A prompt alone does not fit the model's window. In `zot host` only.

    ``needed`` is its estimated size in tokens, ``limit`` the most it may have.
    """

    def __init__(self, message: str, *, needed: int, limit: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit


class EmptySummary(UserError):
    """The model returned an empty summary, so the conversation is unchanged."""


class RewindRefused(UserError):
    """Files cannot be restored, and nothing was changed. ``files`` names them."""

    def __init__(self, message: str, *, files: tuple[str, ...]) -> None:
        super().__init__(message)
        self.files = files


class ConnectionLost(AgentError):
    """The connection to the daemon is lost.

    ``was_sent``: the request had been sent, so the daemon may or may not have carried it out.
    """

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class PromptLost(ConnectionLost):
    """The connection broke, and the session does not show that the daemon received the prompt."""

    def __init__(self, message: str) -> None:
        super().__init__(message, was_sent=True)


class EpochChanged(AgentError):
    """A session's history differs from the client's copy: it was deleted and recreated, or rows are lost.

    ``epoch`` is the new one; subscribe from 0.
    """

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class InternalError(AgentError):
    """An unexpected failure inside zot. The log has the traceback."""


class SystemFailed(AgentError):
    """The operating system refused a resource zot needs: a file, memory, a descriptor."""

    @classmethod
    def of(cls, problem: OSError) -> SystemFailed:
        """Return an error for the user that names the file, the reason and a remedy."""
        reason = plain_reason(problem) or type(problem).__name__
        return cls(f"{reason}; check its disk, its permissions and the limits of the process, then try again")


def plain_reason(problem: Exception) -> str:
    """Return why a system call failed, as "FILE: reason", without the number of the error; other errors as they are."""
    if not isinstance(problem, OSError) or not problem.strerror:
        return str(problem)
    return problem.strerror if problem.filename is None else f"{os.fsdecode(problem.filename)}: {problem.strerror}"


def explained(problem: BaseException, log: logging.Logger, doing: str) -> AgentError:
    """Return the error to show for an exception while ``doing`` something.

    Unexpected exceptions are logged in full and shown without details.
    """
    if isinstance(problem, AgentError):
        return problem
    if isinstance(problem, OSError):
        log.info("%s failed", doing, exc_info=problem)
        return SystemFailed.of(problem)
    log.error("unexpected error in %s", doing, exc_info=problem)
    return InternalError(f"internal error ({type(problem).__name__}); the log has the details")


class NoAnswer(AgentError):
    """A run ended without a usable answer: cut off at the length limit, or blank. In `zot host` and `zot -p` only."""


class RunCancelled(AgentError):
    """A run was cancelled before it was done."""


class StepsExhausted(AgentError):
    """A run reached its limit of model calls, ``max_steps``, before it was done."""


class BudgetExhausted(AgentError):
    """A session's budget is used up, so the model was not called again.

    ``setting`` names the budget; ``used`` and ``allowed`` are in US dollars or tokens.
    """

    def __init__(self, message: str, *, setting: str, used: float, allowed: float) -> None:
        super().__init__(message)
        self.setting = setting
        self.used = used
        self.allowed = allowed


class ContextExhausted(AgentError):
    """The conversation does not fit the model's window, and compaction can hardly shorten it.

    ``needed`` is the estimated size of the next request in tokens, ``window`` the model's limit.
    """

    def __init__(self, message: str, *, needed: int, window: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.window = window


class AnswerRejected(AgentError):
    """The model's answer failed the output schema after all retries."""


class TurnBlocked(AgentError):
    """An extension blocked the model call, so the run ended."""


class ProtocolError(AgentError):
    """A peer sent an invalid frame. It costs that frame, not the connection. Programs do not see this exception.

    ``frame_id`` is the frame's raw id, b"" if it had none; ``frame_type`` the type it claimed.
    """

    def __init__(self, message: str, *, frame_id: bytes = b"", frame_type: str = "") -> None:
        super().__init__(message)
        self.frame_id = frame_id
        self.frame_type = frame_type


class ToolFailed(AgentError):
    """A tool failed; the model receives this text as the result. Programs do not see this exception."""


class StoreFailed(AgentError):
    """Events could not be recorded, so the run ended."""


class UnmarkedRows(StoreFailed):
    """Rows are safe, but the lock file does not record that: their loss would go unnoticed."""


class LeaseLost(StoreFailed):
    """Another worker has taken the session over: this one must stop, and writes nothing more."""


class JournalDamaged(StoreFailed):
    """Recorded rows cannot be read any more."""


class ProviderError(AgentError):
    """The model service refused or failed.

    ``provider`` is its name, ``status`` the HTTP status (0 without one), ``code`` the vendor's error code,
    ``request_id`` the id for the vendor's support, ``retry_after_s`` the delay the service asked for.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int = 0,
        code: str = "",
        request_id: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class AuthFailed(ProviderError):
    """The key is missing, wrong or not allowed to do this."""


class NoCredit(AuthFailed):
    """The account has no credit, or has reached its spending limit; paying helps, waiting does not."""


class RateLimited(ProviderError):
    """Too many requests or tokens; waiting helps."""


class Overloaded(ProviderError):
    """The service is up but cannot take the request now; waiting helps."""


class ContextTooLong(ProviderError):
    """The conversation does not fit the model's window, and automatic compaction is off; `compact` helps."""


class BadRequest(ProviderError):
    """The service rejected the request as invalid."""


class NotFound(ProviderError):
    """No such model or address."""


class ContentRefused(ProviderError):
    """The service refuses this content."""


class ServiceFailed(ProviderError):
    """The service failed internally."""


class ConnectionFailed(ProviderError):
    """No connection: refused, reset before a response, DNS, TLS, proxy, or connect timeout."""


class ConnectionImpossible(ConnectionFailed):
    """No connection, and retrying does not help: an address, a proxy setting or a certificate is wrong."""


class Stalled(ProviderError):
    """The service sent nothing until the deadline passed."""


class StreamBroken(ProviderError):
    """The response ended early or violates the API's format."""
