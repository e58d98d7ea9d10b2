"""The runtime in process: prompts in, events out, and no tasks or descriptors left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import zot
from fakes import PATIENCE_S, PNG, kinds
from grammar import Grammar
from reference_cycles import left_over
from zot import events
from zot.errors import AgentError, BudgetExhausted, ConfigError, Overloaded, ProviderError, UserError
from zot.events import AgentEvent, CompactDone, Done, SessionState, TextDelta, TurnEnd, UserMessage
from zot.messages import ZERO, Counters, ShownImage, TextBlock
from zot.providers.base import Model


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[zot.Runtime]:
    async with asyncio.timeout(PATIENCE_S), zot.Runtime(provider="lab", cwd=str(tmp_path)) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
async def nothing_is_left_running() -> AsyncIterator[None]:
    """Check that the test left no task."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() - {asyncio.current_task()} <= before)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0)


async def everything(stream: zot.Events) -> list[AgentEvent]:
    return [event async for event in stream]


@pytest.mark.parametrize("text", ["!echo x", "!think", "!bash true", "!tools", "!refusal", "!cut"])
async def test_a_run_leaves_nothing_for_the_garbage_collector(runtime: zot.Runtime, text: str) -> None:
    await everything(runtime.prompt(text))  # Objects made once may stay.
    with left_over() as found:
        await everything(runtime.prompt(text))
        await asyncio.sleep(0)  # For tasks that end after the last event.
    assert found == []


async def test_a_prompt_is_an_iterator_of_events(runtime: zot.Runtime) -> None:
    grammar = Grammar()
    grammar.take({"type": "response", "command": "prompt", "success": True})
    seen = []
    async for event in runtime.prompt("!say 3 Hello"):
        grammar.take(json.loads(zot.encode(event)))
        seen.append(event)
    grammar.finish()
    assert events.text(seen) == "Hello"
    assert kinds(seen) == [
        "user_message", "turn_start", "assistant_start", "text_delta", "text_delta", "text_delta", "usage",
        "assistant_message", "turn_end end_turn", "done",
    ]  # fmt: skip


async def test_images_are_sent(runtime: zot.Runtime) -> None:
    first = await anext(aiter(runtime.prompt("!echo hi", [PNG])))
    assert isinstance(first, UserMessage)
    assert first.content == (TextBlock("!echo hi"), ShownImage("image/png", 4))


