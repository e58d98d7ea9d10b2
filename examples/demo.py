"""What `make demo` shows: the runtime in this process, a scripted model, real tools, a temporary directory."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile

import zot
from zot.events import AssistantMessage, Error, TextDelta, ToolCall, ToolResult, Usage
from zot.messages import text_of

COLOURS = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
CYAN, RED, FAINT = "36", "31", "2"
MAX_LINES = 5


def paint(text: str, code: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def show(event: zot.AgentEvent) -> None:
    """Print one event, if a person wants to see it."""
    match event:
        case TextDelta(delta=delta):
            print(delta, end="", flush=True)
        case AssistantMessage():
            print()
        case ToolCall(name=name, args=args):
            print(paint(f"  > {name}", CYAN), zot.encode(args).decode())
        case ToolResult(is_error=is_error, content=content):
            lines = [line for line in text_of(content).split("\n") if line.strip()]
            more = [f"... {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
            for line in lines[:MAX_LINES] + more:
                print(paint(f"    {line}", RED if is_error else FAINT))
        case Usage(input=sent, output=received):
            print(paint(f"  ({sent} tokens in, {received} out)", FAINT), end="")
        case Error(message=message):
            print(paint(f"error: {message}", RED))
        case _:
            pass


def zot_command() -> str:
    """Return how to call zot from here: by its name if it is on the PATH, else where it was installed beside Python."""
    beside = os.path.join(os.path.dirname(sys.executable), "zot")
    return "zot" if shutil.which("zot") else shlex.quote(os.path.relpath(beside))


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="zot-demo-") as directory:
        print(f"zot {zot.__version__}, provider lab: no key, no network. The tools work in {directory}\n")
        async with zot.Runtime(provider="lab", cwd=directory) as runtime:
            async for event in (events := runtime.prompt("Show me what you can do.")):
                show(event)
            total = runtime.state.usage
        left = len(os.listdir(directory))
    print(f"\n{total.input} tokens in, {total.output} out, {left} files left behind.")
    print("Now drive it from any language, with lines of JSON on standard input and output:\n")
    print(f"""  echo '{{"type":"prompt","message":"!help"}}' | {zot_command()} rpc --provider lab\n""")
    return 0 if events.error is None else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
