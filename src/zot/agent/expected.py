"""What the final answer must look like, if somebody said so."""

from __future__ import annotations

import msgspec

from zot.agent.output_schema import Schema, problems, unfenced
from zot.agent.transcript import Transcript
from zot.errors import AnswerRejected
from zot.messages import text_of

#: How often the model may try again.
_CHANCES = 2


class Expected:
    """An answer that is JSON and fits a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @property
    def instruction(self) -> str:
        """What the system prompt says about it."""
        text = msgspec.json.encode(self._schema).decode()
        return (
            "Your last message must be one JSON value and nothing else: no words around it, no code fence. "
            f"It must be valid against this JSON Schema:\n{text}"
        )

    def complaint(self, transcript: Transcript, *, made: int) -> str | None:
        """Return what to tell the model about its answer; None if it is as it must be.

        Raise AnswerRejected when it has been told often enough; ``made`` is how often that was.
        """
        wrong = self._wrong(text_of(transcript.messages[-1].content) if len(transcript) else "")
        if wrong is None:
            return None
        if made >= _CHANCES:
            raise AnswerRejected(f"the answer is not as the output schema wants it: {wrong}")
        return f"That is not the answer that is wanted: {wrong}. Answer again, with the corrected JSON value alone."

    def _wrong(self, text: str) -> str | None:
        try:
            value = msgspec.json.decode(unfenced(text))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
            return f"it is not JSON ({problem})"
        return "; ".join(map(str, problems(self._schema, value))) or None
