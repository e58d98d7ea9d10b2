"""The same for scripts that have no event loop: every call waits.

python blocking.py
"""

import zot
from zot.events import TextDelta

# One question, one answer.
print(zot.run("!say 2 One answer.", provider="lab").text)

# A conversation, and events as they happen.
with zot.BlockingRuntime(provider="lab") as runtime:
    runtime.run("!echo first")
    for event in runtime.prompt("!say 5 A second prompt of the same conversation."):
        if isinstance(event, TextDelta):
            print(event.delta, end="", flush=True)
print()
