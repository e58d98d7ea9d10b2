"""The runtime for programs without an event loop."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from queue import Queue

import pytest

import zot
from extensions.stage import Extension
from fakes import PATIENCE_S, kinds
from zot import events
from zot.errors import AgentError, ProviderError
from zot.events import AgentEvent, TextDelta, UserMessage


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[zot.BlockingRuntime]:
    with zot.BlockingRuntime(provider="lab", cwd=str(tmp_path)) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    gc.collect()
    assert [thread.name for thread in threading.enumerate() if thread not in before and "zot" in thread.name] == []


def when_idle(runtime: zot.BlockingRuntime, text: str) -> str:
    """Run a prompt as soon as nothing else runs, and return its answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return runtime.run(text).text
        except zot.RuntimeBusy:
            assert time.monotonic() < deadline


def test_run_returns_the_answer(runtime: zot.BlockingRuntime) -> None:
    answer = runtime.run("!say 3 Hello")
    assert (answer.text, answer.usage.output > 0) == ("Hello", True)
    assert runtime.run("!echo again").text == "again"


def test_a_prompt_yields_its_events(runtime: zot.BlockingRuntime) -> None:
    seen = list(runtime.prompt("!say 3 Hello"))
    assert (events.text(seen), kinds(seen)[-1]) == ("Hello", "done")


def test_a_compaction_can_be_undone(runtime: zot.BlockingRuntime) -> None:
    for number in range(4):
        runtime.run(f"!echo {number}")
    before = runtime.messages
    runtime.compact()
    runtime.undo_compact()
    assert runtime.messages == before
    with pytest.raises(zot.UserError, match="there is no compaction to undo"):
        runtime.undo_compact()


@pytest.mark.parametrize("prompt", ["!status 400", "!error", "!cut"])
def test_run_raises_what_made_it_fail(runtime: zot.BlockingRuntime, prompt: str) -> None:
    with pytest.raises(ProviderError):
        runtime.run(prompt)
    assert runtime.run("!echo still here").text == "still here"


def test_a_failed_prompt_yields_its_end(runtime: zot.BlockingRuntime) -> None:
    assert kinds(runtime.prompt("!status 401"))[-3:] == ["turn_end error", "error", "done"]


def test_leaving_a_prompt_early_cancels_it(runtime: zot.BlockingRuntime) -> None:
    for event in runtime.prompt("!stall-mid"):
        if isinstance(event, TextDelta):
            break
    assert runtime.run("!echo next").text == "next"


def test_closing_the_generator_cancels_the_prompt(runtime: zot.BlockingRuntime) -> None:
    stream = runtime.prompt("!stall")
    assert isinstance(next(stream), UserMessage)
    with pytest.raises(zot.RuntimeBusy):
        runtime.run("!echo no")
    stream.close()  # type: ignore[attr-defined]
    assert runtime.run("!echo yes").text == "yes"


def test_an_exception_in_the_loop_over_events_cancels_the_prompt(runtime: zot.BlockingRuntime) -> None:
    def look() -> None:
        for _ in runtime.prompt("!stall"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look()
    gc.collect()
    assert runtime.run("!echo next").text == "next"


def test_cancel_works_from_another_thread(runtime: zot.BlockingRuntime) -> None:
    seen: list[AgentEvent] = []
    for event in runtime.prompt("!stall-mid"):
        seen.append(event)
        if isinstance(event, TextDelta):
            thread = threading.Thread(target=runtime.cancel)
            thread.start()
            thread.join(PATIENCE_S)
    assert kinds(seen)[-2:] == ["turn_end aborted", "done"]


def test_a_cancelled_run_says_so(runtime: zot.BlockingRuntime) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(runtime.run, "!stall")
        deadline = time.monotonic() + PATIENCE_S
        while not future.done() and time.monotonic() < deadline:
            runtime.cancel()
        with pytest.raises(AgentError, match="cancelled"):
            future.result(PATIENCE_S)


def test_colliding_threads_get_an_error_and_the_others_an_answer(runtime: zot.BlockingRuntime) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: when_idle(runtime, f"!echo {number}"), range(12), timeout=PATIENCE_S))
    assert answers == [str(number) for number in range(12)]


