"""One question at a time, in the place of the composer."""

from __future__ import annotations

import asyncio
from typing import Any

from zot.tui.composer import Composer
from zot.tui.question import Form, Question


class Asking:
    """Shows questions one after the other, and gives the focus back."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._turn = asyncio.Lock()

    async def put(self, question: Question | Form) -> Any:
        """Show a question, after those that came before, and return its answer."""
        async with self._turn:
            if not question.answer.done():
                screen = self._composer.screen
                before = screen.focused
                await screen.mount(question, before=self._composer)
                self._composer.display = False  # Small screens have no room for both.
                await question.answer
                self._composer.display = True
                screen.set_focus(before if before is not None and before.is_attached else self._composer.editor)
                await question.remove()
            return question.answer.result()
