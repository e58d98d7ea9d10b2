"""The shortest way to an answer. Needs no key: `lab` is a model that follows a script."""

import asyncio

import zot


async def main() -> None:
    async with zot.Runtime(provider="lab") as runtime:
        answer = await runtime.run("!say 3 Hello from the runtime in this very process.")
    print(answer.text)


asyncio.run(main())
