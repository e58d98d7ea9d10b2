"""Which reply of the script answers a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import msgspec

from zot.errors import ConfigError
from zot.providers.lab import directives as d
from zot.providers.lab.api import Ask, UserText
from zot.providers.lab.script import Reply, Scene, Script
from zot.providers.lab.shell import shell_of

_REMEMBERED = 4096


class Cue(msgspec.Struct, frozen=True):
    """The reply that answers a request, and where it stands in the script. ``reply`` counts from 1."""

    directives: list[d.Directive]
    prompt: str
    scene: str
    reply: int
    replies: int


class _Chosen(msgspec.Struct, frozen=True):
    """A scene, the text that chose it, and the replies since."""

    scene: Scene
    replies: tuple[Reply, ...]
    values: dict[str, str]
    said: UserText


class Stage:
    """Plays one script.

    In a script with scenes the conversation itself says where it is: the user's newest text that matches a specific
    scene chooses it, the replies since then the position; texts that match only a catch-all (reminders that agents
    add between tool results) leave the scene alone. So conversations cannot disturb each other, and a scene
    continues after a restart. All that is remembered is how often a request has failed, because the same request
    comes again. A linear script is a tape: every request takes the next reply.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._position = 0
        self._failures: dict[int, int] = {}

    def reply(self, ask: Ask, fingerprint: Callable[[], int]) -> Cue:
        """Return what answers ``ask``; requests with the same ``fingerprint`` are tries of the same request.

        The fingerprint is taken only if the scene has failures. Raise ConfigError if the script has no answer.
        """
        if self.script.linear:
            return self._next_on_tape(ask)
        chosen = self._scene(ask)
        replies, values = chosen.replies, chosen.values
        request = fingerprint() if any(reply.fails for reply in replies) else 0
        failures = self._failures.pop(request, 0)
        reply = _pick(replies, values, chosen.said.turns, failures)
        if reply is None:
            raise ConfigError(f"{self.script.name} has no reply left: its scene has {_counted(replies)}")
        if reply.fails:
            self._remember(request, failures + 1)
        scene = f"{chosen.scene.title} ({self.script.name}:{chosen.scene.number})"
        return _cue(reply, replies, values, chosen.said.text, scene)

    def _next_on_tape(self, ask: Ask) -> Cue:
        replies = self.script.scenes[0].replies
        left = self._position
        for reply in replies:
            times = reply.times({})
            if times is None or left < times:
                self._position += 1
                return _cue(reply, replies, {}, ask.prompt.text, f"tape ({self.script.name})")
            left -= times
        raise ConfigError(f"{self.script.name} has no reply left: it has {_counted(replies)}")

    def _scene(self, ask: Ask) -> _Chosen:
        """Return the scene that plays. Raise ConfigError if there is none."""
        prompt, general, replaced = ask.prompt, None, -1
        for said in ask.texts:
            found = self._match(said, ask)
            # A prompt that got no answer stays in the conversation: its failures are not for the prompt after it.
            failed = said.turns == replaced and found is not None and found.replies[0].fails
            if found is not None and found.scene.specific and not failed:
                return found
            if said is prompt:
                general = found
            if not _is_markup(said.text):
                replaced = said.turns
        if general is None:
            raise ConfigError(f"{self.script.name} has no scene for the prompt {prompt.text[:80]!r}")
        return general

    def _match(self, said: UserText, ask: Ask) -> _Chosen | None:
        """Return the first scene that matches a text; None if there is none."""
        text = said.text
        first, *_ = text.split(None, 1) or [""]
        for scene in self.script.scenes:
            if scene.word is not None and scene.word != first:
                continue  # Most are others.
            groups = scene.match(text, tools=ask.tools)
            if groups is not None:
                shell = shell_of(ask.tools)
                about = {"chars": str(len(text)), "model": ask.model, "shell": shell.name if shell else "bash"}
                values = {**groups, **about}
                return _Chosen(scene, *_inner(scene.replies, values), said)
        return None

    def _remember(self, request: int, failures: int) -> None:
        self._failures[request] = failures
        if len(self._failures) > _REMEMBERED:
            del self._failures[next(iter(self._failures))]


def _cue(reply: Reply, replies: tuple[Reply, ...], values: dict[str, str], prompt: str, scene: str) -> Cue:
    number = next(number for number, each in enumerate(replies, 1) if each is reply)
    return Cue(reply.directives(values), prompt, scene, number, len(replies))


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


def _is_markup(text: str) -> bool:
    """True for what agents add to a prompt: <system-reminder>, <environment_context> and the like."""
    return text.lstrip().startswith("<")


def _counted(replies: tuple[Reply, ...]) -> str:
    return f"{len(replies)} {'reply' if len(replies) == 1 else 'replies'}, and each request takes one"
