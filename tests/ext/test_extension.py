"""Extensions written with the SDK, as their authors test them: with `zot.ext.testing`, without a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import zot.ext
from zot.ext import Extension
from zot.ext.testing import Client, Result
from zot.wire import extension as wire
from zot.wire.extension import CommandResponse, ContentBlock, EventInterceptResponse


@pytest.fixture
def extension() -> Extension:
    return Extension("x", "1.0")


def text(words: str, *, is_error: bool = False) -> Result:
    return Result(words, is_error, (ContentBlock("text", words),) if words else ())


# How it begins.


def test_all_declarations_are_sent_in_one_write(extension: Extension) -> None:
    extension.notify("early")

    @extension.command("hi", "say hi")
    def hi() -> None: ...

    @extension.tool
    def look(q: str) -> str:
        """Look it up."""
        return q

    @extension.on("turn_end")
    def ended(event: zot.ext.Event) -> None: ...

    @extension.intercept("tool_call")
    def guard(question: zot.ext.Intercept) -> None: ...

    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    with Client(extension) as client:
        assert client.frames == [
            wire.Hello("x", "1.0", ("commands", "tools", "events")),
            wire.RegisterCommand("hi", "say hi"),
            wire.RegisterTool("look", "Look it up.", schema),
            wire.Subscribe(("turn_end",), ("tool_call",)),
            wire.Ready(),
            wire.Notify("early"),
        ]


def test_without_handlers_it_does_not_subscribe(extension: Extension) -> None:
    with Client(extension) as client:
        assert client.frames == [wire.Hello("x", "1.0"), wire.Ready()]


def test_it_can_decide_what_to_declare_once_it_knows_the_session(extension: Extension) -> None:
    @extension.setup
    async def where() -> None:
        await asyncio.sleep(0)
        if extension.host.provider == "lab":
            extension.command("lab", "only in lab")(lambda: None)
        extension.on("turn_end")(lambda event: None)

    with Client(extension) as client:
        assert client.frames == [
            wire.Hello("x", "1.0", ("commands", "tools", "events", "panels")),
            wire.RegisterCommand("lab", "only in lab"),
            wire.Subscribe(("turn_end",)),
            wire.Ready(),
        ]
    with pytest.raises(RuntimeError, match="declared before"):
        extension.on("turn_start")(lambda event: None)


def test_tools_may_be_registered_later(extension: Extension) -> None:
    @extension.command
    def more() -> None:
        extension.tool("late", "Late.", schema={})(lambda args: "at last")

    with Client(extension) as client:
        client.command("more")
        assert client.frames[-2:] == [wire.RegisterTool("late", "Late."), CommandResponse("1")]
        assert client.call("late") == text("at last")


def test_a_guard_can_say_that_it_fails_closed() -> None:
    guard = Extension("guard", on_failure="block")
    guard.intercept("turn_start")(lambda question: None)
    with Client(guard) as client:
        assert wire.Subscribe((), ("turn_start",), "block") in client.frames


def test_the_data_directory_is_known_once_it_runs(extension: Extension, tmp_path: Path) -> None:
    @extension.command
    def where() -> str:
        return str(extension.data_dir)

    with pytest.raises(RuntimeError, match="not answered hello yet"):
        extension.data_dir  # noqa: B018
    with Client(extension, data_dir=str(tmp_path)) as client:
        assert client.command("where").display == str(tmp_path)
    with Client(extension) as client:
        directory = Path(client.command("where").display)
        assert directory.is_dir()
    assert not directory.exists()


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (lambda x: x.command("a b")(lambda: None), "register_command"),
        (lambda x: x.tool("a.b")(lambda: None), "register_tool"),
        (lambda x: [x.command("a")(lambda: None) for _ in range(2)], "already a command a"),
        (lambda x: [x.tool("a")(lambda: None) for _ in range(2)], "already a tool a"),
        (lambda x: [x.intercept("tool_call")(lambda q: None) for _ in range(2)], "already a interceptor of tool_call"),
        (lambda x: [x.panel("a")(list) for _ in range(2)], "already a panel a"),
        (lambda x: x.on("tool_calls"), "no event 'tool_calls'; known: session_start, "),
        (lambda x: x.intercept("turn_end"), "cannot intercept 'turn_end', only tool_call, "),
        (lambda x: x.notify("m", "warning"), "no level 'warning'; known: info, "),
        (lambda x: Extension("no/name"), "hello: "),
        (lambda x: type(x)("x", on_failure="Block"), "subscribe: on_failure cannot be 'Block'"),
        (lambda x: zot.ext.prompt(" "), "must not be empty"),
    ],
)
def test_a_declaration_that_zot_would_refuse_is_refused_at_once(
    extension: Extension, declare: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        declare(extension)


# Commands.


@pytest.mark.parametrize(
    ("returned", "response"),
    [
        (None, CommandResponse("1")),
        ("a note", CommandResponse("1", "display", display="a note")),
        (zot.ext.noop(), CommandResponse("1")),
        (zot.ext.prompt("Greet me."), CommandResponse("1", "prompt", prompt="Greet me.")),
        (zot.ext.insert("text"), CommandResponse("1", "insert", insert="text")),
        (zot.ext.display("note"), CommandResponse("1", "display", display="note")),
        (5, CommandResponse("1", error="/go failed: TypeError: a command returns a response, a text or None, not 5")),
    ],
    ids=str,
)
def test_a_command_returns_its_action(extension: Extension, returned: Any, response: CommandResponse) -> None:
    extension.command("go")(lambda: returned)
    with Client(extension) as client:
        assert client.command("go") == response


def test_a_command_gets_its_arguments_and_is_named_after_its_function(extension: Extension) -> None:
    @extension.command
    def echo(args: str) -> str:
        """Say it back.

        Not shown.
        """
        return args

    with Client(extension) as client:
        assert wire.RegisterCommand("echo", "Say it back.") in client.frames
        assert client.command("echo", "  a b ").display == "a b"
        with pytest.raises(AssertionError, match="no command 'ecko'; there are echo"):
            client.command("ecko")


def test_an_exception_in_a_command_is_its_answer(extension: Extension, capsys: pytest.CaptureFixture[str]) -> None:
    @extension.command
    def fail() -> None:
        raise LookupError("no city")

    with Client(extension) as client:
        assert client.command("fail") == CommandResponse("1", error="/fail failed: LookupError: no city")
    assert "in fail\n    raise LookupError" in capsys.readouterr().err


# Tools.


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("text", [ContentBlock("text", "text")]),
        ("", [ContentBlock("text", "")]),
        (None, []),
        ({"a": [1]}, [ContentBlock("text", '{"a":[1]}')]),
        ([1, 2], [ContentBlock("text", "[1,2]")]),
        ([], [ContentBlock("text", "[]")]),
        (zot.ext.Image(b"hi"), [ContentBlock("image", mime_type="image/png", data="aGk=")]),
        (["a", zot.ext.Image(b"hi", "image/gif")],
         [ContentBlock("text", "a"), ContentBlock("image", mime_type="image/gif", data="aGk=")]),
    ],
    ids=str,
)  # fmt: skip
def test_a_tool_returns_text_images_or_json(extension: Extension, returned: Any, content: list[ContentBlock]) -> None:
    extension.tool("go")(lambda: returned)
    with Client(extension) as client:
        result = client.call("go")
        assert (result.content, result.is_error) == (tuple(content), False)


def test_a_tool_is_given_arguments_of_its_types(extension: Extension) -> None:
    @extension.tool
    def add(numbers: list[int], *, times: float = 1) -> float:
        return sum(numbers) * times

    with Client(extension) as client:
        assert client.call("add", numbers=[1, 2]) == text("3")
        assert client.call("add", numbers=["1", 2], times="2.5") == text("7.5")
        assert client.call("add") == text("add: numbers is missing", is_error=True)
        assert client.call("add", numbers="x") == text("add: numbers must be a list, not a string", is_error=True)


def test_a_default_that_can_change_is_new_for_each_call(extension: Extension) -> None:
    @extension.tool
    def collect(seen: list[int] = []) -> int:  # noqa: B006
        seen.append(1)
        return len(seen)

    with Client(extension) as client:
        assert [client.call("collect").text for _ in range(3)] == ["1", "1", "1"]


def test_a_tool_with_its_own_schema_gets_the_arguments_unchanged(extension: Extension) -> None:
    schema = {"type": "object", "properties": {"x": {}}}

    @extension.tool("raw", schema=schema)
    def raw(args: dict[str, Any]) -> Any:
        """Repeat a text."""
        return args

    with Client(extension) as client:
        assert client.tools == {"raw": schema}
        assert client.call("raw", x="1") == text('{"x":"1"}')


def test_an_exception_in_a_tool_is_its_answer(extension: Extension, capsys: pytest.CaptureFixture[str]) -> None:
    @extension.tool
    def refuse() -> None:
        raise zot.ext.ToolError("no such city")

    @extension.tool
    def fail() -> None:
        raise LookupError("oops")

    @extension.tool
    def strange() -> object:
        return object()

    extension.tool("leave")(lambda: sys.exit("now"))
    with Client(extension) as client:
        assert client.call("refuse") == text("no such city", is_error=True)
        assert capsys.readouterr().err == ""
        assert client.call("fail") == text("fail failed: LookupError: oops", is_error=True)
        assert "in fail\n    raise LookupError" in capsys.readouterr().err
        assert client.call("strange") == text(
            "strange failed: TypeError: Encoding objects of type object is unsupported", is_error=True
        )
        assert client.call("leave") == text("leave failed: SystemExit: now", is_error=True)


def test_a_result_that_zot_would_not_read_is_an_error(extension: Extension) -> None:
    @extension.tool
    def long(count: int, text: str) -> str:
        return text * count

    with Client(extension) as client:
        assert client.call("long", count=4_000_000, text="x").is_error is False
        assert client.call("long", count=5_000_000, text="x") == text(
            "the result is too long: 5000000 characters; a line of more than 4 MiB is not read", is_error=True
        )
        assert client.call("long", count=1_000_000, text="\0").is_error is True


async def _never() -> None:
    await asyncio.sleep(0)
    raise LookupError("late")


def test_handlers_may_be_coroutines_and_share_a_loop(extension: Extension) -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    @extension.tool
    async def slow(q: str) -> str:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return q

    @extension.command
    async def soon() -> str:
        loops.add(asyncio.get_running_loop())
        return "soon"

    extension.intercept("turn_start")(lambda question: _never())
    with Client(extension) as client:
        assert client.call("slow", q="a") == text("a")
        assert client.command("soon").display == "soon"
        assert client.intercept("turn_start", step=1).block
    assert len(loops) == 1


# What watches.


@pytest.mark.parametrize(
    ("event", "decision", "response"),
    [
        ("tool_call", None, EventInterceptResponse("1")),
        ("tool_call", zot.ext.allow("fine"), EventInterceptResponse("1", reason="fine")),
        ("tool_call", zot.ext.block("no"), EventInterceptResponse("1", block=True, reason="no")),
        ("tool_call", zot.ext.modify({"a": 1}), EventInterceptResponse("1", modified_args={"a": 1})),
        ("assistant_message", zot.ext.replace("*"), EventInterceptResponse("1", replace_text="*")),
        ("assistant_message", zot.ext.replace(""),
         EventInterceptResponse("1", block=True, reason="the message was removed")),
        ("turn_start", True, EventInterceptResponse("1", block=True, reason="the interceptor of turn_start in x failed:"
                                                    " TypeError: an interceptor returns a decision or None, not True")),
    ],
)  # fmt: skip
def test_an_interceptor_returns_its_decision(extension: Extension, event: Any, decision: Any, response: Any) -> None:
    extension.intercept(event)(lambda question: decision)
    with Client(extension) as client:
        assert client.intercept(event) == response


def test_an_interceptor_that_raises_blocks(extension: Extension) -> None:
    @extension.intercept("tool_call")
    def guard(call: zot.ext.Intercept) -> zot.ext.Decision:
        if call.tool_args is None:
            raise LookupError("arguments")
        return zot.ext.modify({"a": object()} if call.tool_name == "odd" else call.tool_args)

    with Client(extension) as client:
        assert client.intercept("tool_call", tool_name="a", tool_args={"b": 1}).modified_args == {"b": 1}
        assert client.intercept("tool_call", tool_name="odd", tool_args={}).block
        assert client.intercept("tool_call", tool_name="none").block
        with pytest.raises(AssertionError, match="does not intercept turn_start"):
            client.intercept("turn_start")


def test_every_handler_gets_its_events(extension: Extension, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[str, int]] = []

    @extension.on("turn_start", "turn_end")
    def both(event: zot.ext.Event) -> None:
        heard.append((event.event, event.step))

    @extension.on("turn_end")
    def fails(event: zot.ext.Event) -> None:
        raise LookupError("not our problem")

    with Client(extension) as client:
        client.tell("turn_start", step=1)
        client.tell("turn_end", stop="end_turn")
        with pytest.raises(AssertionError, match="does not subscribe to tool_call"):
            client.tell("tool_call")
    assert heard == [("turn_start", 1), ("turn_end", 0)]
    assert "LookupError: not our problem" in capsys.readouterr().err


def test_notices_are_sent_at_once(extension: Extension) -> None:
    @extension.command
    def work() -> None:
        extension.notify("half way")
        extension.notify("failed", "error")

    with Client(extension) as client:
        client.command("work")
        assert client.notices == (("info", "half way"), ("error", "failed"))
        assert client.frames[-1] == CommandResponse("1")


def test_it_is_notified_of_shutdown(extension: Extension) -> None:
    ends: list[str] = []
    extension.at_end(lambda: ends.append("first"))
    extension.at_end(_never)
    extension.at_end(lambda: ends.append("last"))
    with Client(extension):
        assert ends == []
    assert ends == ["first", "last"]


# Panels.


def test_a_panel_is_drawn_when_it_opens_and_after_each_key(extension: Extension) -> None:
    pressed: list[str] = []
    closed: list[bool] = []

    @extension.panel("list", title="List", footer="esc closes")
    def panel() -> list[str]:
        return pressed or ["empty"]

    @panel.key
    def key(name: str, character: str) -> None:
        if character == "q":
            panel.close()
        pressed.append(character or name)
        panel.title = f"List of {len(pressed)}"

    @panel.closed
    def close() -> None:
        closed.append(panel.is_open)

    @extension.command
    def show() -> zot.ext.Response:
        return panel.open()

    with Client(extension) as client:
        panel.render()
        assert len(client.frames) == 3
        assert client.command("show").open_panel == wire.Panel("list", "List", ("empty",), "esc closes")
        assert client.press("list", "down") == ("down",)
        assert client.frames[-1] == wire.PanelRender("list", "List of 1", ("down",), "esc closes")
        assert client.press("list", "rune", "q") is None
        assert wire.PanelClose("list") in client.frames[-1:]
        client.command("show")
        client.close_panel("list")
        assert (closed, client.panels) == ([False], {})
        panel.render()
        assert isinstance(client.frames[-1], CommandResponse)
    assert panel() == ["down", "q"]
