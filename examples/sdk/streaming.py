"""Watch a prompt while it runs: text, tools and tokens. Ctrl+C ends the prompt, not the program.

python streaming.py ["PROMPT" [PROVIDER]]
"""

import asyncio
import signal
import sys

import zot
from zot.events import Error, TextDelta, ToolCall, ToolResult, TurnEnd, Usage
from zot.messages import text_of


def show(event: zot.AgentEvent) -> None:
    """Print the events that people care about. `zot.events` has all of them."""
    match event:
        case TextDelta(delta=delta):
            print(delta, end="", flush=True)
        case ToolCall(name=name, args=args):
            print(f"\n  {name} {args}")
        case ToolResult(is_error=is_error, content=content):
            first_line = text_of(content).partition("\n")[0]
            print(f"  {'failed' if is_error else 'ok'}: {first_line}")
        case Usage(cumulative=total):
            print(f"\n  {total.input} tokens in, {total.output} out so far")
        case TurnEnd(stop="aborted"):
            print("\n  cancelled")
        case Error(message=message):
            print(f"\n  error: {message}")
        case _:
            pass


async def main(prompt: str = "!bash echo hello", provider: str = "lab") -> None:
    async with zot.Runtime(provider=provider) as runtime:
        # A handler, not KeyboardInterrupt: the prompt still reports how it ended, and the runtime stays usable.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, runtime.cancel)
        async for event in runtime.prompt(prompt):
            show(event)
        print(f"messages: {runtime.state.message_count}, cost in USD: {runtime.cost}")


asyncio.run(main(*sys.argv[1:3]))