async def test_an_ended_iterator_stays_ended(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!echo hi")
    assert (await everything(stream))[-1] == Done()
    assert await everything(stream) == []
    assert await stream.batch() == []
    await stream.aclose()
    assert (stream.error, stream.cancelled) == (None, False)


async def test_events_can_be_taken_in_batches(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!say 3 Hello")
    seen: list[AgentEvent] = []
    while batch := await stream.batch():
        seen += batch
    assert (events.text(seen), seen[-1]) == ("Hello", Done())


async def test_run_returns_the_last_text_and_what_it_used(runtime: zot.Runtime) -> None:
    answer = await runtime.run("!bash echo hi")
    assert answer.text == "finished."
    assert answer.usage == runtime.state.usage
    assert answer.usage.output > 0


@pytest.mark.parametrize(
    ("prompt", "kind"), [("!status 400", ProviderError), ("!error", Overloaded), ("!cut", ProviderError)]
)
async def test_run_raises_what_made_it_fail(runtime: zot.Runtime, prompt: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await runtime.run(prompt)
    assert (await runtime.run("!echo still here")).text == "still here"


async def test_run_says_that_it_was_cancelled(runtime: zot.Runtime) -> None:
    task = asyncio.get_running_loop().create_task(runtime.run("!stall"))
    await until(lambda: runtime.state.busy)
    runtime.cancel()
    with pytest.raises(AgentError, match=r"^the prompt was cancelled before it was done$"):
        await task


async def test_a_cancelled_run_ends_its_prompt(runtime: zot.Runtime) -> None:
    task = asyncio.get_running_loop().create_task(runtime.run("!stall"))
    await until(lambda: runtime.state.busy)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not runtime.state.busy


async def test_an_error_is_kept_with_the_events(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!status 401")
    seen = await everything(stream)
    assert kinds(seen)[-3:] == ["turn_end error", "error", "done"]
    assert isinstance(stream.error, zot.ProviderError)
    assert stream.error.status == 401
    assert not stream.cancelled


async def test_cancel_ends_the_prompt_and_its_events_still_come(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!stall-mid")
    seen = []
    async for event in stream:
        seen.append(event)
        if isinstance(event, TextDelta):
            runtime.cancel()
            runtime.cancel()
    assert kinds(seen)[-4:] == ["usage", "assistant_message", "turn_end aborted", "done"]
    assert (stream.cancelled, stream.error) == (True, None)
    runtime.cancel()


async def test_one_prompt_at_a_time(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!stall")
    with pytest.raises(zot.RuntimeBusy, match="a prompt or compact is running"):
        runtime.prompt("!echo no")
    with pytest.raises(zot.RuntimeBusy, match="a prompt or compact is running"):
        runtime.compact()
    with pytest.raises(zot.RuntimeBusy):
        await runtime.run("!echo no")
    with pytest.raises(UserError, match="cannot be changed while"):
        runtime.set_messages([])
    assert runtime.state.busy
    await stream.aclose()
    assert (await runtime.run("!echo yes")).text == "yes"


async def test_an_empty_prompt_is_refused_and_leaves_no_trace(runtime: zot.Runtime) -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        runtime.prompt(" ")
    assert (runtime.state.busy, runtime.messages) == (False, ())


# Leaving early.


async def test_a_break_cancels_the_prompt_and_the_next_one_follows_at_once(runtime: zot.Runtime) -> None:
    async for event in runtime.prompt("!stall-mid"):
        if isinstance(event, TextDelta):
            break
    assert events.text(await everything(runtime.prompt("!echo next"))) == "next"
    roles = [message.role for message in runtime.messages]
    assert roles == ["user", "assistant", "user", "assistant"]


async def test_an_exception_in_the_consumer_cancels_the_prompt(runtime: zot.Runtime) -> None:
    async def consume() -> None:
        async for _ in runtime.prompt("!stall"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert (await runtime.run("!echo next")).text == "next"


async def test_the_end_of_a_with_block_waits_until_nothing_runs(runtime: zot.Runtime) -> None:
    async with runtime.prompt("!stall") as stream:
        assert isinstance(await anext(stream), UserMessage)
    assert (runtime.state.busy, stream.cancelled) == (False, True)
    assert await everything(stream) == []


async def test_aclose_waits_until_nothing_runs_and_may_be_repeated(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!bash sleep 600")
    while "tool_call" not in kinds([await anext(stream)]):
        pass
    await stream.aclose()
    await stream.aclose()
    assert not runtime.state.busy


async def test_unread_events_are_cancelled_when_collected(runtime: zot.Runtime) -> None:
    runtime.prompt("!stall")
    gc.collect()
    await until(lambda: not runtime.state.busy)


async def test_garbage_found_in_another_thread_cancels_the_prompt(runtime: zot.Runtime) -> None:
    holder = [runtime.prompt("!stall")]
    await anext(holder[0])
    await asyncio.to_thread(holder.clear)
    await until(lambda: not runtime.state.busy)


async def test_a_cancelled_consumer_cancels_its_prompt(runtime: zot.Runtime) -> None:
    async def consume() -> None:
        async with runtime.prompt("!stall") as stream:
            await everything(stream)

    task = asyncio.get_running_loop().create_task(consume())
    await until(lambda: runtime.state.busy)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not runtime.state.busy


async def test_a_tool_that_was_running_is_gone_when_its_events_are_closed(runtime: zot.Runtime, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with runtime.prompt("!bash echo $$ > pid; exec sleep 600") as stream:
        while "tool_call" not in kinds([await anext(stream)]):
            pass
        await until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# A slow consumer.


async def test_a_slow_consumer_gets_everything_and_the_run_waits_for_it(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!flood 20000")
    inbox = stream._inbox
    await until(lambda: inbox.full)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not inbox.over
    unread = len(inbox._unread)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(inbox._unread) == unread < 20000
    seen = []
    async for event in stream:
        seen.append(event)
        if len(seen) % 1000 == 0:
            await asyncio.sleep(0)
    assert sum(isinstance(event, TextDelta) for event in seen) == 20000
    assert kinds(seen)[-3:] == ["assistant_message", "turn_end end_turn", "done"]


async def test_a_full_inbox_does_not_keep_a_prompt_from_being_cancelled(runtime: zot.Runtime) -> None:
    stream = runtime.prompt("!flood 20000")
    await until(lambda: stream._inbox.full)
    runtime.cancel()
    seen = await everything(stream)
    assert (seen[-2], seen[-1]) == (TurnEnd("aborted"), Done())


# The rest of it.


async def test_steering_reaches_the_running_prompt(runtime: zot.Runtime) -> None:
    seen = []
    async for event in runtime.prompt("!bash echo hi"):
        seen.append(event)
        if isinstance(event, events.ToolCall):
            runtime.steer("!echo steered")
    assert events.text(seen).endswith("steered")
    assert kinds(seen).count("done") == 1


async def test_steering_needs_a_running_prompt(runtime: zot.Runtime) -> None:
    with pytest.raises(AgentError, match="no run to steer"):
        runtime.steer("hello?")


async def test_compact_yields_its_summary_and_ends_with_done(runtime: zot.Runtime) -> None:
    for number in range(4):
        await runtime.run(f"!echo {number}")
    before = runtime.messages
    seen = await everything(runtime.compact())
    assert kinds(seen) == ["usage", "compact_done", "done"]
    assert runtime.messages[1:] == before[4:]
    assert (await runtime.run("!echo on")).text == "on"


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_compaction_can_be_undone_once(tmp_path: Path, is_kept: bool) -> None:
    session: dict[str, Any] = {"session": "s", "env": {"ZOT_HOME": str(tmp_path)}} if is_kept else {}
    async with zot.Runtime(provider="lab", cwd=str(tmp_path), **session) as runtime:
        for number in range(4):
            await runtime.run(f"!echo {number}")
        before = runtime.messages
        await everything(runtime.compact())
        assert runtime.messages != before
        await runtime.undo_compact()
        assert runtime.messages == before
        with pytest.raises(UserError, match="there is no compaction to undo"):
            await runtime.undo_compact()
        stream = runtime.prompt("!stall")
        with pytest.raises(zot.RuntimeBusy):
            await runtime.undo_compact()
        await stream.aclose()


@pytest.mark.parametrize(("settings", "compactions"), [({}, 1), ({"auto_compact": False}, 0)])
async def test_automatic_compaction_can_be_switched_off(
    tmp_path: Path, settings: dict[str, Any], compactions: int
) -> None:
    seen: list[AgentEvent] = []
    async with zot.Runtime(provider="lab", cwd=str(tmp_path), compact_at=6500, **settings) as runtime:
        for tokens in (1000, 3000, 5000, 7000):
            seen += await everything(runtime.prompt(f'!script say "{"x" * 4000}" ;; usage input={tokens} output=1000'))
        assert runtime.state.usage.input == 16_000 + 100 * compactions
    assert sum(isinstance(event, CompactDone) and event.auto for event in seen) == compactions


async def test_compact_of_nothing_is_an_error_and_done(runtime: zot.Runtime) -> None:
    stream = runtime.compact()
    assert kinds(await everything(stream)) == ["error", "done"]
    assert isinstance(stream.error, UserError)


async def test_state_is_a_snapshot(runtime: zot.Runtime, tmp_path: Path) -> None:
    assert runtime.state == SessionState("lab", "lab-1", str(tmp_path), 0, False, ZERO, context_window=200_000)
    stream = runtime.prompt("!echo hi")
    assert runtime.state.busy
    await everything(stream)
    assert (runtime.state.message_count, runtime.state.busy) == (2, False)


async def test_a_conversation_can_be_carried_to_another_runtime(runtime: zot.Runtime, tmp_path: Path) -> None:
    await runtime.run("!bash echo hi")
    async with zot.Runtime(provider="lab", cwd=str(tmp_path)) as other:
        other.set_messages(runtime.messages)
        assert other.messages == runtime.messages
        assert other.state.message_count == 4
        assert (await other.run("!echo on")).text == "on"
        other.set_messages([])
        assert other.messages == ()


async def test_returned_messages_do_not_change_later(runtime: zot.Runtime) -> None:
    await runtime.run("!echo a")
    held = runtime.messages
    await runtime.run("!echo b")
    assert (len(held), len(runtime.messages)) == (2, 4)


async def test_models_are_listed_and_chosen(tmp_path: Path) -> None:
    async with zot.Runtime(provider="anthropic", api_key="k", cwd=str(tmp_path)) as runtime:
        models = runtime.list_models()
        assert all(isinstance(model, Model) for model in models)
        assert runtime.state.model == models[0].id
        runtime.set_model(models[1].id)
        assert runtime.state.model == models[1].id
        with pytest.raises(UserError, match="unknown model 'x'"):
            runtime.set_model("x")


async def test_cost_adds_up(runtime: zot.Runtime) -> None:
    assert runtime.cost == 0.0
    await runtime.run("!usage 10 20 30 40")
    await runtime.run("!usage 1 2 3 4")
    assert runtime.state.usage == Counters(11, 22, 33, 44, 0.0)
    assert runtime.cost == 0.0


async def test_several_runtimes_do_not_disturb_each_other(tmp_path: Path) -> None:
    async def talk(number: int) -> str:
        (tmp_path / str(number)).mkdir()
        async with zot.Runtime(provider="lab", cwd=str(tmp_path / str(number))) as runtime:
            if number % 4 == 0:
                async for _ in runtime.prompt("!stall-mid"):
                    break
            if number % 4 == 1:
                with pytest.raises(ProviderError):
                    await runtime.run("!status 400")
            await runtime.run(f"!write name.txt {number}")
            text = (await runtime.run(f"!say 5 I am number {number}")).text
            assert (tmp_path / str(number) / "name.txt").read_text() == str(number)
            return text

    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(talk(number) for number in range(12)))
    assert answers == [f"I am number {number}" for number in range(12)]


# The end.


async def test_a_closed_runtime_says_so(tmp_path: Path) -> None:
    runtime = zot.Runtime(provider="lab", cwd=str(tmp_path))
    await runtime.close()
    await runtime.close()
    asks: list[Callable[[], object]] = [
        lambda: runtime.prompt("hi"), runtime.compact, lambda: runtime.steer("hi"), runtime.cancel,
        lambda: runtime.set_model("lab-1"), runtime.list_models, lambda: runtime.state, lambda: runtime.messages,
        lambda: runtime.set_messages([]), lambda: runtime.cost,
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(zot.RuntimeClosed):
            ask()
    with pytest.raises(zot.RuntimeClosed):
        await runtime.run("hi")


async def test_closing_ends_the_run_and_its_events_reach_their_end(tmp_path: Path) -> None:
    runtime = zot.Runtime(provider="lab", cwd=str(tmp_path))
    stream = runtime.prompt("!stall")
    async with asyncio.timeout(PATIENCE_S):
        await anext(stream)
        await runtime.close()
        assert kinds(await everything(stream))[-2:] == ["turn_end aborted", "done"]


async def test_a_prompt_waiting_for_an_abort_is_cancelled_by_closing(tmp_path: Path) -> None:
    runtime = zot.Runtime(provider="lab", cwd=str(tmp_path))
    first = runtime.prompt("!stall")
    runtime.cancel()
    waiting = runtime.prompt("!echo never")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(zot.RuntimeBusy):
            await runtime.run("!echo never either")
        await runtime.close()
        assert await everything(waiting) == []
        assert waiting.cancelled
        assert kinds(await everything(first))[-1] == "done"


async def test_only_one_prompt_may_wait_for_an_abort(runtime: zot.Runtime) -> None:
    first = runtime.prompt("!stall")
    runtime.cancel()
    second = runtime.prompt("!echo hi")
    with pytest.raises(zot.RuntimeBusy):
        runtime.prompt("!echo no")
    assert [event async for event in first][-1] == Done()
    assert [event async for event in second][-1] == Done()


@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("hi", zot.ImageBlock("image/png", b"x")),
        ("hi", ["x"]),
        ("hi", [zot.ImageBlock("image/png", cast(bytes, "aGk="))]),
        ("hi", [zot.ImageBlock(cast(str, None), b"x")]),
        (b"hi", []),
        (None, []),
        ("half \ud800 of it", []),
    ],
)
async def test_an_invalid_prompt_is_refused_and_breaks_nothing(runtime: zot.Runtime, text: Any, images: Any) -> None:
    for ask in (runtime.prompt, runtime.run):
        with pytest.raises(zot.UserError):
            await result if asyncio.iscoroutine(result := ask(text, images)) else result
    assert (runtime.state.busy, runtime.messages) == (False, ())
    assert (await runtime.run("!echo next")).text == "next"


async def test_messages_must_be_messages(runtime: zot.Runtime) -> None:
    with pytest.raises(zot.UserError, match="list of Message"):
        runtime.set_messages([{"role": "user"}])  # type: ignore[list-item]


async def test_a_path_may_be_given_as_one(tmp_path: Path) -> None:
    async with zot.Runtime(provider="lab", cwd=tmp_path) as runtime:
        assert runtime.state.cwd == str(tmp_path)


# Settings.


async def test_settings_come_by_name_or_as_a_config(tmp_path: Path) -> None:
    config = zot.Config(provider="lab", cwd=str(tmp_path), max_steps=1)
    async with zot.Runtime(config) as one, zot.Runtime(config, max_steps=9) as other:
        with pytest.raises(AgentError, match="stopped after 1 steps"):
            await one.run("!bash true")
        assert (await other.run("!bash true")).text == "finished."


async def test_a_budget_that_is_used_up_is_raised_with_its_facts(tmp_path: Path) -> None:
    async with zot.Runtime(provider="lab", cwd=tmp_path, max_tokens_total=100) as runtime:
        assert (await runtime.run("!echo first")).text == "first"
        with pytest.raises(BudgetExhausted) as caught:
            await runtime.run("!echo second")
    assert (caught.value.setting, caught.value.used, caught.value.allowed) == ("max_tokens_total", 120, 100)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"provider": "lab", "max_cost": 0}, "max_cost"),
        ({"provider": "lab", "max_tokens_total": 1.5}, "max_tokens_total"),
        ({"nonsense": 1}, "nonsense"),
        ({"provider": "acme"}, "unknown provider 'acme'"),
        ({"provider": "lab", "model": "x"}, "unknown model 'x'"),
        ({"provider": "anthropic", "env": {}}, "set ANTHROPIC_API_KEY, or run: zot login anthropic. The provider lab"),
        ({"provider": "lab", "tools": ("hammer",)}, "unknown tool 'hammer'; known: bash, edit, read, skill, write"),
        ({"mcp": {"files": {"comand": "x"}}}, "mcp['files'] comand: unknown setting; did you mean command?"),
        ({"ext_deadlines": {"helo": 1}}, "a key of ext_deadlines cannot be 'helo'; use one of: command, "),
        ({"provder": "lab"}, "provder is not a setting; did you mean provider?"),
        ({"provider": "labb"}, "unknown provider 'labb'; known: anthropic, "),
        ({"provider": "lab", "reasoning": "much"}, "reasoning cannot be 'much'; use one of: high, low, medium, off"),
        ({"provider": "lab", "cwd": "/no/such/place"}, "/no/such/place is not a directory; choose another cwd"),
        ({"provider": "anthropic", "api_key": "k", "script": "x"}, "script needs the provider lab, not anthropic"),
    ],
)
async def test_a_wrong_setting_is_named(settings: dict[str, Any], problem: str) -> None:
    for config in (None, zot.Config()):
        with pytest.raises(UserError, match=re.escape(problem)) as caught:
            zot.Runtime(config, **settings)
        assert isinstance(caught.value, zot.ConfigError) or "model" in settings


def test_without_an_event_loop_the_error_names_the_blocking_runtime() -> None:
    runtime = zot.Runtime(provider="lab")
    with pytest.raises(UserError, match=r"^no event loop is running: .*, or zot\.BlockingRuntime$"):
        runtime.prompt("hi")


async def test_a_script_is_played(tmp_path: Path) -> None:
    (tmp_path / "s.lab").write_text('say "from a script"\n')
    async with zot.Runtime(provider="lab", script=str(tmp_path / "s.lab"), cwd=str(tmp_path)) as runtime:
        assert (await runtime.run("anything")).text == "from a script"


async def test_a_runtime_without_tools_offers_none(tmp_path: Path) -> None:
    async with zot.Runtime(provider="lab", cwd=str(tmp_path), tools=()) as runtime:
        await runtime.run('!script call bash {"command": "echo hi"} ;; --- ;; say ok')
        result = runtime.messages[2].content[0]
        assert "there is no tool named 'bash'; there are: none" in repr(result)


def test_errors_are_exported_by_the_sdk() -> None:
    assert issubclass(zot.RuntimeBusy, zot.UserError)
    assert issubclass(zot.RuntimeClosed, zot.UserError)
    assert issubclass(ConfigError, zot.UserError)
    assert issubclass(zot.UserError, zot.AgentError)


@pytest.mark.parametrize("number", [1, 3])
async def test_a_listener_that_raises_costs_the_run_nothing(
    runtime: zot.Runtime, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    heard: list[zot.AgentEvent] = []

    def hear(event: zot.AgentEvent) -> None:
        heard.append(event)
        if len(heard) == number:
            raise ZeroDivisionError

    runtime.listen(hear)
    events = [event async for event in runtime.prompt("!say 1 hello")]
    assert events == heard
    assert type(events[-1]).__name__ == "Done"
    assert not runtime.state.busy
    assert "ZeroDivisionError" in caplog.text
