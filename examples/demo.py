"""What `make demo` shows: the runtime in this process, a scripted model, real tools, a temporary directory."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import zot
from zot.events import AssistantMessage, Error, TextDelta, ThinkingDelta, ToolCall, ToolResult, Usage
from zot.messages import text_of

NEXT = """echo '{"type":"prompt","message":"!help"}' | zot rpc --provider lab"""
COLOURS = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
SHOWN_LINES = 6


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def dim(text: str) -> str:
    return paint(text, "2")


def show(event: zot.AgentEvent) -> None:
    """Print one event, if a person wants to see it."""
    match event:
        case ThinkingDelta(delta=delta):
            print(dim(delta), end="", flush=True)
        case TextDelta(delta=delta):
            print(delta, end="", flush=True)
        case AssistantMessage():
            print()
        case ToolCall(name=name, args=args):
            print(paint(f"  > {name}", "36"), dim(zot.encode(args).decode()))
        case ToolResult(is_error=is_error, content=content):
            lines = text_of(content).splitlines()
            for line in lines[:SHOWN_LINES]:
                print(dim(f"    {line}") if not is_error else paint(f"    {line}", "31"))
            if len(lines) > SHOWN_LINES:
                print(dim(f"    ... {len(lines) - SHOWN_LINES} more lines"))
        case Error(message=message):
            print(paint(f"error: {message}", "31"))
        case _:
            pass


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="zot-demo-") as directory:
        print(f"zot {zot.__version__}, provider lab: no key, no network. The tools work in {directory}\n")
        async with zot.Runtime(provider="lab", cwd=directory) as runtime:
            events, calls = runtime.prompt("Show me what you can do."), 0
            async for event in events:
                show(event)
                calls += isinstance(event, ToolCall)
            total = runtime.state.usage
        left = len(list(Path(directory).iterdir()))
    print(f"\n{calls} tool calls, {total.input} tokens in and {total.output} out, {left} files left behind.")
    print(f"Next, the same runtime from any language, as lines of JSON:\n\n  {NEXT}\n")
    return 0 if events.error is None else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
