"""Permission modes: named policies that the client of an open session switches between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from zot.agent.approvals import Approvals
from zot.config.policy import Action, Nowhere, PathSubject, Policy, Rule, Subject
from zot.errors import UserError

if TYPE_CHECKING:
    from zot.session.session import Session

_READING: Final = ("read=allow", "skill=allow")


class Mode(msgspec.Struct, frozen=True):
    """A mode. ``rules`` apply to calls that the configured policy does not deny; None keeps that policy as it is."""

    id: str
    name: str
    description: str
    rules: Sequence[str] | None


CONFIGURED: Final = Mode("configured", "As configured", "The policy of the command line and config.toml.", None)
ALLOW_ALL: Final = Mode("allow_all", "Allow all", "Run every tool without asking.", ("*=allow",))
MODES: Final = (
    CONFIGURED,
    Mode("ask", "Ask", "Read freely; ask before anything else.", (*_READING, "*=ask")),
    Mode(
        "accept_edits",
        "Accept edits",
        "Read, write and edit freely; ask before commands.",
        (*_READING, "write=allow", "edit=allow", "*=ask"),
    ),
    ALLOW_ALL,
    Mode(
        "plan",
        "Plan",
        "Read and search only; deny every change.",
        (*_READING, "bash:@search=allow", "bash:@list=allow", "bash:@git-read=allow", "*=deny"),
    ),
)


class _ModePolicy(Policy, frozen=True, kw_only=True):
    """The policy of a mode. A call that the policy ``below`` denies stays denied."""

    below: Policy

    def action(self, tool: str, subject: Subject, names: Sequence[PathSubject | Nowhere] = ()) -> Action:
        return "deny" if self.below.action(tool, subject, names) == "deny" else super().action(tool, subject, names)


class SessionModes:
    """The modes of one session and the current one, which is not recorded. ``initial`` is the id of the first."""

    def __init__(self, session: Session, initial: str | None = None) -> None:
        approver = session.agent.approver
        assert isinstance(approver, Approvals)
        self._approver = approver
        self._configured: Policy = approver.policy
        is_configured = bool(approver.policy.rules)
        #: The modes to choose from.
        self.known: Sequence[Mode] = MODES if is_configured else [mode for mode in MODES if mode is not CONFIGURED]
        self.current = CONFIGURED if is_configured else ALLOW_ALL
        if initial is not None:
            self.use(initial)

    def use(self, mode_id: str) -> None:
        """Judge later tool calls by another mode. Raise UserError if there is no such mode."""
        mode = next((one for one in self.known if one.id == mode_id), None)
        if mode is None:
            raise UserError(f"there is no mode {mode_id!r}; there are: {', '.join(one.id for one in self.known)}")
        self.current = mode
        if mode.rules is None or (mode is ALLOW_ALL and not self._configured.rules):
            self._approver.policy = self._configured
        else:
            rules = tuple(Rule.parse(text) for text in mode.rules)
            self._approver.policy = _ModePolicy(rules=rules, private=self._configured.private, below=self._configured)
