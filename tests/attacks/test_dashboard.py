"""Attacks on the dashboard: foreign pages, rebound names, stolen links, frames, cookies on requests of other pages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from serve.web.face import Answer, Face, faced
from zot.config.pairing import CODE_S, open_pairing
from zot.config.tokens import path_in, read_scoped, revoke, scoped_path_beside

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with faced(tmp_path_factory.mktemp("dashboard") / "home") as face:
        yield face


def origin(face: Face) -> str:
    return f"http://127.0.0.1:{face.port}"


def code_for(face: Face, *, name: str = "", now: float | None = None) -> str:
    return open_pairing(
        path_in(face.daemon.place.data_dir), name=name, roles=("view",), now=time.time() if now is None else now
    )


async def pair(face: Face, code: str, host: str | None = None, **headers: str) -> Answer:
    told = {"Origin": origin(face), "Content-Type": "application/json", "X-Zot-Page": "1"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    told = {name: value for name, value in told.items() if value}
    return await face.ask("POST", "/web/pair", host=host, body=json.dumps({"code": code}).encode(), headers=told)


async def cookie(face: Face, name: str = "") -> str:
    told = await pair(face, code_for(face, name=name))
    assert told.status == 200
    return told.headers["set-cookie"].partition(";")[0]


async def upgraded(face: Face, headers: Mapping[str, str], host: str | None = None, path: str = "/web/ws") -> int:
    """Return the status of a WebSocket's handshake; 101 if it was opened."""
    options = {"additional_headers": headers}
    if host is not None:
        options["additional_headers"] = {**headers, "Host": host}
    try:
        async with face.connected(path, **options) as client:
            assert "result" in await client.call("initialize")
    except InvalidStatus as problem:
        return problem.response.status_code
    return 101


