"""A client's requests, updates and memory, over connections that break. No I/O: the test is the daemon."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from zot.errors import AgentError, ConnectionLost, EpochChanged, PromptLost
from zot.events import AgentEvent, Done, Error, ExtNotify, TextDelta, UserMessage
from zot.messages import TextBlock
from zot.wire.daemon import Dialect
from zot.wire.daemon_client import Answer, Asked, DaemonPeer, UpdateListener
from zot.wire.jsonrpc import NULL, RpcError, encode_error, frame_too_large
from zot.wire.lines import MAX_LINE_BYTES
from zot.wire.updates import Updates


class Daemon:
    """The other side: reads the calls, and sends the given lines, in pieces of a given size."""

    def __init__(self, piece: int = 1 << 20) -> None:
        self.peer = DaemonPeer(name="test", version="1")
        self.answers: list[Answer] = []
        self._piece = piece

    def asked(self) -> list[tuple[str, dict[str, Any], int]]:
        """Return the calls since the last look: the method, the parameters and the number."""
        calls = [json.loads(line) for line in self.peer.taken().split(b"\n")[:-1]]
        return [(call["method"], call["params"], call["id"]) for call in calls]

    def say(self, *lines: bytes) -> None:
        data = b"".join(lines)
        for at in range(0, len(data), self._piece):
            self.peer.feed(data[at : at + self._piece])

    def answer(self, number: int, result: object) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")

    def refuse(self, number: int, code: int, data: object = None) -> None:
        error = {"code": code, "message": "no", "data": data}
        self.say(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode() + b"\n")

    def happen(self, seq: int, *events: AgentEvent, session: str = "s") -> None:
        self.say(Updates(session, Dialect.EVENTS).lines(seq, events))

    def greet(self, *features: str) -> None:
        """Connect, and answer `initialize`: with all features, or some."""
        self.peer.connected()
        [(method, params, number)] = self.asked()
        assert (method, params["features"]) == ("initialize", ["events", "prompt_ids", "stopping"])
        known = {"protocolVersion": 1, "serverVersion": "1", "serverPid": 1, "capabilities": []}
        self.answer(number, {**known, "features": features or params["features"]})

    def attached(self, *, after: int | None, last: int, epoch: int = 1, state: str = "idle") -> None:
        """Answer the single attach request."""
        [(method, params, number)] = self.asked()
        assert (method, params.get("after")) == ("session/attach", after)
        self.answer(number, {"sessionId": "s", "lastSeq": last, "epoch": epoch, "state": state})

    def follow(self, after: int | None = None) -> UpdateListener:
        """Subscribe a listener to the session."""
        self.peer.listen("s", listener := UpdateListener(after, lambda: None))
        return listener

    def prompt(self, text: str, prompt_id: str = "") -> tuple[Asked, int]:
        """Prompt the session; return the prompt and the number of its call."""
        asked = Asked(prompt_id or text, text, self.peer.following("s").cursor, lambda: None)
        self.peer.listen("s", asked)
        return asked, self.peer.ask("session/prompt", {"sessionId": "s", "prompt": text}, asked.answer)


@pytest.fixture(params=[1, 1 << 20], ids=["byte by byte", "whole"])
def daemon(request: pytest.FixtureRequest) -> Daemon:
    made = Daemon(request.param)
    made.greet()
    made.peer.attach("s", None, made.answers.append)
    made.attached(after=None, last=10)
    made.answers.clear()
    return made


def said(text: str, prompt_id: str | None = None) -> UserMessage:
    """Return the beginning of this prompt's turn, whose id is its text unless given."""
    return UserMessage((TextBlock(text),), "2026-01-31T12:00:00.000Z", text if prompt_id is None else prompt_id)


def test_answers_reach_their_callers_in_any_order(daemon: Daemon) -> None:
    heard: list[tuple[str, Answer]] = []
    daemon.peer.ask("status", {}, lambda answer: heard.append(("status", answer)))
    daemon.peer.ask("health", {}, lambda answer: heard.append(("health", answer)))
    (_, _, first), (_, _, second) = daemon.asked()
    daemon.answer(second, {"a": 1})
    daemon.refuse(first, -32603)
    daemon.answer(second, {"a": 2})
    assert heard[0] == ("health", msgspec.Raw(b'{"a": 1}'))
    assert isinstance(heard[1][1], RpcError)
    assert heard[1][1].code == -32603
    assert len(heard) == 2


