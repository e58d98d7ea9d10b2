"""Which attacks are left to `make attacks`, and which of them need root."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from optional import MISSING

Test = TypeVar("Test", bound=Callable[..., object])

#: Which run of `make attacks` this is: "all", or "unprivileged" for the one after that of root. "" in `make test`.
RUN = os.environ.get("ZOT_ATTACKS", "")


def thorough(test: Test | None) -> Test | None:
    """Collect a test only with `make attacks`: it is slow, or starts many processes."""
    return test if RUN else None


def needs_root(test: Test | None) -> Test | None:
    """Collect a test of `make attacks` only for root. If root never runs it, the report names it, and CI fails."""
    if not RUN or test is None:
        return None
    if os.geteuid() == 0:
        return test
    if RUN != "unprivileged":
        MISSING.setdefault("root", []).append(test.__name__)
    return None


def needs_no_rights(test: Test | None) -> Test | None:
    """Collect a test only for a user without rights. Where root runs the suite, `make attacks` does so as one, too."""
    return None if os.geteuid() == 0 else test