async def test_the_cookie_is_http_only(face: Face) -> None:
    told = await pair(face, code_for(face))
    parts = {one.strip().partition("=")[0].lower() for one in told.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite", "path", "max-age"} < parts
    assert "samesite=strict" in told.headers["set-cookie"].lower()
    assert "Path=/web" in told.headers["set-cookie"]
    stored = Path(scoped_path_beside(path_in(face.daemon.place.data_dir))).read_text()
    assert told.headers["set-cookie"].partition("=")[2].partition(";")[0] not in stored
    assert "zot_" not in told.body.decode()


async def test_a_code_counts_once_even_for_concurrent_requests(face: Face) -> None:
    code = code_for(face)
    told = await asyncio.gather(*(pair(face, code) for _ in range(8)))
    assert sorted(one.status for one in told) == [200] + [401] * 7
    assert [one.headers.get("set-cookie", "") != "" for one in told].count(True) == 1


async def test_an_expired_or_invented_code_is_refused(face: Face) -> None:
    for code in (code_for(face, now=time.time() - CODE_S - 1), "x" * 32, ""):
        assert (await pair(face, code)).status == 401
    assert (await face.ask("POST", "/web/pair", body=b"[" * 4000, headers={
        "Origin": origin(face), "Content-Type": "application/json", "X-Zot-Page": "1"})).status == 400  # fmt: skip
    for code in ("x" * 5000, "\ud800"):
        assert (await pair(face, code)).status == 400


@pytest.mark.parametrize("headers", [
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": ""}, {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"}, {"Sec_Fetch_Site": "none"}, {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://127.0.0.1"}, {"X_Zot_Page": ""}, {"X_Zot_Page": "0"},
])  # fmt: skip
async def test_a_foreign_page_cannot_pair_with_a_valid_code(face: Face, headers: dict[str, str]) -> None:
    code = code_for(face)
    assert (await pair(face, code, **headers)).status == 403
    assert (await pair(face, code)).status == 200, "the code is still there for its owner"


async def test_a_form_of_a_foreign_page_cannot_pair(face: Face) -> None:
    code = code_for(face)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert (await pair(face, code, Content_Type=kind)).status == 415
    assert (await face.ask("GET", f"/web/pair?code={code}", headers={"Origin": origin(face)})).status == 405


async def test_a_name_that_was_rebound_to_this_machine_reaches_nothing(face: Face) -> None:
    mine = await cookie(face)
    evil = {"Origin": "http://evil.example", "Cookie": mine}
    for path in ("/web/", "/web/device", "/web/pair"):
        assert (await face.ask(path=path, host="evil.example", headers=evil)).status == 421
    assert await upgraded(face, evil, host="evil.example") == 421


async def test_a_cookie_counts_only_from_our_own_page(face: Face) -> None:
    mine = await cookie(face)
    own = {"Cookie": mine, "Origin": origin(face), "X-Zot-Page": "1"}
    assert await upgraded(face, own) == 101
    assert await upgraded(face, {**own, "Sec-Fetch-Site": "same-origin"}) == 101
    for wrong in (
        {"Cookie": mine, "X-Zot-Page": "1"},
        {**own, "Origin": "http://evil.example"},
        {**own, "Origin": "null"},
        {**own, "Origin": "http://localhost:1"},
        {**own, "Sec-Fetch-Site": "cross-site"},
        {**own, "Sec-Fetch-Site": "same-site"},
    ):
        assert await upgraded(face, wrong) == 403
        assert (await face.ask("POST", "/web/unpair", headers=wrong)).status == 403
    assert (await face.ask("POST", "/web/unpair", headers={"Cookie": mine, "Origin": origin(face)})).status == 403
    assert (await face.ask(path="/web/device", headers={"Cookie": mine})).status == 403
    assert (await face.ask(path="/web/device", headers={"Cookie": mine, "Sec-Fetch-Site": "same-origin"})).status == 200


async def test_a_cookie_counts_nowhere_else(face: Face) -> None:
    own = {"Cookie": await cookie(face), "Origin": origin(face)}
    for path in ("/", "/ws", "/ext?session=a&name=b"):
        assert await upgraded(face, own, path=path) == 401
    assert (await face.ask(path="/metrics", headers=own)).status == 401


async def test_a_token_of_another_kind_is_not_a_cookie(face: Face) -> None:
    name = (await cookie(face)).partition("=")[0]
    for value in (face.token, "", "x"):
        assert await upgraded(face, {"Cookie": f"{name}={value}", "Origin": origin(face)}) == 401
    mine = await cookie(face)
    assert await upgraded(face, {"Cookie": f"{mine}; {mine}", "Origin": origin(face)}) == 401


async def test_a_revoked_cookie_is_refused_and_the_page_can_sign_out(face: Face) -> None:
    mine = await cookie(face, "gone")
    revoke(path_in(face.daemon.place.data_dir), "web.gone")
    own = {"Cookie": mine, "Origin": origin(face), "X-Zot-Page": "1"}
    assert await upgraded(face, own) == 401
    own["Cookie"] = await cookie(face, "left")
    told = await face.ask("POST", "/web/unpair", headers=own)
    assert (told.status, json.loads(told.body)) == (200, {"device": "web.left"})
    assert "Max-Age=0" in told.headers["set-cookie"]
    assert await upgraded(face, own) == 401
    assert not {"web.left", "web.gone"} & {
        one.name for one in read_scoped(scoped_path_beside(path_in(face.daemon.place.data_dir)))
    }


async def test_every_answer_refuses_to_be_framed_and_to_run_foreign_code(face: Face) -> None:
    page = await face.ask(path="/web/")
    asset = page.body.decode().partition('src="')[2].partition('"')[0]
    for path in ("/web/", f"/web/{asset}", "/web/assets/0000000000000000/main.js"):
        told = await face.ask(path=path)
        policy = dict(one.strip().partition(" ")[::2] for one in told.headers["content-security-policy"].split(";"))
        assert policy == {
            "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "img-src": "'self' blob:",
            "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
            "require-trusted-types-for": "'script'", "trusted-types": "'none'",
        }  # fmt: skip
        assert told.headers["x-frame-options"] == "DENY"
        assert told.headers["x-content-type-options"] == "nosniff"
        assert told.headers["referrer-policy"] == "no-referrer"
        assert told.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in told.headers


@pytest.mark.parametrize("name", ["../gate.py", "..%2fgate.py", "index.html", "__init__.py", "%2e%2e/asgi.py", ""])
async def test_no_other_file_is_served(face: Face, name: str) -> None:
    page = await face.ask(path="/web/")
    folder = page.body.decode().partition('src="')[2].rpartition("/main.js")[0]
    assert (await face.ask(path=f"/web/{folder}/{name}")).status == 404


async def test_the_audit_log_has_pairings_and_no_secret(face: Face) -> None:
    code = code_for(face, name="noted")
    told = await pair(face, code)
    secret = told.headers["set-cookie"].partition("=")[2].partition(";")[0]
    lines = face.audited()
    assert [one["token"] for one in lines if one["event"] == "paired"][-1] == "web.noted"
    assert code not in json.dumps(lines)
    assert secret not in json.dumps(lines)