def test_several_runtimes_run_side_by_side(tmp_path: Path) -> None:
    def talk(number: int) -> str:
        with zot.BlockingRuntime(provider="lab", cwd=str(tmp_path)) as runtime:
            return runtime.run(f"!say 3 I am number {number}").text

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(talk, range(6), timeout=PATIENCE_S))
    assert answers == [f"I am number {number}" for number in range(6)]


def test_a_closed_runtime_says_so_and_may_be_closed_again(tmp_path: Path) -> None:
    runtime = zot.BlockingRuntime(provider="lab", cwd=str(tmp_path))
    runtime.close()
    runtime.close()
    asks: list[Callable[[], object]] = [
        lambda: runtime.run("hi"),
        lambda: list(runtime.prompt("hi")),
        runtime.cancel,
    ]
    for ask in asks:
        with pytest.raises(zot.RuntimeClosed):
            ask()


def test_a_prompt_that_outlives_its_runtime_says_so(tmp_path: Path) -> None:
    with zot.BlockingRuntime(provider="lab", cwd=str(tmp_path)) as runtime:
        stream = runtime.prompt("!stall")
        next(stream)
    with pytest.raises(zot.RuntimeClosed):
        list(stream)


def test_a_forgotten_prompt_of_a_closed_runtime_is_harmless(tmp_path: Path) -> None:
    with zot.BlockingRuntime(provider="lab", cwd=str(tmp_path)) as runtime:
        forgotten = runtime.prompt("!stall")
        next(forgotten)
    del forgotten
    gc.collect()


def test_garbage_found_in_the_runtimes_own_thread_does_not_block_it(runtime: zot.BlockingRuntime) -> None:
    holder = [runtime.prompt("!stall")]
    next(holder[0])
    runtime._loop.call_soon_threadsafe(holder.clear)
    assert when_idle(runtime, "!echo next") == "next"


def test_closing_ends_the_waits_of_other_threads(tmp_path: Path) -> None:
    runtime = zot.BlockingRuntime(provider="lab", cwd=str(tmp_path))
    stream = runtime.prompt("!stall")
    next(stream)
    with ThreadPoolExecutor(3) as pool:
        reading, asking = pool.submit(list, stream), pool.submit(runtime.run, "!stall")
        closing = [pool.submit(runtime.close) for _ in range(2)]
        for future in closing:
            future.result(PATIENCE_S)
        with pytest.raises((zot.RuntimeBusy, zot.RuntimeClosed)):
            asking.result(PATIENCE_S)
        assert isinstance(reading.exception(PATIENCE_S), zot.RuntimeClosed | None)


def test_a_runtime_that_cannot_be_made_leaves_no_thread() -> None:
    with pytest.raises(zot.UserError, match="unknown provider 'acme'"):
        zot.BlockingRuntime(provider="acme")


def test_run_is_one_prompt_with_a_runtime_of_its_own(tmp_path: Path) -> None:
    assert zot.run("!say 3 Hello", provider="lab", cwd=str(tmp_path)).text == "Hello"
    with pytest.raises(ProviderError):
        zot.run("!status 400", provider="lab", cwd=str(tmp_path))
    with pytest.raises(zot.ConfigError):
        zot.run("hi", nonsense=1)


def test_settings_may_come_as_a_config(tmp_path: Path) -> None:
    config = zot.Config(provider="lab", cwd=str(tmp_path))
    with zot.BlockingRuntime(config, max_steps=1) as runtime:
        with pytest.raises(AgentError, match="stopped after 1 steps"):
            runtime.run("!bash true")


