"""The Runtime for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from zot.config.config import Config
from zot.errors import RunCancelled, RuntimeClosed, UserError
from zot.events import AgentEvent, CompactDone, SessionState
from zot.messages import ImageBlock, Message
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
from zot.providers.base import Model
from zot.sdk.runtime import Answer, Events, Runtime

if TYPE_CHECKING:
    from zot.session.rewind import Rewound

T = TypeVar("T")
P = ParamSpec("P")


class BlockingRuntime:
    """A `Runtime` in a thread of its own, for programs without an event loop. Every call waits for its result.

    Use it in a ``with`` block, or close it. Settings are those of `Runtime`. Any thread may call any method.
    """

    def __init__(self, config: Config | None = None, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zot runtime", daemon=True)
        self._thread.start()
        # Reentrant: the garbage collector may close a generator in the thread that holds it.
        self._lock = threading.RLock()
        self._closed = False
        self._runtime: Runtime | None = None
        try:
            self._runtime = self._wait(_make(config, settings))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, text: str, images: Sequence[ImageBlock] = ()) -> Answer:
        """Run a prompt to its end and return the answer. Raise what made it fail, or RunCancelled."""
        return self._wait(self._inner.run(text, images))

    def prompt(self, text: str, images: Sequence[ImageBlock] = ()) -> Iterator[AgentEvent]:
        """Start a prompt and yield its events as they happen. Leaving the loop early cancels the prompt.

        Raise RuntimeBusy while another one runs, UserError if it is empty.
        """

        async def start() -> Events:
            return self._inner.prompt(text, images)

        events = self._wait(start())
        try:
            while batch := self._wait(events.batch()):
                yield from batch
        finally:
            # After close there is nothing to cancel. In our own thread, where the garbage collector may close this
            # generator, waiting would deadlock: there `Events.__del__` cancels the run.
            if not self._closed and not self._is_own_thread():
                self._wait(events.aclose())

    def compact(self) -> str:
        """Replace all but the newest messages by a summary and return it. Raise what made it fail, or RunCancelled."""

        async def compact() -> str:
            async with self._inner.compact() as events:
                summaries = [event.summary async for event in events if isinstance(event, CompactDone)]
            if events.error is not None:
                raise events.error
            if events.cancelled:
                raise RunCancelled("the compaction was cancelled before it was done")
            return "".join(summaries)

        return self._wait(compact())

    def undo_compact(self) -> None:
        """Restore the messages that the newest compaction replaced. Raise UserError if there is none."""
        self._wait(self._inner.undo_compact())

    def steer(self, text: str, images: Sequence[ImageBlock] = ()) -> None:
        """Steer the running prompt: add a message before its next model call. Raise AgentError if none is running."""
        self._call(self._inner.steer, text, images)

    def approve(self, request_id: str, decision: str) -> None:
        """Answer an `ApprovalRequest`: allow_once, allow_always or reject. Raise UserError if it is not pending."""
        self._call(self._inner.approve, request_id, decision)

    def answer(self, request_id: str, action: str, content: Mapping[str, Any] | None = None) -> None:
        """Answer a `QuestionRequest`: accept with the values of its fields, decline or cancel."""
        self._call(self._inner.answer, request_id, action, content)

    def cancel(self) -> None:
        """Cancel the running prompt or compaction, if any. Its events continue up to `done`."""
        self._call(self._inner.cancel)

    def set_model(self, model_id: str) -> None:
        """Use another model of the same provider from the next model call on. Raise UserError if there is none."""
        self._call(self._inner.set_model, model_id)

    def list_models(self) -> Sequence[Model]:
        """Return the models known for the provider."""
        return self._call(self._inner.list_models)

    @property
    def state(self) -> SessionState:
        """A snapshot: provider, model, directory, number of messages, usage, and whether it is busy."""
        return self._call(lambda: self._inner.state)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The complete conversation, as `set_messages` of another runtime takes it."""
        return self._call(lambda: self._inner.messages)

    def set_messages(self, messages: Sequence[Message]) -> None:
        """Replace the conversation by ``messages``. Raise UserError while busy.

        In a recorded session this takes effect before the next prompt; if it fails, the next call raises the reason.
        """
        self._call(self._inner.set_messages, messages)

    def rewind(
        self, *, messages: int | None = None, at: int | None = None, files: bool = True, preview: bool = False
    ) -> Rewound:
        """Go back to the first ``messages``, or to the row ``at``; restore the files that tools have changed since.

        With ``preview`` nothing changes; the result says what would. Raise RewindRefused, changing nothing, if another
        program has changed one of the files; UserError while busy.
        """
        return self._wait(self._inner.rewind(messages=messages, at=at, files=files, preview=preview))

    def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, after waiting for the extensions to register them."""
        return self._wait(self._inner.commands())

    def resources(self) -> Sequence[ResourceInfo]:
        """Return the resources of MCP servers that prompts can mention, as far as they are known."""
        return self._call(self._inner.resources)

    def run_command(self, name: str, args: str = "") -> CommandAnswer:
        """Run a command of an extension and return the action it asks for, which the caller carries out.

        Raise UserError if there is no such command, or with the error that the extension reports.
        """
        return self._wait(self._inner.run_command(name, args))

    def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an extension's panel. Raise UserError if there is no such panel or key."""
        self._call(self._inner.send_key, panel_id, key, text)

    def close_panel(self, panel_id: str) -> None:
        """Close an extension's panel. Raise UserError if it is not open."""
        self._call(self._inner.close_panel, panel_id)

    def listen(self, hear: Callable[[AgentEvent], None]) -> Callable[[], None]:
        """Call ``hear`` with every event from now on, including notices and panels between prompts.

        Return a function that ends the subscription. ``hear`` runs in the runtime's thread and must not block: it may
        call methods that return at once, such as `cancel`, `steer` and `approve`; the others raise UserError there.
        If it raises, the log has the traceback and the run continues.
        """
        unsubscribe = self._call(self._inner.listen, hear)

        def stop() -> None:
            with contextlib.suppress(RuntimeClosed):  # Closing has ended the subscription.
                self._call(unsubscribe)

        return stop

    @property
    def cost(self) -> float | None:
        """Cost of the conversation so far in US dollars; None if a price is unknown."""
        return self._call(lambda: self._inner.cost)

    def close(self) -> None:
        """Cancel the running prompt, release all resources and end the thread. Idempotent."""
        self._forbid_own_thread()
        with self._lock:
            first, self._closed = not self._closed, True
        if first:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if first:
            self._loop.close()

    @property
    def _inner(self) -> Runtime:
        assert self._runtime is not None
        return self._runtime

    async def _end(self) -> None:
        if self._runtime is not None:
            await self._runtime.close()
        # Other threads wait for these tasks, which end now: stopping the loop earlier would leave them waiting.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    def _call(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``action`` in the runtime's own thread."""
        if self._is_own_thread():  # A listener calls.
            return action(*args, **kwargs)

        async def call() -> T:
            return action(*args, **kwargs)

        return self._wait(call())

    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _forbid_own_thread(self) -> None:
        if self._is_own_thread():
            raise UserError("a listener cannot wait for its own runtime: call this from another thread")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._forbid_own_thread()
        except UserError:
            work.close()
            raise
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeClosed("this Runtime has been closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _make(config: Config | None, settings: dict[str, Any]) -> Runtime:
    return await Runtime(config, **settings).__aenter__()


def run(text: str, **settings: Any) -> Answer:
    """Run one prompt with a runtime of its own and return the answer. Raise what made it fail. For scripts."""
    with BlockingRuntime(**settings) as runtime:
        return runtime.run(text)
