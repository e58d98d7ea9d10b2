"""Which reply of the script answers a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from zot.errors import ConfigError
from zot.providers.lab import directives as d
from zot.providers.lab.api import Ask
from zot.providers.lab.script import Reply, Script

_REMEMBERED = 4096


class Stage:
    """Plays one script.

    In a script with scenes the conversation itself says where it is: the newest prompt chooses the scene, the
    replies since then the position. So conversations cannot disturb each other, and a scene goes on after a
    restart. All that is remembered is how often a request has failed, because the same request comes again.
    A linear script is a tape: every request takes the next reply.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._position = 0
        self._failures: dict[int, int] = {}

    def reply(self, ask: Ask, fingerprint: int) -> list[d.Directive]:
        """Return what answers ``ask``; requests with the same ``fingerprint`` are tries of the same request.

        Raise ConfigError if the script has no answer.
        """
        if self.script.linear:
            return self._next_on_tape()
        replies, values = self._scene(ask)
        failures = self._failures.pop(fingerprint, 0)
        reply = _pick(replies, values, ask.turns, failures)
        if reply is None:
            raise ConfigError(f"{self.script.name} has no reply left: its scene has {_counted(replies)}")
        if reply.fails:
            self._remember(fingerprint, failures + 1)
        return reply.directives(values)

    def _next_on_tape(self) -> list[d.Directive]:
        replies = self.script.scenes[0].replies
        left = self._position
        for reply in replies:
            times = reply.times({})
            if times is None or left < times:
                self._position += 1
                return reply.directives({})
            left -= times
        raise ConfigError(f"{self.script.name} has no reply left: it has {_counted(replies)}")

    def _scene(self, ask: Ask) -> tuple[tuple[Reply, ...], dict[str, str]]:
        """Return the replies of the first scene that matches, and the values of its placeholders."""
        first, *_ = ask.prompt.split(None, 1) or [""]
        for scene in self.script.scenes:
            if scene.word is not None and scene.word != first:
                continue  # Most are others.
            groups = scene.match(ask.prompt, has_tools=ask.has_tools)
            if groups is not None:
                values = {**groups, "chars": str(len(ask.prompt)), "model": ask.model}
                return _inner(scene.replies, values)
        raise ConfigError(f"{self.script.name} has no scene for the prompt {ask.prompt[:80]!r}")

    def _remember(self, fingerprint: int, failures: int) -> None:
        self._failures[fingerprint] = failures
        if len(self._failures) > _REMEMBERED:
            del self._failures[next(iter(self._failures))]


def _inner(replies: tuple[Reply, ...], values: dict[str, str]) -> tuple[tuple[Reply, ...], dict[str, str]]:
    """Return the replies of the script that a scene consists of, if it is one."""
    match replies[0].directives(values):
        case [d.Play(source=source)]:
            return _in_prompt(source), {}
        case _:
            return replies, values


@lru_cache(maxsize=8)
def _in_prompt(source: str) -> tuple[Reply, ...]:
    """Return the replies of a script in a prompt, which comes with every request of its turn. Raise ConfigError."""
    script = Script.parse(source.replace(" ;; ", "\n"), "script in the prompt")
    if not script.linear:
        raise ConfigError("a script in a prompt cannot have scenes")
    return script.scenes[0].replies


def _pick(replies: Iterable[Reply], values: Mapping[str, str], turns: int, failures: int) -> Reply | None:
    """Return the reply after ``turns`` good ones and, from there, ``failures`` bad ones."""
    for reply in replies:
        times = reply.times(values)
        if reply.fails and turns:
            continue
        if times is None or (failures if reply.fails else turns) < times:
            return reply
        if reply.fails:
            failures -= times
        else:
            turns -= times
    return None


def _counted(replies: tuple[Reply, ...]) -> str:
    return f"{len(replies)} {'reply' if len(replies) == 1 else 'replies'}, and each request takes one"
