"""The transcript changes only by rows, and knows which calls are open."""

from __future__ import annotations

from zot.agent.transcript import Transcript, repaired
from zot.messages import CallBlock, Message, ResultBlock, Role, TextBlock, TranscriptBlock
from zot.store import Change, MessageAdded, MessagesReplaced

A, B = CallBlock("a", "t", {}), CallBlock("b", "t", {})


def said(role: Role, *blocks: TranscriptBlock) -> Message:
    return Message(role, blocks, "t")


def result(call_id: str) -> ResultBlock:
    return ResultBlock(call_id, False, ())


def after(*changes: Change | Message) -> Transcript:
    transcript = Transcript()
    for change in changes:
        transcript.apply(MessageAdded(change) if isinstance(change, Message) else change)
    return transcript


ONE, TWO, THREE = (said("user", TextBlock(text)) for text in ("one", "two", "three"))


def test_messages_are_appended() -> None:
    transcript = after(ONE, TWO)
    assert (transcript.messages, len(transcript)) == ([ONE, TWO], 2)


def test_the_results_of_one_turn_gather_in_one_message() -> None:
    transcript = after(said("assistant", A, B), said("tool", result("a")), said("tool", result("b")), ONE)
    assert transcript.messages == [said("assistant", A, B), said("tool", result("a"), result("b")), ONE]


def test_a_summary_replaces_the_first_messages() -> None:
    summary = said("user", TextBlock("summary"))
    assert after(ONE, TWO, THREE, MessagesReplaced(0, 2, (summary,))).messages == [summary, THREE]


def test_a_splice_without_messages_forgets() -> None:
    assert after(ONE, TWO, THREE, MessagesReplaced(0, 2, ())).messages == [THREE]
    assert after(ONE, MessagesReplaced(0, 1, ())).messages == []


def test_the_newest_compaction_can_be_undone() -> None:
    summary = said("user", TextBlock("summary"))
    assert after(ONE, TWO, MessagesReplaced(0, 2, (summary,))).undo is None
    transcript = after(ONE, TWO, MessagesReplaced(0, 1, (summary,), "compaction"), THREE)
    assert transcript.undo == MessagesReplaced(0, 1, (ONE,), "undo")
    transcript.apply(transcript.undo)
    assert transcript.messages == [ONE, TWO, THREE]


def test_calls_without_result_are_open_in_their_order() -> None:
    assert after().unanswered() == []
    assert after(ONE).unanswered() == []
    assert after(said("assistant", TextBlock("x"))).unanswered() == []
    assert after(said("assistant", A, B)).unanswered() == [A, B]
    assert after(said("assistant", A, B), said("tool", result("a"))).unanswered() == [B]
    assert after(said("assistant", A, B), said("tool", result("b"))).unanswered() == [A]
    assert after(said("assistant", A), said("tool", result("a"))).unanswered() == []


def test_only_the_newest_turn_can_have_open_calls() -> None:
    assert after(said("assistant", A), said("tool", result("a")), ONE).unanswered() == []
    assert after(said("assistant", A), said("tool", result("a")), said("assistant", B)).unanswered() == [B]


def test_changes_that_are_replayed_give_the_same_transcript() -> None:
    changes: list[Change] = [
        MessageAdded(ONE),
        MessageAdded(said("assistant", A)),
        MessageAdded(said("tool", result("a"))),
        MessagesReplaced(0, 2, (TWO,)),
        MessagesReplaced(0, 1, ()),
        MessageAdded(THREE),
    ]
    assert after(*changes).messages == [said("tool", result("a")), THREE]


def lost(call_id: str) -> ResultBlock:
    return ResultBlock(call_id, True, (TextBlock("the result was lost: the run was interrupted"),))


def test_a_call_that_lost_its_result_gets_one_right_after_it() -> None:
    messages = [ONE, said("assistant", A, B), said("tool", result("b")), TWO]
    assert repaired(messages) == [ONE, said("assistant", A, B), said("tool", result("b"), lost("a")), TWO]


def test_a_call_at_the_very_end_gets_a_result_too() -> None:
    assert repaired([ONE, said("assistant", A)]) == [ONE, said("assistant", A), said("tool", lost("a"))]


def test_results_without_a_call_are_dropped() -> None:
    messages = [
        said("tool", result("a")),
        ONE,
        said("assistant", A),
        said("tool", result("a"), result("a"), result("x")),
    ]
    assert repaired(messages) == [ONE, said("assistant", A), said("tool", result("a"))]


def test_a_sound_conversation_stays_unchanged() -> None:
    messages = [ONE, said("assistant", A), said("tool", result("a")), TWO]
    assert repaired(messages) == messages