def test_a_request_without_a_connection_waits_for_one() -> None:
    daemon = Daemon()
    daemon.peer.ask("status", {}, daemon.answers.append)
    assert daemon.asked() == []
    daemon.greet()
    [(method, _, number)] = daemon.asked()
    daemon.answer(number, 1)
    assert (method, daemon.answers) == ("status", [msgspec.Raw(b"1")])


def test_reads_are_retried_and_other_requests_fail(daemon: Daemon) -> None:
    lost: list[Answer] = []
    daemon.peer.ask("session/list", {}, daemon.answers.append)
    daemon.peer.ask("session/clear", {"sessionId": "s"}, lost.append)
    first = [method for method, _, _ in daemon.asked()]
    daemon.peer.broken()
    daemon.greet()
    again = [method for method, _, _ in daemon.asked()]
    assert (first, again) == (["session/list", "session/clear"], ["session/attach", "session/list"])
    assert daemon.answers == []
    assert [type(answer) for answer in lost] == [ConnectionLost]
    assert isinstance(lost[0], ConnectionLost)
    assert lost[0].was_sent


def test_no_update_is_repeated_and_none_is_lost(daemon: Daemon) -> None:
    listener = daemon.follow()
    deltas = [TextDelta(str(number)) for number in range(6)]
    daemon.happen(11, *deltas[:3])
    daemon.peer.broken()
    daemon.greet()
    daemon.attached(after=13, last=16)
    daemon.happen(12, *deltas[1:])
    assert [*listener.unread] == [*enumerate(deltas, 11)]


def test_history_is_sent_to_its_requester_only(daemon: Daemon) -> None:
    now, past = daemon.follow(), daemon.follow(8)
    daemon.happen(11, TextDelta("before the answer"))
    daemon.attached(after=8, last=11)
    daemon.happen(9, TextDelta("9"), TextDelta("10"), TextDelta("before the answer"), TextDelta("12"))
    assert [seq for seq, _ in past.unread] == [9, 10, 11, 12]
    assert [seq for seq, _ in now.unread] == [11, 12]


def test_an_open_question_is_shown_to_a_new_client(daemon: Daemon) -> None:
    other = Daemon()
    other.greet()
    listener = other.follow()
    other.attached(after=None, last=10, state="waiting_approval")
    other.happen(10, TextDelta("the question"))
    assert [*listener.unread] == [(10, TextDelta("the question"))]


