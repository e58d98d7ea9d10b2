"""A provider's stream is recorded, and replayed unchanged."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zot
from fakes import PATIENCE_S
from harness import Zot, serving
from zot.encoding import encode
from zot.errors import ConfigError
from zot.events import AgentEvent, Error
from zot.providers import service
from zot.providers.base import Deadlines, HttpRequest
from zot.providers.lab.script import Script
from zot.providers.lab.transport import LabTransport
from zot.providers.recording import Recording, RecordingHeader, RecordingTransport

KEY = "sk-ant-planted-0123456789"
NOON = "2026-01-31T12:00:00Z"

CONVERSATION = """
think "hm"
say "Gr\u00fc\u00dfe \U0001f600" " and more"
chunk 1
call read {"path": "a.txt"} chunks=3
---
status 429 retry-after=0
---
chunk 3
say "It says \u2028 hello."
usage input=120 output=12 cache_read=30
"""


async def say(prompts: list[str], **settings: Any) -> list[AgentEvent]:
    """Hold a conversation, and return everything that happened."""
    heard: list[AgentEvent] = []
    async with asyncio.timeout(PATIENCE_S), zot.Runtime(frozen_time=NOON, **settings) as runtime:
        for prompt in prompts:
            stream = runtime.prompt(prompt)
            heard += [event async for event in stream]
    return heard


async def recorded(script: str, path: Path, cwd: Path, prompts: list[str]) -> list[AgentEvent]:
    """Record a conversation with a real server in place of the vendor."""
    with serving(Script.parse(script, "test")) as url:
        return await say(
            prompts, provider="anthropic", api_key=KEY, base_url=url, record=str(path), cwd=str(cwd), env={}
        )


def told(events: list[AgentEvent]) -> list[bytes]:
    return [encode(event) for event in events]


def faults(events: list[AgentEvent]) -> list[str]:
    return [event.message for event in events if isinstance(event, Error)]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("hello\n")
    return work


@pytest.mark.parametrize("paced", [False, True])
async def test_a_replay_gives_the_events_of_the_recorded_run(tmp_path: Path, work: Path, paced: bool) -> None:
    file = tmp_path / "run.jsonl"
    first = await recorded(CONVERSATION, file, work, ["read it"])
    again = await say(
        ["read it"], provider="lab", replay=str(file), replay_checked=True, replay_paced=paced, cwd=str(work)
    )
    assert told(again) == told(first)
    assert b"hello" in b"".join(told(first))


async def test_a_recording_has_every_byte_in_order_and_no_key(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded(CONVERSATION, file, work, ["read it"])
    assert KEY.encode() not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    header, *lines = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    assert header == {
        "type": "recording",
        "version": 1,
        "provider": "anthropic",
        "api": "anthropic",
        "model": "claude-sonnet-5-5",
    }
    asked = [line for line in lines if line["type"] == "request"]
    assert [line["exchange"] for line in asked] == [1, 2, 3]
    assert {line["headers"]["x-api-key"] for line in asked} == {"[secret]"}
    assert [line["status"] for line in lines if line["type"] == "response"] == [200, 429, 200]
    assert [line.get("error", "") for line in lines if line["type"] == "end"] == ["", "", ""]
    times = [line["at_ms"] for line in lines if line.get("exchange") == 1 and "at_ms" in line]
    assert times == sorted(times)


REFUSAL = f"""status 401 '{{"error":{{"message":"no such key: {KEY}"}}}}'"""


async def test_a_key_quoted_in_a_refusal_is_not_recorded(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    events = await recorded(f"chunk 7\n{REFUSAL}", file, work, ["hi"])
    assert faults(events) == [
        "anthropic: http 401: no such key: [key] (check ANTHROPIC_API_KEY, or run `zot login anthropic`)"
    ]
    assert KEY not in file.read_text()
    assert "no such key: [key]" in file.read_text()


@pytest.mark.parametrize(
    "fault",
    ["refuse", 'say "Hel"\ncut', 'say "Hel"\nerror overloaded_error "Too much"', "status 500", 'raw "nonsense"'],
)
async def test_a_fault_is_replayed(tmp_path: Path, work: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_FIRST_DELAY_S", 0.01)
    file = tmp_path / "run.jsonl"
    script = tmp_path / "fault.lab"
    script.write_text(f"{fault}\n---\n{fault}\n---\n{fault}\n")
    first = await say(["hi"], provider="lab", cwd=str(work), script=str(script), record=str(file))
    assert len(faults(first)) == 1
    assert told(await say(["hi"], provider="lab", cwd=str(work), replay=str(file))) == told(first)


async def test_a_changed_request_is_shown_with_its_difference(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded('say "Yes."', file, work, ["hi"])
    settings: dict[str, Any] = {"provider": "lab", "replay": str(file), "cwd": str(work)}
    assert told(await say(["ho"], **settings))[-1] == b'{"type":"done"}'
    place = "body.messages[0].content[0].text"
    difference = f'anthropic: request 1 is not the recorded one: {place} was "hi", is "ho"'
    assert faults(await say(["ho"], **settings, replay_checked=True)) == [difference]


async def test_a_request_beyond_the_recording_is_refused(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded('say "Yes."', file, work, ["hi"])
    events = await say(["hi", "again"], provider="lab", replay=str(file), cwd=str(work))
    assert faults(events) == ["anthropic: the recording ends after 1 requests; this one was never recorded"]


async def test_a_recording_cut_short_by_a_crash_is_played_up_to_there(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded('say "Yes," "sir."', file, work, ["hi"])
    whole = file.read_bytes()
    settings: dict[str, Any] = {"provider": "lab", "replay": str(file), "cwd": str(work)}
    first_chunk = whole.index(b'{"type":"chunk"')
    for end in (first_chunk, first_chunk + 20):
        file.write_bytes(whole[:end])
        [fault] = faults(await say(["hi"], **settings))
        assert "the recording ends here" in fault
    file.write_bytes(whole[:-3])  # Cut after the reply's last event: the reply is whole.
    assert faults(await say(["hi"], **settings)) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: not a line of a recording"),
        ("hello\n", "line 1: not a line of a recording"),
        ('{"type":"end","exchange":1,"at_ms":1}\n', "not a recording; make one with: --record FILE"),
        ('{"type":"recording","version":2,"provider":"lab","api":"anthropic","model":"lab-1"}\n', "of version 2"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        zot.run("hi", provider="lab", replay=str(file))


def test_a_file_that_is_not_a_recording_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "precious.txt"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="not overwritten"):
        zot.run("hi", provider="lab", record=str(file))
    assert file.read_text() == "mine"


async def test_an_older_recording_is_overwritten(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded('say "a long answer that is recorded first"', file, work, ["hi"])
    await recorded('say "Yes."', file, work, ["hi"])
    again = await say(["hi"], provider="lab", replay=str(file), cwd=str(work))
    assert "Yes." in b"".join(told(again)).decode()


def test_rpc_records_and_replays(zot: Callable[..., Zot], tmp_path: Path) -> None:
    file = str(tmp_path / "run.jsonl")
    heard = []
    for flags in (("--record", file), ("--replay", file)):
        process = zot(*flags, "--frozen-time", NOON)
        process.send({"type": "prompt", "message": "!say 3 Hello"})
        heard.append(process.finish())
    assert heard[0] == heard[1]
    assert {"type": "done"} in heard[0]


async def test_a_run_continues_when_recording_fails(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = await say(["!words 2000"], provider="lab", record="/dev/full", cwd=str(work))
    assert not any(isinstance(event, Error) for event in events)
    assert [record.message for record in caplog.records] == ["/dev/full: recording ends here: No space left on device"]


async def test_a_key_in_an_answer_is_not_recorded_however_it_is_split(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    script = f"""chunk 7\nsay "Your key is {KEY}, \\ud83d\\ude00 {KEY}"\n---\nchunk 1\nsay "\\u00fc{KEY}" """
    events = await recorded(script, file, work, ["hi", "ho"])
    assert KEY.encode() in b"".join(told(events))
    whole = Recording.load(str(file))
    assert b"Your key is [key]," in b"".join(chunk.data for chunk in whole.exchanges[0].chunks)
    assert b"[key]" in b"".join(chunk.data for chunk in whole.exchanges[1].chunks)
    for exchange in whole.exchanges:
        assert KEY.encode() not in b"".join(chunk.data for chunk in exchange.chunks)


async def test_a_key_in_any_header_is_not_recorded(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    inner = LabTransport(Script.parse(f"status 500 x-quoted={KEY}", "test"))
    recorder = RecordingTransport(inner, str(file), RecordingHeader(1, "lab", "anthropic", "lab-1"))
    headers = {"x-api-key": KEY, "user-agent": f"me/{KEY}"}
    body = b'{"model":"lab-1","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'
    response = await recorder.send(HttpRequest("http://lab.invalid/v1/messages", headers, body), Deadlines())
    response.close()
    await recorder.close()
    [exchange] = Recording.load(str(file)).exchanges
    assert exchange.asked.headers == {"x-api-key": "[secret]", "user-agent": "me/[key]"}
    assert exchange.answered is not None
    assert exchange.answered.headers["x-quoted"] == "[key]"
    assert KEY not in file.read_text()


async def test_an_older_recording_that_others_could_read_becomes_private(tmp_path: Path, work: Path) -> None:
    file = tmp_path / "run.jsonl"
    await recorded('say "Yes."', file, work, ["hi"])
    file.chmod(0o644)
    await recorded('say "Yes."', file, work, ["hi"])
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("read", [False, True])
def test_recording_into_a_pipe_is_refused_at_once(tmp_path: Path, read: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if read else None
    with pytest.raises(ConfigError, match=r"cannot record to .*pipe: not a regular file"):
        zot.run("hi", provider="lab", record=str(pipe))
    if reader is not None:
        os.close(reader)


async def test_a_checked_replay_ignores_durations_and_process_ids(tmp_path: Path, work: Path) -> None:
    file, script = tmp_path / "run.jsonl", tmp_path / "run.lab"
    script.write_text("""call bash {"command": "sleep 0.2; sleep 30 & seq 9999"}\n---\nsay "Done." """)
    settings: dict[str, Any] = {"provider": "lab", "cwd": str(work), "env": {"ZOT_HOME": str(tmp_path / "home")}}
    first = await say(["go"], script=str(script), record=str(file), **settings)
    assert b"/spill/" in b"".join(told(first))
    assert b"[still running: " in b"".join(told(first))
    assert b"Took 0.0s" in b"".join(told(first))
    assert faults(await say(["go"], replay=str(file), replay_checked=True, **settings)) == []
