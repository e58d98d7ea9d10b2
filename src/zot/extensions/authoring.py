"""An extension tried out: talked to as a session would, and what it does wrong is told."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, TypeAlias

import msgspec

from zot.extensions.bench import Bench
from zot.extensions.happenings import (
    Acknowledged,
    Broken,
    Complained,
    Ended,
    Greeted,
    Happening,
    Settled,
)
from zot.extensions.samples import sample
from zot.text import printable
from zot.wire import extension as wire

#: Done right, done wrong, or worth to know.
Verdict: TypeAlias = Literal["ok", "wrong", "note"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was seen."""

    verdict: Verdict
    text: str


class Trial:
    """Talks to an extension and hands what it finds to ``tell``, each once; ``failures`` counts what is wrong.

    ``taken`` are the names of zot's own tools. `heard` is for the bench to tell what happens there.
    """

    def __init__(self, tell: Callable[[Finding], None], *, taken: Collection[str]) -> None:
        self.failures = 0
        self._tell = tell
        self._taken = taken
        self._told: set[Finding] = set()
        self._broken = False
        self._acknowledged = False
        self._said_ready = False

    def heard(self, happening: Happening) -> None:
        """Take note of what the extension does by itself."""
        match happening:
            case Greeted(hello=hello):
                self._found("ok", f"said hello as {hello.name} {hello.version}".rstrip())
            case Settled(said=said):
                self._said_ready = said
            case Complained(reason=reason):
                self._found("wrong", reason)
            case Broken(reason=reason):
                self._broken = True
                self._found("wrong", reason)
            case Ended(reason=reason, wanted=False) if not self._broken:
                self._found("wrong", reason)
            case Acknowledged():
                self._acknowledged = True
            case _:
                pass

    async def run(self, bench: Bench, *, call_tools: bool) -> None:
        """Try everything there is, then end it. What has broken is not tried further."""
        await bench.settled()
        if bench.peer.running:
            self._look(bench)
            await self._converse(bench)
            await self._run_commands(bench)
            await self._call_tools(bench, call=call_tools)
        await self._end(bench)

    def _look(self, bench: Bench) -> None:
        """Judge what it has registered."""
        peer = bench.peer
        if not self._said_ready and peer.tools:
            self._found("note", f"did not say ready: a first prompt waits {bench.deadlines.ready_s:g} s for its tools")
        for command in peer.commands:
            self._found("ok", f"registered the command /{command.name}")
        for tool in peer.tools:
            if tool.name in self._taken:
                self._found("wrong", f"registered the tool {tool.name}, but zot has one of that name, which is used")
            else:
                self._found("ok", f"registered the tool {tool.name}")
            if not tool.description:
                self._found("note", f"the tool {tool.name} has no description: the model will not know what it is for")

    async def _converse(self, bench: Bench) -> None:
        """Let it hear and decide about a short conversation."""
        call_args = {"command": "true"}
        bench.tell(wire.Event("session_start"))
        await self._ask(bench, "turn_start", step=1)
        bench.tell(wire.Event("turn_start", step=1))
        await self._ask(bench, "tool_call", tool_id="call-1", tool_name="bash", tool_args=call_args)
        bench.tell(wire.Event("tool_call", tool_id="call-1", tool_name="bash", tool_args=call_args))
        await self._ask(bench, "assistant_message", text="Hello.")
        bench.tell(wire.Event("assistant_message", text="Hello."))
        bench.tell(wire.Event("turn_end", stop="end_turn"))

    async def _ask(self, bench: Bench, event: wire.Intercepted, **about: object) -> None:
        if not bench.peer.decides(event):
            return
        decision = await bench.decide(event, **about)
        if decision.failure:
            self._found("wrong", f"intercept {event}: {decision.failure}")
            return
        changed = decision.modified_args is not None or decision.replace_text is not None
        what = "blocks it" if decision.block else "changes it" if changed else "allows it"
        self._found("ok", f"intercept {event}: {what}")

    async def _run_commands(self, bench: Bench) -> None:
        for command in bench.peer.commands:
            answered = await bench.run_command(command.name, "")
            response = answered.response
            if answered.failure:
                self._found("wrong", f"command /{command.name}: {answered.failure}")
                continue
            self._found("ok", f"command /{command.name}: answered with {response.action}")
            if response.error:
                self._found("note", f"command /{command.name}: without arguments it says: {response.error}")
            if response.action == "open_panel" and response.open_panel is not None:
                bench.press(response.open_panel.id, "down")

    async def _call_tools(self, bench: Bench, *, call: bool) -> None:
        tools = bench.peer.tools
        if tools and not call:
            names = ", ".join(tool.name for tool in tools)
            self._found("note", f"not called, since tools act: {names}; --call-tools calls them")
            return
        for tool in tools:
            args = sample(tool.schema)
            answered = await bench.call_tool(tool.name, args)
            with_args = wire.encode_frame(wire.ToolCall("1", tool.name, args)).partition(b'"args":')[2][:-2].decode()
            if answered.failure:
                self._found("wrong", f"tool {tool.name} {with_args}: {answered.failure}")
            else:
                how = "answered with an error" if answered.is_error else "answered"
                self._found("note" if answered.is_error else "ok", f"tool {tool.name} {with_args}: {how}")

    async def _end(self, bench: Bench) -> None:
        """Tell it to end, and see if it does."""
        told = bench.peer.running
        deadline_s = bench.deadlines.shutdown_s
        since = bench.now()
        await bench.close()
        if not told or bench.ended is None or not bench.ended.wanted:
            return
        if not self._acknowledged:
            self._found("wrong", "did not say shutdown_ack")
        if bench.now() - since >= deadline_s:
            self._found("wrong", f"did not exit within {deadline_s:g} s of shutdown, and had to be killed")
        elif bench.ended.reason != "exited with 0":
            self._found("wrong", f"{bench.ended.reason} when it was told to shut down")
        elif self._acknowledged:
            self._found("ok", "acknowledged the shutdown and exited")

    def _found(self, verdict: Verdict, text: str) -> None:
        finding = Finding(verdict, printable(text))
        if finding not in self._told:  # What is said a hundred times is no clearer.
            self._told.add(finding)
            self.failures += verdict == "wrong"
            self._tell(finding)
