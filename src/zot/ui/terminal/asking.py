"""One question at a time, in the place of the composer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zot.ui.terminal.composer_part import Composer
from zot.ui.terminal.order import DEAD_S
from zot.ui.terminal.questions import Question

if TYPE_CHECKING:
    from zot.ui.terminal.form import Form

#: A question that nobody asked for has the keys only when nobody has typed for so long.
_PAUSE_S = 0.4


class Asking:
    """Shows questions one after the other, and gives the focus back."""

    def __init__(self, composer: Composer, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` has the seconds by which it is told if somebody types."""
        self._composer = composer
        self._clock = clock
        self._turn = asyncio.Lock()
        self._shown: Question | Form | None = None
        #: Those that are shown, or wait to be.
        self._open: list[Question | Form] = []
        self._keyed = -_PAUSE_S

    def keyed(self) -> None:
        """Somebody has pressed a key."""
        self._keyed = self._clock()

    async def put(self, question: Question | Form) -> Any:
        """Show a question, after those that came before, and return its answer."""
        self._open.append(question)
        try:
            return await self._put(question)
        finally:
            self._open.remove(question)

    async def _put(self, question: Question | Form) -> Any:
        async with self._turn:
            if not question.answer.done():
                screen, self._shown = self._composer.screen, question
                before = screen.focused  # It may have to make room, and then Textual gives the focus to others.
                await screen.mount(question, before=self._composer)
                if isinstance(question, Question) and question.is_sudden:
                    await self._pause(question)
                if not question.answer.done():
                    await self._listen(question)
                self._shown = None
                await question.remove()
                screen.set_focus(before if before is not None and before.is_attached else self._composer.editor)
            return question.answer.result()

    async def _listen(self, question: Question | Form) -> None:
        """Let a question have the keys until it is answered."""
        self._composer.display = False  # Small screens have no room for both.
        question.listen()
        await question.answer
        self._composer.display = True

    def fit(self) -> None:
        """There is more or less room."""
        if isinstance(self._shown, Question) and self._shown.is_mounted:
            self._shown.fit()

    def overtake(self) -> None:
        """It goes on, here or elsewhere: nobody needs to say how."""
        for question in self._open:
            if isinstance(question, Question) and question.sudden:
                question.close(None)

    def refuse(self) -> bool:
        """Leave the question that is shown; False if none is."""
        shown = self._shown
        if shown is not None:
            shown.close(None)
        return shown is not None

    async def _pause(self, question: Question) -> None:
        """Wait until what is typed cannot be meant for anything but the question."""
        at = self._clock() + DEAD_S
        while not question.answer.done() and (left := max(at, self._keyed + _PAUSE_S) - self._clock()) > 0:
            await asyncio.wait([question.answer], timeout=left)
