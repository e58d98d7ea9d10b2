"""Tokens with roles: a token allows its roles' methods, in the sessions to which it is bound, until it is revoked."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from daemons import running
from serve.daemon.test_methods import CALLS
from serve.web.face import PATIENCE_S, Client, Face, faced, until
from zot.config import tokens
from zot.config.tokens import make_scoped, path_in, revoke
from zot.errors import ConfigError, UserError
from zot.serve.web import Tokens
from zot.wire.daemon import METHODS, ROLES, Grant, capabilities, find
from zot.wire.jsonrpc import METHOD_NOT_FOUND, NOT_OWNED, RpcError

ASKS: dict[str, Any] = {"policy": ("bash=ask", "*=allow")}


def issue(face: Face, *roles: str, sessions: list[str] | None = None, expires: float | None = None) -> str:
    """Make a token named after its roles."""
    name = "-".join(roles) + ("" if sessions is None else "@" + sessions[0].replace(":", "."))
    return make_scoped(path_of(face), name, roles=roles, sessions=sessions, expires=expires, now=0.0)


def path_of(face: Face) -> str:
    return path_in(str(face.home / "data"))


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def client_of(face: Face, token: str) -> AsyncIterator[Client]:
    async with face.connected(additional_headers=bearing(token)) as client:
        await client.call("initialize", {"protocolVersion": 1})
        yield client


async def code_of(client: Client, method: str, **params: Any) -> int | None:
    """Return the code of the error that answers a call; None if it succeeds."""
    answer = await client.call(method, params)
    return answer["error"]["code"] if "error" in answer else None


async def waiting(client: Client, session: str, prompt: str = "!bash echo hi") -> str:
    """Prompt without waiting for the end, and return the id of the question that the run asks."""
    await client.socket.send(
        json.dumps({"jsonrpc": "2.0", "id": "run", "method": "session/prompt",
                    "params": {"sessionId": session, "prompt": prompt}})
    )  # fmt: skip
    while True:
        frame = await client.read()
        if frame.get("params", {}).get("type") == "approval_request":
            return str(frame["params"]["requestId"])


async def closed(client: Client) -> None:
    """Wait until the daemon has closed a connection."""
    with suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await client.socket.recv()


def test_the_role_of_each_method_is_repeated_here() -> None:
    only = {role: {*capabilities(Grant("t", frozenset({role})))} - {"initialize"} for role in ROLES}
    assert only["approve"] == {"session/approve", "session/answer", "session/forget"}
    assert only["self_approve"] == only["extend"] == set()
    assert only["view"] == {
        "session/attach", "session/detach", "session/list", "session/list-acp", "session/messages", "session/state",
        "session/context", "sessions/watch",
        "session/models", "session/allowed", "session/commands", "session/extensions", "session/git_branch",
        "session/image", "agents/list", "agents/status", "audit/recent",
        "status", "health", "tui/list", "cost/query", "logs/subscribe", "config/list", "config/sections",
        "config/templates",
    }  # fmt: skip
    local = {one.name for one in METHODS.values() if one.local}
    assert only["prompt"] == {*METHODS} - local - only["view"] - only["approve"] - {"initialize"}


@pytest.mark.parametrize("role", ROLES)
async def test_no_method_runs_for_a_token_without_its_role(role: str, tmp_path: Path) -> None:
    async with faced(tmp_path / "home", policy=("*=allow",)) as face:
        async with face.connected() as owner, client_of(face, issue(face, role)) as client:
            await owner.begin("s")
            refused, expected = set(), set()
            for name, params, _ in CALLS:
                method = METHODS[name]
                if method.local:
                    assert await code_of(client, name, **params) == METHOD_NOT_FOUND
                elif method.role not in (role, "any"):
                    expected.add(name)
                    if await code_of(client, name, **params) == NOT_OWNED:
                        refused.add(name)
            assert refused == expected
            # As a notification it does not run either.
            if role != "prompt":
                said = {"jsonrpc": "2.0", "method": "session/prompt", "params": {"sessionId": "s", "prompt": "!echo x"}}
                await client.socket.send(json.dumps(said))
                await code_of(client, "initialize", protocolVersion=1)
            state = (await owner.call("session/messages", {"sessionId": "s"}))["result"]
            assert state["total"] == 0


async def test_the_local_socket_has_every_role(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.stranger()
        answer = await caller.ask("initialize", protocolVersion=1)
        assert answer["result"]["capabilities"] == [*METHODS]


@pytest.mark.parametrize("role", [role for role in ROLES if role != "extend"])
async def test_a_token_that_may_only_look_cannot_connect_an_extension(role: str, tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face, face.connected() as owner:
        await owner.begin("s")
        with pytest.raises(InvalidStatus) as refused:
            async with face.connected("/ext?session=s&name=afar", additional_headers=bearing(issue(face, role))):
                pass
        assert refused.value.response.status_code == 403


async def test_the_pages_need_roles_too(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face:
        every = {role: bearing(issue(face, role)) for role in ROLES}
        bound = bearing(issue(face, "view", "prompt", sessions=["host:mine"]))
        metrics = {role: (await face.ask("GET", "/metrics", headers=one)).status for role, one in every.items()}
        assert metrics == {role: 200 if role == "view" else 403 for role in ROLES}
        assert (await face.ask("GET", "/metrics", headers=bound)).status == 403
        request = {"request_id": "r", "session_id": "theirs", "prompt": "!echo hi"}
        responses = {role: (await face.respond(request, **one)).status for role, one in every.items()}
        assert responses == {role: 200 if role == "prompt" else 403 for role in ROLES}
        assert (await face.respond(request, **bound)).status == 403
        assert (await face.respond({**request, "session_id": "mine"}, **bound)).status == 200


async def test_a_token_that_is_bound_to_a_session_does_not_reach_the_hosted_one_of_that_id(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face:
        bound = bearing(issue(face, "prompt", sessions=["42"]))
        assert (
            await face.respond({"request_id": "r", "session_id": "42", "prompt": "!echo hi"}, **bound)
        ).status == 403


async def test_a_token_cannot_approve_its_own_runs(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", **ASKS) as face:
        two = issue(face, "view", "prompt", "approve")
        approver = issue(face, "view", "approve")
        async with client_of(face, two) as client, client_of(face, approver) as other:
            await client.call("session/new", {"agentAlias": "default", "sessionId": "s"})
            request = await waiting(client, "s")
            answer = {"sessionId": "s", "requestId": request}
            for decision in ("allow_once", "allow_always"):
                assert await code_of(client, "session/approve", **answer, decision=decision) == NOT_OWNED
            assert await code_of(other, "session/approve", **answer, decision="allow_once") is None
            # Who steers another's run approves nothing of it either.
        async with client_of(face, two) as client, face.connected() as owner:
            await owner.begin("t")
            await owner.socket.send(json.dumps({
                "jsonrpc": "2.0", "id": "run", "method": "session/prompt",
                "params": {"sessionId": "t", "prompt": "!script call bash {\"command\":\"true\"} ;; --- ;; say done"},
            }))  # fmt: skip
            pool = face.daemon.sessions.pool
            await until(lambda: pool.session("t").approvals.pending is not None)  # type: ignore[union-attr]
            session = pool.session("t")
            assert session is not None
            assert session.approvals.pending is not None
            request = session.approvals.pending.id
            assert "default" in session.worker.approvals.prompted_by
            assert await code_of(client, "session/approve", sessionId="t", requestId=request, decision="reject") is None


async def test_a_token_that_steers_a_run_counts_as_its_author(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", **ASKS) as face:
        two = issue(face, "view", "prompt", "approve")
        async with client_of(face, two) as client, face.connected() as owner:
            await owner.begin("s")
            request = await waiting(
                owner, "s", '!script call bash {"command":"true"} ;; --- ;; call bash {"command":"id"}'
            )
            steer = {"jsonrpc": "2.0", "method": "session/steer",
                     "params": {"sessionId": "s", "prompt": "go on"}}  # fmt: skip
            await client.socket.send(json.dumps(steer))
            assert (
                await code_of(client, "session/approve", sessionId="s", requestId=request, decision="allow_once")
                is None
            )
            session = face.daemon.sessions.pool.session("s")
            assert session is not None
            await until(lambda: session.approvals.pending is not None and session.approvals.pending.id != request)
            assert session.approvals.pending is not None
            second = {"sessionId": "s", "requestId": session.approvals.pending.id, "decision": "allow_once"}
            assert await code_of(client, "session/approve", **second) == NOT_OWNED


async def test_a_restart_keeps_the_author_of_a_run(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", **ASKS) as face:
        two = issue(face, "view", "prompt", "approve")
        async with client_of(face, two) as client:
            await client.call("session/new", {"agentAlias": "default", "sessionId": "s"})
            request = await waiting(client, "s")
    async with faced(tmp_path / "home", **ASKS) as face:
        async with client_of(face, two) as client:
            await client.call("session/attach", {"sessionId": "s"})
            answer = {"sessionId": "s", "requestId": request, "decision": "allow_once"}
            assert await code_of(client, "session/approve", **answer) == NOT_OWNED


async def test_a_role_allows_a_token_to_approve_its_own_runs(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", **ASKS) as face:
        async with client_of(face, issue(face, "view", "prompt", "approve", "self_approve")) as client:
            await client.call("session/new", {"agentAlias": "default", "sessionId": "s"})
            request = await waiting(client, "s")
            answer = {"sessionId": "s", "requestId": request, "decision": "allow_once"}
            assert await code_of(client, "session/approve", **answer) is None


async def test_a_bound_token_does_not_replace_a_session_by_one_without_a_lock(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", **ASKS) as face, face.connected() as owner:
        await owner.begin("mine")
        async with client_of(face, issue(face, "view", "prompt", sessions=["mine"])) as client:
            assert "session/delete" not in capabilities(Grant("t", frozenset({"prompt"}), frozenset({"mine"})))
            assert await code_of(client, "session/delete", sessionId="mine") == NOT_OWNED
            assert await code_of(client, "session/close", sessionId="mine") is None
        assert await code_of(owner, "session/delete", sessionId="mine") is None


async def test_a_bound_token_sees_its_sessions_only(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", policy=("*=allow",)) as face:
        token = issue(face, *ROLES, sessions=["mine"])
        async with face.connected() as owner, client_of(face, token) as client:
            await owner.begin("theirs")
            await owner.prompt("theirs", "!echo secret words")
            await owner.call("session/fork", {"sessionId": "theirs", "newSessionId": "mine"})
            for name, params, _ in CALLS:
                if "sessionId" in params and not METHODS[name].local:
                    assert await code_of(client, name, **{**params, "sessionId": "theirs"}) == NOT_OWNED, name
                    assert await code_of(client, name, **{**params, "sessionId": "nosuch"}) == NOT_OWNED, name
            assert await code_of(client, "session/new", agentAlias="default") == NOT_OWNED
            assert await code_of(client, "session/fork", sessionId="mine", newSessionId="other") == NOT_OWNED
            assert await code_of(client, "session/fork", sessionId="mine") == NOT_OWNED
            assert await code_of(client, "logs/subscribe") == NOT_OWNED
            listed = (await client.call("session/list", {"query": "secret"}))["result"]["sessions"]
            assert [(one["sessionId"], "parentId" in one) for one in listed] == [("mine", False)]
            status = (await client.call("status"))["result"]
            assert (status["sessionIds"], status["activeSessions"], status["clients"]) == (["mine"], 1, 1)
            assert len((await client.call("tui/list"))["result"]["tuis"]) == 1
            agents = (await client.call("agents/list"))["result"]["agents"]
            assert [(one["liveSessions"], one["persistedSessions"]) for one in agents] == [(1, 1)]
            with pytest.raises(InvalidStatus) as refused:
                async with face.connected("/ext?session=theirs&name=afar", additional_headers=bearing(token)):
                    pass
            assert refused.value.response.status_code == 404
            assert await code_of(client, "sessions/watch") is None
            await owner.prompt("theirs", "!echo more")
            await owner.prompt("mine", "!echo more")
            await code_of(client, "health")
            assert {one.get("sessionId") for one in client.updates} == {"mine"}


async def test_a_token_without_view_gets_answers_and_no_updates(tmp_path: Path) -> None:
    async with faced(tmp_path / "home", policy=("*=allow",)) as face:
        async with client_of(face, issue(face, "prompt")) as client, face.connected() as owner:
            await client.call("session/new", {"agentAlias": "default", "sessionId": "s"})
            answer = await client.prompt("s", "!echo hi")
            assert answer["result"]["content"] == "hi"
            await owner.begin("s")
            await owner.prompt("s", "!echo theirs")
            await code_of(client, "initialize", protocolVersion=1)
            assert client.updates == []


@pytest.mark.parametrize("how", ["revoked", "over"])
async def test_a_token_that_ends_loses_its_connections(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with faced(tmp_path / "home", policy=("*=allow",)) as face:
        now = time.time()
        token = issue(face, *ROLES, expires=now + 3600 if how == "over" else None)
        async with face.connected() as owner, client_of(face, token) as client:
            session = await owner.begin("s")
            await client.call("session/attach", {"sessionId": session})
            async with face.connected(f"/ext?session={session}&name=afar", additional_headers=bearing(token)) as afar:
                if how == "over":
                    monkeypatch.setattr(Grant, "is_over", lambda grant, now: grant.expires is not None)
                else:
                    revoke(path_of(face), "-".join(ROLES))
                for one in (client, afar):
                    await closed(one)
        with pytest.raises(InvalidStatus) as refused:
            async with face.connected(additional_headers=bearing(token)):
                pass
        assert refused.value.response.status_code == 401
        async with face.connected() as owner:  # Others are not affected.
            await owner.begin("s")
        events = [one["event"] for one in face.audited() if one.get("token") == "-".join(ROLES)]
        assert events.count("revoked") == 2


async def test_a_request_right_after_the_revocation_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.serve.web.gate._CHECK_S", 3600)
    async with faced(tmp_path / "home", policy=("*=allow",)) as face:
        token = issue(face, "view", "prompt")
        async with client_of(face, token) as client, face.connected() as owner:
            await owner.begin("s")
            revoke(path_of(face), "view-prompt")
            with pytest.raises(ConnectionClosed):
                await client.prompt("s", "!echo hi")
            assert (await owner.call("session/messages", {"sessionId": "s"}))["result"]["total"] == 0


async def test_a_line_taken_out_of_the_token_file_ends_its_connections(tmp_path: Path) -> None:
    async with faced(tmp_path / "home") as face:
        async with face.connected() as client:
            await client.call("initialize", {"protocolVersion": 1})
            Path(path_of(face)).write_text("other:" + "x" * 40 + "\n")
            await closed(client)


def test_only_the_digest_of_a_token_is_stored_and_only_for_its_owner(tmp_path: Path) -> None:
    path = str(tmp_path / "data" / "token")
    token = make_scoped(path, "ci", roles=("view",), sessions=None, expires=None, now=0.0)
    stored = tmp_path / "data" / "tokens.json"
    assert token not in stored.read_text()
    assert token.removeprefix("zot_") not in stored.read_text()
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert not (tmp_path / "data" / "token").exists()
    known = Tokens(path)
    assert not (tmp_path / "data" / "token").exists(), "no token with all roles is made beside one with few"
    digest = json.loads(stored.read_text())["tokens"][0]["digest"]
    assert [known.bearer(one) for one in (token, digest, "", token[:-1])] == ["ci", None, None, None]
    stored.chmod(0o644)
    assert known.bearer(token) is None


def test_a_name_belongs_to_one_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    tokens.make(str(path))
    for name in ("default", "a b", "", "../x"):
        with pytest.raises(UserError):
            make_scoped(str(path), name, roles=("view",), sessions=None, expires=None, now=0.0)
    make_scoped(str(path), "ci", roles=("view",), sessions=None, expires=None, now=0.0)
    path.write_text("ci:" + "x" * 40 + "\n")
    with pytest.raises(ConfigError):
        Tokens(str(path))


def test_an_unknown_role_grants_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "token")
    token = make_scoped(path, "ci", roles=("operate", "root", "any", "view"), sessions=None, expires=None, now=0.0)
    grant = Tokens(path).grant(token)
    assert grant is not None
    assert grant.roles == {"view"}


def test_a_token_counts_until_its_end_date(tmp_path: Path) -> None:
    path, now = str(tmp_path / "token"), [99.0]
    known = Tokens(path, clock=lambda: now[0])
    token = make_scoped(path, "ci", roles=("view",), sessions=None, expires=100.0, now=0.0)
    grant = known.grant(token)
    assert grant is not None
    assert known.counts(grant)
    now[0] = 100.0
    assert known.grant(token) is None
    assert not known.counts(grant)


def test_a_connection_does_not_live_on_by_the_name_of_its_token(tmp_path: Path) -> None:
    """Revoked, and made anew with the same name: that is another token."""
    path = str(tmp_path / "token")
    known = Tokens(path)
    old = make_scoped(path, "ci", roles=("view", "prompt"), sessions=None, expires=None, now=0.0)
    grant = known.grant(old)
    assert grant is not None
    revoke(path, "ci")
    new = make_scoped(path, "ci", roles=("view", "prompt"), sessions=None, expires=None, now=0.0)
    assert not known.counts(grant)
    assert (known.grant(old), known.bearer(new)) == (None, "ci")


def test_a_method_needs_its_role_besides_every_other_check() -> None:
    """Not only where a token is bound to sessions."""
    for method in METHODS.values():
        if method.role in ROLES:
            with pytest.raises(RpcError, match=f"needs the role '{method.role}'|local socket only"):
                find(method.name, initialized=True, grant=Grant("t", frozenset(ROLES) - {method.role}))
