"""Budgets: no further model call once a session has spent its budget."""

from __future__ import annotations

import pytest

import claude
from fakes import FakeTool, FakeTransport, finish, kinds, listen, open_session, talk
from zot.agent.loop import Budget
from zot.errors import BudgetExhausted
from zot.events import Done, Error, TurnEnd
from zot.messages import Counters
from zot.providers.base import Model
from zot.tools.base import Output, ToolContext

#: Every scripted reply: 100 tokens in, 20 out; on the default model $0.0006.
UNKNOWN = Model("m", "acme", 1000, 100, reasoning=False)


async def shout(args: dict[str, object], context: ToolContext) -> Output:
    return ()


CALL = claude.reply(claude.tool("c1", "shout"), ends="tool_use")
COST = "stopped: the session has cost $0.0006, and max-cost allows $0.0005; to continue, start with a higher --max-cost"
TOKENS = (
    "stopped: the session has used 120 tokens, and max-tokens-total allows 120; "
    "to continue, start with a higher --max-tokens-total"
)


@pytest.mark.parametrize(
    ("budget", "text", "facts"),
    [
        (Budget(max_cost=0.0005), COST, ("max_cost", 0.0006, 0.0005)),
        (Budget(max_tokens_total=120), TOKENS, ("max_tokens_total", 120, 120)),
    ],
)
async def test_a_run_ends_before_the_call_that_its_budget_has_no_room_for(
    budget: Budget, text: str, facts: tuple[str, float, float]
) -> None:
    transport = FakeTransport([CALL])
    session = open_session(transport, tools=[FakeTool("shout", shout)], budget=budget)
    listener = listen(session)
    job = session.prompt("hi")
    await finish(session)
    assert kinds(listener.events)[-4:] == ["turn_end tool_use", "tool_result", "error", "done"]
    assert listener.events[-2] == Error(text)
    assert len(transport.requests) == 1
    assert isinstance(job.error, BudgetExhausted)
    assert (job.error.setting, round(job.error.used, 9), job.error.allowed) == facts


async def test_earlier_usage_of_the_session_counts_for_the_next_prompt() -> None:
    transport = FakeTransport()
    session = open_session(transport, budget=Budget(max_tokens_total=121))
    assert (await talk(session))[-1] == Done()
    assert [*map(type, (await talk(session))[-2:])] == [TurnEnd, Done]
    assert kinds(await talk(session)) == ["user_message", "error", "done"]
    session.clear()
    assert kinds(await talk(session)) == ["user_message", "error", "done"]
    assert len(transport.requests) == 2


async def test_a_conversation_is_not_compacted_without_budget() -> None:
    transport = FakeTransport()
    session = open_session(transport, budget=Budget(max_tokens_total=360))
    for _ in range(3):
        await talk(session)
    listener = listen(session)
    session.compact()
    await finish(session)
    assert kinds(listener.events) == ["error", "done"]
    assert len(transport.requests) == 3
    assert len(session.history.transcript) == 6


async def test_an_unknown_price_does_not_use_up_money_but_its_tokens_count() -> None:
    session = open_session(FakeTransport(), models=[UNKNOWN], model="m", budget=Budget(max_cost=1e-9))
    for _ in range(3):
        assert kinds(await talk(session))[-2:] == ["turn_end end_turn", "done"]
    session = open_session(FakeTransport(), models=[UNKNOWN], model="m", budget=Budget(1e-9, 100))
    assert kinds(await talk(session))[-2:] == ["turn_end end_turn", "done"]
    assert kinds(await talk(session)) == ["user_message", "error", "done"]


def test_all_kinds_of_tokens_count() -> None:
    Budget(max_tokens_total=11).check(Counters(1, 2, 3, 4, 0.0))
    with pytest.raises(BudgetExhausted, match="has used 10 tokens"):
        Budget(max_tokens_total=10).check(Counters(1, 2, 3, 4, 0.0))


@pytest.mark.parametrize(
    ("used", "shown"), [(2.0, "$2.00"), (2.5, "$2.50"), (12.345678, "$12.345678"), (1.0000004, "$1.00")]
)
def test_money_is_shown_to_the_cent_or_as_far_as_it_takes(used: float, shown: str) -> None:
    with pytest.raises(BudgetExhausted) as caught:
        Budget(max_cost=1.0).check(Counters(0, 0, 0, 0, used))
    assert f"has cost {shown}, and max-cost allows $1.00;" in str(caught.value)
