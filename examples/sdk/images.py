"""Show the model a picture.

python images.py [FILE.png]
"""

import asyncio
import base64
import sys
from pathlib import Path

import zot

ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def main(data: bytes) -> None:
    picture = zot.ImageBlock("image/png", data)
    async with zot.Runtime(provider="lab") as runtime:
        answer = await runtime.run("!echo I have seen it.", images=[picture])
        print(answer.text)
        # What a client sees of the conversation has the size of a picture, not its bytes.
        print(zot.encode(zot.show(runtime.messages[0])).decode())


asyncio.run(main(Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else base64.b64decode(ONE_PIXEL)))
