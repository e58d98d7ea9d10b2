"""Conversations with the dashboard in a real browser. They take a minute or two: `make web-test` runs them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from browser import Browser, browsing
from serve.web.face import Face
from serve.web.pages import dashboard

collect_ignore_glob = [] if os.environ.get("ZOT_WEB") == "all" else ["test_*.py"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with dashboard(tmp_path_factory.mktemp("dashboard") / "home") as face:
        yield face