HELD_BACK = """
hello("events")
say("subscribe", intercept=["assistant_message"])
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        refusal = {"block": True, "reason": "no"}
        answer(frame, **(refusal if "cret" in frame["text"] else {"replace_text": "[redacted]"}))
    elif frame["type"] == "shutdown":
        break
"""


def test_a_prompt_returns_the_text_that_a_guard_passed(tmp_path: Path) -> None:
    guard = str(Extension(tmp_path, "guard", HELD_BACK).directory)
    env = {"ZOT_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    settings = {"provider": "lab", "cwd": str(tmp_path), "ext": (guard,), "env": env}
    assert zot.run("!echo private", **settings).text == "[redacted]"
    blocked = zot.run("!script say the se ;; say cret", **settings)
    assert (blocked.text, blocked.held_back) == ("", "no")


MENU = """
hello("commands", "panels")
say("register_command", name="open", description="Open a panel.")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        panel = {"id": "p", "title": "T", "lines": ["one"]}
        say("command_response", id=frame["id"], action="open_panel", open_panel=panel)
    elif frame["type"] == "panel_key":
        say("panel_render", panel_id="p", title="T", lines=[frame["key"]])
    elif frame["type"] == "shutdown":
        break
"""


def test_commands_and_panels_of_extensions_work_as_in_runtime(tmp_path: Path) -> None:
    menu = str(Extension(tmp_path, "menu", MENU).directory)
    env = {"ZOT_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    heard: Queue[AgentEvent] = Queue()
    with zot.BlockingRuntime(provider="lab", cwd=str(tmp_path), ext=(menu,), env=env) as runtime:
        assert [(one.name, one.extension) for one in runtime.commands()] == [("open", "menu")]
        runtime.listen(heard.put)
        assert runtime.run_command("open").panel_id == "p"
        assert isinstance(heard.get(timeout=PATIENCE_S), events.PanelOpened)
        runtime.send_key("p", "down")
        assert heard.get(timeout=PATIENCE_S) == events.PanelRendered("menu", "p", "T", ("down",))
        runtime.close_panel("p")
        assert heard.get(timeout=PATIENCE_S) == events.PanelClosed("menu", "p")
        with pytest.raises(zot.UserError, match="no panel 'p' is open"):
            runtime.send_key("p", "down")


def test_a_listener_receives_events_until_it_unsubscribes(runtime: zot.BlockingRuntime) -> None:
    heard: list[AgentEvent] = []
    stop = runtime.listen(heard.append)
    seen = list(runtime.prompt("!say 1 Hello"))
    assert heard == seen
    stop()
    runtime.run("!echo more")
    assert heard == seen
    runtime.close()
    stop()


def test_a_listener_may_cancel_but_not_wait(runtime: zot.BlockingRuntime) -> None:
    problems: list[str] = []

    def hear(event: AgentEvent) -> None:
        if isinstance(event, TextDelta):
            for wait in (runtime.commands, runtime.close):
                try:
                    wait()
                except zot.UserError as problem:
                    problems.append(str(problem))
            runtime.cancel()

    runtime.listen(hear)
    with pytest.raises(zot.RunCancelled):
        runtime.run("!stall-mid")
    assert problems == ["a listener cannot wait for its own runtime: call this from another thread"] * 2


@pytest.mark.parametrize("name", sorted(name for name in dir(zot.Runtime) if not name.startswith("_")))
def test_every_member_of_runtime_exists_with_the_same_parameters(name: str) -> None:
    theirs, ours = getattr(zot.Runtime, name), getattr(zot.BlockingRuntime, name)
    assert isinstance(theirs, property) == isinstance(ours, property)
    if not isinstance(theirs, property):
        assert signature(theirs).parameters == signature(ours).parameters


def test_the_blocking_runtime_has_no_member_that_runtime_lacks() -> None:
    ours, theirs = (
        {name for name in dir(kind) if not name.startswith("_")} for kind in (zot.BlockingRuntime, zot.Runtime)
    )
    assert ours == theirs
