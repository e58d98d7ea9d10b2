"""Create a session of 2,000 messages in this user's journal and print its id. Run by `terminal.py`."""

from __future__ import annotations

import asyncio

from zot.config.config import Config
from zot.messages import CallBlock, Message, ResultBlock, TextBlock
from zot.sdk.runtime import Runtime
from zot.session.session import new_session_id

_TIME = "2026-01-01T00:00:00.000Z"
_ANSWER = "# Answer {}\n\nSome **text**, " + "words " * 40 + "\n\n```python\ndef f(x):\n    return x\n```\n\n- a\n- b\n"


def _messages() -> list[Message]:
    said: list[Message] = []
    for number in range(500):
        call = CallBlock(f"c{number}", "bash", {"command": "ls -la"})
        said += [
            Message("user", (TextBlock(f"question {number}, please look at it"),), _TIME),
            Message("assistant", (TextBlock(_ANSWER.format(number)), call), _TIME),
            Message("tool", (ResultBlock(call.id, False, (TextBlock("line\n" * 50),)),), _TIME),
            Message("assistant", (TextBlock("That is it. " * 30),), _TIME),
        ]
    return said


_PATIENCE_S = 30


async def main() -> None:
    """Create the session."""
    config = Config(provider="lab", session=new_session_id())
    async with Runtime(config) as runtime:
        messages = _messages()
        runtime.set_messages(messages)
        async with asyncio.timeout(_PATIENCE_S):
            while runtime.state.message_count < len(messages):  # noqa: ASYNC110  # The call does not say when it is done.
                await asyncio.sleep(0.01)
    print(config.session)


asyncio.run(main())