def test_unrecorded_updates_have_no_number_and_are_delivered(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.happen(0, Error("the disk is full"))
    assert [*listener.unread] == [(0, Error("the disk is full"))]
    assert listener.cursor == 10


def test_another_epoch_is_reported(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.peer.broken()
    daemon.greet()
    daemon.attached(after=10, last=7, epoch=2)
    assert isinstance(listener.problem, EpochChanged)
    assert listener.problem.epoch == 2
    after = daemon.follow()
    daemon.happen(8, TextDelta("goes on"))
    assert [*after.unread] == [(8, TextDelta("goes on"))]


def test_a_recreated_session_is_inspected_and_reported_as_another(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.say(Updates("s", Dialect.EVENTS).restarted())
    daemon.attached(after=10, last=3, epoch=2)
    assert isinstance(listener.problem, EpochChanged)
    after, (asked, _) = daemon.follow(), daemon.prompt("x")
    daemon.happen(4, said("x"), Done())
    assert [seq for seq, _ in after.unread] == [seq for seq, _ in asked.unread] == [4, 5]


def test_a_session_that_disappears_while_followed_is_reported(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.say(Updates("s", Dialect.EVENTS).restarted())
    [(_, _, number)] = daemon.asked()
    daemon.refuse(number, -32000)
    assert isinstance(listener.problem, RpcError)


def test_a_session_that_disappeared_during_a_disconnect_is_reported(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.peer.broken()
    daemon.greet()
    [(_, _, number)] = daemon.asked()
    daemon.refuse(number, -32000)
    assert isinstance(listener.problem, RpcError)


def test_a_subscription_after_a_failed_one_has_no_gap(daemon: Daemon) -> None:
    listener = daemon.follow()
    daemon.happen(3, TextDelta("seen"))
    daemon.peer.broken()
    daemon.greet()
    [(_, _, number)] = daemon.asked()
    daemon.refuse(number, -32603)  # As while its database restarts.
    assert isinstance(listener.problem, RpcError)
    again = daemon.follow(after=3)
    daemon.attached(after=3, last=5)
    daemon.happen(4, TextDelta("one"))
    daemon.happen(5, TextDelta("two"))
    assert list(again.unread) == [(4, TextDelta("one")), (5, TextDelta("two"))]


def test_unknown_updates_of_a_newer_daemon_are_dropped(daemon: Daemon) -> None:
    listener = daemon.follow()
    update = {"sessionId": "s", "type": "event", "seq": 11, "event": {"type": "from_the_future"}}
    daemon.say(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": update}).encode() + b"\n")
    daemon.say(b"no JSON\n", b'{"jsonrpc":"2.0","id":"x","result":1}\n', b'{"jsonrpc":"2.0","method":"new"}\n')
    daemon.happen(12, Done())
    assert [*listener.unread] == [(12, Done())]


def test_a_prompt_gets_its_own_turn_only(daemon: Daemon) -> None:
    daemon.happen(11, said("another"))
    asked, number = daemon.prompt("mine")
    daemon.happen(12, said("mine", "another's"), Done())  # Another client sends the same text.
    daemon.happen(14, said("mine"), TextDelta("x"), Done(), said("next"))
    daemon.answer(number, {"sessionId": "s", "stopReason": "end_turn", "content": "", "usage": used()})
    assert [*asked.unread] == [(14, said("mine")), (15, TextDelta("x")), (16, Done())]
    assert asked.summary is not None
    assert asked.summary.outcome == "completed"


def test_a_notice_between_turns_does_not_hide_the_turn_that_follows(daemon: Daemon) -> None:
    notice = ExtNotify("guard", "info", "ready")
    daemon.happen(0, notice)
    asked, _ = daemon.prompt("mine")
    daemon.happen(0, notice)
    daemon.happen(11, said("mine"))
    daemon.happen(0, notice)
    daemon.happen(12, Done())
    assert [*asked.unread] == [(11, said("mine")), (0, notice), (12, Done())]


def test_equal_prompts_have_their_own_turns_in_any_order(daemon: Daemon) -> None:
    first, second, third = (daemon.prompt(prompt_id)[0] for prompt_id in "abc")
    daemon.peer.leave("s", first)
    for seq, prompt_id in ((11, "c"), (13, ""), (15, "a"), (17, "b")):
        daemon.happen(seq, said("same", prompt_id), Done())
    assert (third.unread[0][0], second.unread[0][0], len(first.unread)) == (11, 17, 0)
    assert len(daemon.peer.following("s").listeners) == 2


def test_a_prompt_whose_answer_was_lost_ends_with_its_turn_and_is_not_sent_again(daemon: Daemon) -> None:
    asked, _ = daemon.prompt("mine")
    assert [method for method, _, _ in daemon.asked()] == ["session/prompt"]
    daemon.peer.broken()
    assert asked.is_doubtful
    daemon.greet()
    daemon.attached(after=10, last=12)
    daemon.happen(11, said("mine"), Done())
    assert asked.is_over
    assert asked.problem is None
    assert daemon.asked() == []


def test_a_prompt_without_a_trace_is_lost_and_a_begun_one_is_not(daemon: Daemon) -> None:
    begun, lost = daemon.prompt("begun")[0], daemon.prompt("lost")[0]
    daemon.asked()
    daemon.peer.broken()
    daemon.greet()
    daemon.attached(after=10, last=11)
    daemon.happen(11, said("begun"))
    begun.settle()
    lost.settle()
    assert isinstance(lost.problem, PromptLost)
    assert begun.problem is None
    assert begun.unread[-1] == (0, Done())


def test_an_unsent_prompt_is_sent_with_the_next_connection(daemon: Daemon) -> None:
    daemon.peer.broken()
    asked, _ = daemon.prompt("mine")
    daemon.greet()
    assert [method for method, _, _ in daemon.asked()] == ["session/attach", "session/prompt"]
    assert not asked.is_doubtful


def test_a_prompt_that_an_ending_daemon_has_not_begun_is_sent_once_more_to_the_next_one(daemon: Daemon) -> None:
    asked, number = daemon.prompt("mine")
    cleared = daemon.peer.ask("session/clear", {"sessionId": "s"}, daemon.answers.append)
    first = daemon.asked()
    daemon.refuse(number, -32005)
    daemon.refuse(cleared, -32005)
    assert (asked.is_over, [type(answer) for answer in daemon.answers], daemon.asked()) == (False, [RpcError], [])
    daemon.peer.broken()
    assert not asked.is_doubtful
    daemon.greet()
    assert [call for call in daemon.asked() if call[0] != "session/attach"] == first[:1]
    daemon.refuse(number, -32005)
    assert isinstance(asked.problem, RpcError)


def test_a_refused_prompt_gives_the_reason_and_a_failed_one_its_error(daemon: Daemon) -> None:
    refused, first = daemon.prompt("a")
    failed, second = daemon.prompt("b")
    dropped, third = daemon.prompt("c")
    daemon.refuse(first, -32002)
    daemon.refuse(second, -32603, {"stopReason": "error", "content": "half", "usage": used()})
    daemon.answer(third, {"sessionId": "s", "stopReason": "cancelled", "content": "", "usage": used()})
    assert isinstance(refused.problem, RpcError)
    assert failed.summary is not None
    assert (failed.summary.outcome, failed.summary.content, failed.summary.error) == ("failed", "half", "no")
    assert dropped.summary is not None
    assert dropped.summary.outcome == "cancelled"


def test_a_request_longer_than_any_daemon_reads_is_refused_and_not_sent(daemon: Daemon) -> None:
    asked = Asked("p", "", 0, lambda: None)
    daemon.peer.ask("session/prompt", {"prompt": "x" * MAX_LINE_BYTES}, asked.answer)
    assert daemon.asked() == []
    assert asked.is_over
    assert isinstance(asked.problem, RpcError)
    assert (asked.problem.code, str(MAX_LINE_BYTES) in str(asked.problem)) == (-32600, True)


def test_the_longest_line_that_a_daemon_reads_is_sent(daemon: Daemon) -> None:
    daemon.peer.ask("status", {"a": ""}, daemon.answers.append)
    short = len(daemon.peer.taken())
    daemon.peer.ask("status", {"a": "x" * (MAX_LINE_BYTES + 1 - short)}, daemon.answers.append)
    assert len(daemon.peer.taken()) == MAX_LINE_BYTES + 1
    assert daemon.answers == []


def test_a_daemon_with_a_lower_limit_refuses_only_longer_requests(daemon: Daemon) -> None:
    long: list[Answer] = []
    short: list[Answer] = []
    daemon.peer.ask("status", {"a": "x" * 200}, long.append)
    daemon.peer.ask("status", {}, short.append)
    [_, (_, _, number)] = daemon.asked()
    daemon.say(encode_error(NULL, RpcError(-32600, "something else")))
    assert long == []
    daemon.say(encode_error(NULL, frame_too_large(100)))
    assert [getattr(one, "data", None) for one in long] == [{"reason": "frame_too_large", "limitBytes": 100}]
    assert short == []
    daemon.answer(number, 1)
    assert short == [msgspec.Raw(b"1")]


def test_giving_up_fails_every_caller_with_the_reason(daemon: Daemon) -> None:
    problem = ConnectionLost("gone")
    listener, (asked, _) = daemon.follow(), daemon.prompt("x")
    daemon.peer.ask("status", {}, daemon.answers.append)
    daemon.peer.give_up(problem)
    assert [listener.problem, asked.problem, *daemon.answers] == [problem] * 3


def test_a_refusal_by_the_daemon_reaches_the_caller() -> None:
    daemon, refusals = Daemon(), list[AgentError]()
    daemon.peer.refused = refusals.append
    daemon.peer.connected()
    [(_, _, number)] = daemon.asked()
    daemon.refuse(number, -32011)
    assert [str(problem) for problem in refusals] == ["no"]
    assert daemon.peer.greeting is None


def used() -> dict[str, Any]:
    return {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "costUsd": None, "reasoning": 0}


def old_daemon() -> Daemon:
    """Return a client of a daemon without ids of prompts, with a session that it follows."""
    daemon = Daemon()
    daemon.greet("events")
    daemon.peer.attach("s", None, daemon.answers.append)
    daemon.attached(after=None, last=10)
    return daemon


def test_without_prompt_ids_a_turn_is_recognised_by_its_text() -> None:
    daemon = old_daemon()
    (first, one), (second, two) = daemon.prompt("same", "a"), daemon.prompt("same", "b")
    daemon.asked()
    other = said("another's", ""), TextDelta("no"), said("same", ""), Done()  # It was steered with our words.
    daemon.happen(11, *other)
    daemon.happen(15, said("same", ""), TextDelta("1"), Done())
    assert list(first.unread) == [(15, said("same", "a")), (16, TextDelta("1")), (17, Done())]
    daemon.answer(one, {"sessionId": "s", "stopReason": "end_turn", "content": "1", "usage": {}})
    daemon.happen(18, said("same", ""), TextDelta("2"), Done())
    daemon.answer(two, {"sessionId": "s", "stopReason": "end_turn", "content": "2", "usage": {}})
    assert list(second.unread) == [(18, said("same", "b")), (19, TextDelta("2")), (20, Done())]
    assert (first.is_over, second.is_over) == (True, True)


def test_with_prompt_ids_equal_texts_of_others_are_not_ours(daemon: Daemon) -> None:
    asked, _ = daemon.prompt("same")
    daemon.happen(11, said("same", ""), TextDelta("no"), Done())
    assert not asked.unread
    daemon.happen(14, said("same"), TextDelta("yes"), Done())
    assert [event for _, event in asked.unread] == [said("same"), TextDelta("yes"), Done()]


def test_a_text_that_begins_no_turn_is_not_ours_if_a_turn_ran_when_we_attached() -> None:
    daemon = Daemon()
    daemon.greet("events")
    daemon.peer.attach("s", None, daemon.answers.append)
    daemon.attached(after=None, last=10, state="running")
    asked, _ = daemon.prompt("same")
    daemon.happen(11, said("same", ""), Done())
    assert not asked.unread
    daemon.happen(13, said("same", ""), Done())
    assert [event for _, event in asked.unread] == [said("same"), Done()]


STOPPING = b'{"jsonrpc":"2.0","method":"daemon/stopping","params":{}}\n'
RESUMED = b'{"jsonrpc":"2.0","method":"daemon/resumed","params":{}}\n'


def test_prompts_sent_while_the_daemon_stops_go_to_the_next_one(daemon: Daemon) -> None:
    daemon.say(STOPPING)
    daemon.prompt("p")
    daemon.peer.ask("session/cancel", {"sessionId": "s"}, daemon.answers.append)
    assert [method for method, _, _ in daemon.asked()] == ["session/cancel"]
    daemon.peer.broken()
    daemon.greet()
    assert [method for method, _, _ in daemon.asked()] == ["session/attach", "session/prompt"]


def test_a_daemon_that_continues_after_all_counts_as_the_next_one(daemon: Daemon) -> None:
    _, given_back = daemon.prompt("given back")
    _, late = daemon.prompt("given back later")
    daemon.asked()
    for _ in range(2):  # Each attempt to replace it.
        daemon.say(STOPPING)
        daemon.refuse(given_back, -32005)
        _, held = daemon.prompt("held")
        assert daemon.asked() == []
        daemon.say(RESUMED)
        assert [number for _, _, number in daemon.asked()] == [given_back]
        daemon.refuse(late, -32005)
        assert [number for _, _, number in daemon.asked()] == [late, held]
        daemon.refuse(held, -32603)
    asked, _ = daemon.prompt("more")
    assert [params["prompt"] for _, params, _ in daemon.asked()] == ["more"]
    assert not asked.is_over


def test_prompts_stay_in_order_at_a_daemon_that_continues_after_all(daemon: Daemon) -> None:
    def sent() -> list[tuple[int, str]]:
        return [(number, params["prompt"]) for _, params, number in daemon.asked()]

    def prompt(session: str, words: str) -> int:
        return daemon.peer.ask("session/prompt", {"sessionId": session, "prompt": words}, lambda answer: None)

    runs, waits = prompt("s", "runs"), prompt("s", "waits")
    assert sent() == [(runs, "runs"), (waits, "waits")]
    daemon.say(STOPPING)
    held, other = prompt("s", "held"), prompt("t", "other")
    assert sent() == []
    daemon.say(RESUMED)
    late = prompt("s", "late")
    assert sent() == [(other, "other")]
    daemon.answer(runs, {})
    assert sent() == []
    daemon.refuse(waits, -32005)
    assert sent() == [(waits, "waits"), (held, "held"), (late, "late")]


def test_a_second_refusal_is_final(daemon: Daemon) -> None:
    asked, number = daemon.prompt("mine")
    daemon.say(STOPPING, RESUMED)
    daemon.refuse(number, -32005)
    assert not asked.is_over
    daemon.refuse(number, -32005)
    assert isinstance(asked.problem, RpcError)
