"""Every exception we raise, split by who can act on it. Facts are attributes, never only words."""

from __future__ import annotations


class AgentError(Exception):
    """The root of what we raise on purpose. Its text is fit to be shown to a person."""


class UserError(AgentError):
    """The caller asked for something that cannot be done; asking differently helps."""


class ConfigError(UserError):
    """A flag, file or environment variable does not make sense."""


class MalformedFile(ConfigError):
    """A user's file, or one line of it, cannot be decoded. ``place`` says which one, ``reason`` why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


class InvalidConfigFile(ConfigError):
    """A configuration file makes no sense. ``problems`` say one by one which field of which table is wrong, and how."""

    def __init__(self, message: str, *, path: str, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.path = path
        self.problems = problems


class NoSuchAgent(ConfigError):
    """The configuration names no such agent."""


class DirectoryGone(ConfigError):
    """The directory of a session, ``cwd``, is not there any more."""

    def __init__(self, cwd: str, remedy: str) -> None:
        super().__init__(f"{cwd}, where this session works, is gone; {remedy}")
        self.cwd = cwd


class UsageError(ConfigError):
    """A command line that no configuration and no file could make right: exit code 2."""


class KeyMissing(ConfigError):
    """There is no key for a model service that needs one."""


class RuntimeBusy(UserError):
    """A prompt or compact is running on this Runtime, and it takes one at a time."""


class RuntimeClosed(UserError):
    """The Runtime has been closed."""


class Stopping(RuntimeClosed):
    """The daemon is about to end: what was asked can be asked of the next one, for it has not been begun, or has a key.

    So many others who wait for the same session were before it: ``ahead``.
    """

    def __init__(self, message: str, *, ahead: int = 0) -> None:
        super().__init__(message)
        self.ahead = ahead


class QueueFull(UserError):
    """Too many prompts are waiting on one session."""


class SessionBusy(UserError):
    """Another process, or another part of this one, is running this session.

    ``pid``, ``host`` and ``since`` say who, as far as is known: 0 and "" where it is not.
    """

    def __init__(self, message: str, *, pid: int = 0, host: str = "", since: str = "") -> None:
        super().__init__(message)
        self.pid = pid
        self.host = host
        self.since = since


class DaemonRunning(UserError):
    """An endpoint belongs to another daemon. ``pid`` is its process, 0 if that is not known."""

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class AlreadyAnswered(UserError):
    """A request needs no run: its answer is on record. ``answer`` is that answer, as it was kept."""

    def __init__(self, message: str, *, answer: bytes) -> None:
        super().__init__(message)
        self.answer = answer


class NoSuchCommand(UserError):
    """No running extension has the command. ``absent`` says which extensions do not run, and why; "" if all run."""

    def __init__(self, message: str, *, absent: str = "") -> None:
        super().__init__(f"{message}; {absent}" if absent else message)
        self.absent = absent


class NoSuchSession(UserError):
    """The journal has no session of that id."""


class TooManySessions(UserError):
    """So many sessions are in use that no other can be opened."""


class PromptTooLong(UserError):
    """A prompt does not fit the model's window, even if nothing else is said.

    ``needed`` is how many tokens it would take, as far as we can tell, and ``limit`` how many it may.
    """

    def __init__(self, message: str, *, needed: int, limit: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.limit = limit


class EmptySummary(UserError):
    """The model was asked to summarise a conversation and said nothing, so it stayed as it was."""


class RewindRefused(UserError):
    """Files cannot be put back to what they were. ``files`` names them."""

    def __init__(self, message: str, *, files: tuple[str, ...]) -> None:
        super().__init__(message)
        self.files = files


class ConnectionLost(AgentError):
    """There is no connection to the daemon any more.

    ``was_sent`` says that what was asked had left by then: whether it was done, nobody knows.
    """

    def __init__(self, message: str, *, was_sent: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class PromptLost(ConnectionLost):
    """A connection broke, and nothing in the session shows that the daemon has got the prompt that was sent on it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, was_sent=True)


