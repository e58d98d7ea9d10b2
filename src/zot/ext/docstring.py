"""What a docstring says of a function and of each parameter, in a section ``Args:`` or as ``:param name:``."""

from __future__ import annotations

from textwrap import dedent
from typing import Final

_PARAMETERS: Final = ("Args:", "Arguments:", "Parameters:")
_SECTIONS: Final = (*_PARAMETERS, "Returns:", "Raises:", "Yields:", "Example:", "Examples:")


class Documented:
    """The description is what stands before the first section; ``parameters`` has what is said about each by name."""

    def __init__(self, text: str) -> None:
        first, _, rest = text.strip().partition("\n")
        lines = [first, *dedent(rest).rstrip().split("\n")]
        ends = [at for at, line in enumerate(lines) if line.rstrip() in _SECTIONS or line.startswith(":")]
        self.description = "\n".join(line.rstrip() for line in lines[: min(ends, default=len(lines))]).strip()
        self.parameters: dict[str, str] = {}
        self._name, self._depth = "", 0
        section = ""
        for line in lines[min(ends, default=len(lines)) :]:
            if line.rstrip() in _SECTIONS:
                section, self._name, self._depth = line.rstrip(), "", 0
            elif section in _PARAMETERS:
                self._take_argument(line)
            elif not section:
                self._take_field(line)

    def _take_argument(self, line: str) -> None:
        """Take a line of a section: one that is indented no more than the first begins a parameter."""
        depth = len(line) - len(line.lstrip())
        self._depth = self._depth or depth
        head, colon, said = line.strip().partition(":")
        name = head.partition("(")[0].strip()
        if depth == self._depth and colon and name.isidentifier():
            self._begin(name, said)
        else:
            self._go_on(line)

    def _take_field(self, line: str) -> None:
        """Take a line of a list of fields: ``:param name: text``, ``:param type name: text``, or more of its text."""
        if not line.startswith(":"):
            self._go_on(line)
            return
        field, _, said = line[1:].partition(":")
        words = field.split()
        self._name = ""
        if len(words) > 1 and words[0] == "param":
            self._begin(words[-1], said)

    def _begin(self, name: str, said: str) -> None:
        self._name = name
        self.parameters[name] = said.strip()

    def _go_on(self, line: str) -> None:
        if self._name and line.strip():
            self.parameters[self._name] = f"{self.parameters[self._name]} {line.strip()}".strip()
