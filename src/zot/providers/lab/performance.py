"""A scripted reply as steps to send: bytes, pauses and faults. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from zot.providers.lab import directives as d
from zot.providers.lab.api import Kind, LabBlock, Voice
from zot.providers.lab.script import Script


class Piece(msgspec.Struct, frozen=True):
    """Bytes sent alone, not joined with their neighbours."""

    data: bytes


class Pause(msgspec.Struct, frozen=True):
    """A wait. Earlier bytes are sent first."""

    seconds: float


class Silence(msgspec.Struct, frozen=True):
    """Silence forever; only ``ping``, if any, every ``every_s`` seconds."""

    ping: bytes | None = None
    every_s: float = 0.0


class Broken(msgspec.Struct, frozen=True):
    """A dropped connection; a refused one if nothing has been sent yet."""

    how: Literal["refused", "cut"]


#: Plain bytes may be joined with their neighbours. The end of the steps is the proper end of the body.
Step: TypeAlias = bytes | Piece | Pause | Silence | Broken


class Plan(msgspec.Struct, frozen=True):
    """A response. Steps before the first bytes take place before the head is sent."""

    status: int
    headers: Mapping[str, str]
    steps: Iterator[Step]


class Performance:
    """Player of one reply; collects its blocks."""

    def __init__(self, reply: Sequence[d.Directive], voice: Voice, next_call: int, script: Script) -> None:
        self._reply = reply
        self._voice = voice
        self._next_call = next_call
        self._script = script
        self._twice = any(isinstance(part, d.UsageTwice) for part in reply)
        self._blocks: list[LabBlock] = []
        self._open: LabBlock | None = None
        self._begun = False
        self._pace_s = 0.0
        self._chunk_bytes = 0

    def steps(self) -> Iterator[Step]:
        """Yield the reply as a stream of events, cut into pieces where the script says so."""
        for part in self._reply:
            yield from self._cut_up(self._play(part))
        yield from self._cut_up(self._end())

    def whole(self) -> Iterator[Step]:
        """Yield the reply as one body. A fault in the stream truncates the body halfway."""
        said = bytearray()
        for step in self.steps():
            match step:
                case bytes(data) | Piece(data=data):
                    said += data
                case Broken() if said:
                    body = self._body(said)
                    yield from (body[: len(body) // 2], step)
                    return
                case Silence():
                    yield Silence()
                case _:
                    yield step
        yield self._body(said)

    def _cut_up(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            if self._chunk_bytes and isinstance(step, bytes):
                yield from _pieces(step, self._chunk_bytes)
            else:
                yield step

    def _body(self, said: bytearray) -> bytes:
        return self._voice.whole(self._blocks, self._stop()) if self._begun else bytes(said)

    def _play(self, part: d.Directive) -> Iterator[Step]:
        match part:
            case d.Say(deltas=deltas):
                yield from self._speak("text", deltas)
            case d.Split(count=count, text=text):
                yield from self._speak("text", _split(text, count))
            case d.Words(count=count):
                yield from self._speak("text", (f"w{number} " for number in range(count)))
            case d.Flood(count=count):
                yield from self._speak("text", ("." for _ in range(count)))
            case d.Help():
                yield from self._speak("text", [self._script.help()])
            case d.Think(deltas=deltas):
                yield from self._speak("thinking", deltas)
            case d.Redacted(sealed=sealed):
                yield from self._enter(self._block("redacted", deltas=[sealed]))
                yield from self._leave()
            case d.CallDirective():
                yield from self._call(part)
            case d.PaceDirective(seconds=seconds):
                self._pace_s = seconds
            case d.ChunkDirective(size=size):
                self._chunk_bytes = size
            case d.Wait(seconds=seconds):
                yield Pause(seconds)
            case d.PingDirective(count=count):
                yield from self._begin()
                yield from [self._voice.ping()] * count
            case d.Raw(text=text):
                yield text.encode(errors="replace")
            case d.Refuse():
                yield Broken("refused")
            case d.Stall(pings_every_s=None):
                yield Silence()
            case d.Stall(pings_every_s=every_s):
                yield from self._begin()
                yield Silence(self._voice.ping(), every_s or 0.0)
            case d.Cut(where=where):
                yield from self._cut(where)
            case d.ErrorDirective(code=code, message=message):
                yield self._voice.error(code, message)
            case (
                d.UsageDirective()
                | d.UsageTwice()
                | d.StopDirective()
                | d.Repeat()
                | d.NoEnd()
                | d.StatusDirective()
                | d.Play()
                | d.Shell()
            ):
                pass

    def _speak(self, kind: Literal["text", "thinking"], deltas: Iterable[str]) -> Iterator[Step]:
        if self._open is None or self._open.kind != kind:
            yield from self._enter(self._block(kind))
        yield from self._deltas(deltas)

    def _call(self, call: d.CallDirective) -> Iterator[Step]:
        block = self._block("call", id_=call.id, tool=call.tool)
        yield from self._enter(block)
        yield from self._deltas(_split(call.arguments, call.chunks))
        yield from self._leave()

    def _deltas(self, deltas: Iterable[str]) -> Iterator[Step]:
        block, voice = self._open, self._voice
        assert block is not None
        for text in deltas:
            if self._pace_s:
                yield Pause(self._pace_s)
            block.deltas.append(text)
            if event := voice.delta(block, text):
                yield event

    def _block(self, kind: Kind, *, deltas: Sequence[str] = (), id_: str | None = None, tool: str = "") -> LabBlock:
        calls = sum(block.kind == "call" for block in self._blocks)
        if kind == "call" and id_ is None:
            id_ = f"{self._voice.call_prefix}{self._next_call}"
            self._next_call += 1
        return LabBlock(kind, len(self._blocks), calls, id_ or "", tool, [*deltas])

    def _begin(self) -> Iterator[Step]:
        if not self._begun:
            self._begun = True
            yield from self._voice.begin(twice=self._twice)

    def _enter(self, block: LabBlock) -> Iterator[Step]:
        yield from self._begin()
        yield from self._leave()
        self._open = block
        self._blocks.append(block)
        yield from self._voice.open(block)

    def _leave(self) -> Iterator[Step]:
        if self._open is not None:
            yield from self._voice.close(self._open)
            self._open = None

    def _cut(self, where: Literal["here", "utf8", "json"]) -> Iterator[Step]:
        if where != "here":
            if self._open is None:
                yield from self._enter(self._block("text"))
            assert self._open is not None
            event = self._voice.delta(self._open, "c\u00fbt")
            # One byte into the character, or one byte short of the object's end.
            yield event[: event.index(b"\xc3") + 1 if where == "utf8" else event.rindex(b"}")]
        yield Broken("cut")

    def _end(self) -> Iterator[Step]:
        """Yield the proper end, unless the script ended the reply itself or wrote it as raw bytes."""
        if any(isinstance(part, d.Ending) for part in self._reply):
            return
        if not self._begun and any(isinstance(part, d.Raw) for part in self._reply):
            return
        yield from self._begin()
        yield from self._leave()
        yield from self._voice.end(self._blocks, self._stop(), twice=self._twice)

    def _stop(self) -> str:
        called = any(block.kind == "call" for block in self._blocks)
        scripted = [part.reason for part in self._reply if isinstance(part, d.StopDirective)]
        return scripted[-1] if scripted else "tool_use" if called else "end_turn"


def _split(text: str, count: int) -> Iterator[str]:
    """Yield ``text`` in ``count`` nonempty parts, the first ones longer by one if it does not divide evenly."""
    size, longer = divmod(len(text), max(1, min(count, len(text))))
    at = 0
    while at < len(text) or at == 0:
        end = at + size + (1 if longer > 0 else 0)
        longer -= 1
        yield text[at:end]
        at = max(end, 1)


def _pieces(data: bytes, size: int) -> Iterator[Piece]:
    for at in range(0, len(data), size):
        yield Piece(data[at : at + size])