class EpochChanged(AgentError):
    """A session is not what was shown: it was deleted and made anew, or a part of it is lost.

    ``epoch`` is the new one: what there is can be heard from 0.
    """

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class Unforeseen(AgentError):
    """Something of ours failed in a way that nobody thought of. The log has it."""


class SystemFailed(AgentError):
    """The system refused something that we need: one of our files, memory, a descriptor."""

    @classmethod
    def of(cls, problem: OSError) -> SystemFailed:
        """Return what the user may see of an error of the system: which file, what happened, and what to do."""
        where = "" if problem.filename is None else f"{problem.filename}: "
        reason = problem.strerror or type(problem).__name__
        return cls(f"{where}{reason}; look at its disk, its permissions and the limits of the process, then try again")


class NoAnswer(AgentError):
    """A prompt was done, but what it came to is no answer."""


class RunCancelled(AgentError):
    """A prompt was ended before it was done, because somebody wanted it to."""


class StepsExhausted(AgentError):
    """A prompt made as many model calls as it may and was still not done."""


class BudgetExhausted(AgentError):
    """A session has used what it may, so the model was not asked again.

    ``setting`` names the budget, ``used`` is how much of it was used and ``allowed`` how much may be: US dollars or
    tokens.
    """

    def __init__(self, message: str, *, setting: str, used: float, allowed: float) -> None:
        super().__init__(message)
        self.setting = setting
        self.used = used
        self.allowed = allowed


class ContextExhausted(AgentError):
    """The conversation does not fit the model's window, and hardly anything more can be left out of it.

    ``needed`` is how many tokens the next request would take, as far as we can tell, and ``window`` how many the model
    can hold.
    """

    def __init__(self, message: str, *, needed: int, window: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.window = window


class AnswerRejected(AgentError):
    """The model did not answer in the form that was asked for, however often it was told."""


class TurnBlocked(AgentError):
    """Somebody who may decide did not let the model be asked."""


class ProtocolError(AgentError):
    """A peer sent something that is not a frame of its dialect. Costs that frame, not the connection.

    ``frame_id`` is the frame's id as it stood there, b"" if it had none; ``frame_type`` what it claimed to be.
    """

    def __init__(self, message: str, *, frame_id: bytes = b"", frame_type: str = "") -> None:
        super().__init__(message)
        self.frame_id = frame_id
        self.frame_type = frame_type


class ToolFailed(AgentError):
    """A tool could not do what the model asked; the model hears this text."""


class StoreFailed(AgentError):
    """What happened could not be recorded, so it must not be shown."""


class UnmarkedRows(StoreFailed):
    """Rows are safe, but the lock file does not remember that: should they be lost, nobody would notice."""


class JournalDamaged(StoreFailed):
    """What was recorded cannot be read any more."""


class ProviderError(AgentError):
    """The model service refused or failed.

    ``provider`` is its name, ``status`` the HTTP status (0 when there was none), ``code`` the vendor's own
    word for the error, ``request_id`` what their support asks for, ``retry_after_s`` how long they asked us
    to wait.
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
    """The account has used up what was paid for, or what it may spend; paying helps, waiting does not."""


class RateLimited(ProviderError):
    """Too many requests or tokens; waiting helps."""


class Overloaded(ProviderError):
    """The service is up but cannot take this now; waiting helps."""


class ContextTooLong(ProviderError):
    """The conversation does not fit the model's window; compacting helps."""


class BadRequest(ProviderError):
    """The service does not accept what we sent."""


class NotFound(ProviderError):
    """No such model or address."""


class ContentRefused(ProviderError):
    """The service will not answer this content."""


class ServiceFailed(ProviderError):
    """The service had an error of its own."""


class ConnectionFailed(ProviderError):
    """No connection: refused, reset before an answer, DNS, TLS, proxy, or too slow to connect."""


class ConnectionImpossible(ConnectionFailed):
    """No connection, and trying again does not help: an address, a proxy setting or a certificate is wrong."""


class Stalled(ProviderError):
    """The service stopped talking and the deadline passed."""


class StreamBroken(ProviderError):
    """The answer ended early or was not what the API promises."""
