"""Conversations with lab: each thing that the page offers, used as a person uses it."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

import pytest

from browser import Browser, Page
from extensions.stage import Extension
from mcp_client.stage import SERVER
from optional import needs
from serve.daemon.test_overview import png
from serve.web.face import Face
from serve.web.pages import (
    CONFIG,
    IDLE,
    LIVE,
    begin,
    dashboard,
    messages,
    open_session,
    paired,
    recorded,
    shown,
    submit,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Puts a file where a person would drop or paste it.
DROP = """(() => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([Uint8Array.from(atob(%s), (one) => one.charCodeAt(0))], %s, { type: %s }));
  const target = document.querySelector(%s);
  const options = { bubbles: true, cancelable: true };
  target.dispatchEvent(%s ? new DragEvent("drop", { ...options, dataTransfer: transfer })
    : new ClipboardEvent("paste", { ...options, clipboardData: transfer }));
})()"""
CONTROL = 2  #: The modifier of a key that the browser calls so.
NOTES = """
window.notes = [];
window.Notification = class {
  static permission = "granted";
  static async requestPermission() { return "granted"; }
  constructor(title, { body }) { window.notes.push(body); }
};"""
PANEL = """
hello("commands", "panels")
say("register_command", name="tasks", description="Show the tasks")
say("ready")
lines = ["first", "second"]
for frame in frames():
    if frame["type"] == "command_invoked":
        panel = {"id": "p", "title": "Tasks", "lines": lines, "footer": "x marks"}
        say("command_response", id=frame["id"], action="open_panel", open_panel=panel)
    elif frame["type"] == "panel_key":
        key = frame.get("text") or frame["key"]
        say("panel_render", panel_id="p", title="Tasks", lines=[*lines, "key " + key], footer="x marks")
"""


async def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = await page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)"
    )
    return found


async def attach(page: Page, data: bytes, name: str, kind: str, *, drop: bool) -> None:
    target = ".conversation" if drop else "#prompt"
    words = (json.dumps(one) for one in (base64.b64encode(data).decode(), name, kind, target, drop))
    await page.run(DROP % tuple(words))


@needs("chromium")
async def test_code_is_highlighted_and_an_edit_is_a_diff(browser: Browser, face: Face, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\nthree\n")
    page = await paired(browser, face)
    edit = json.dumps({"path": "a.py", "edits": [{"oldText": "two", "newText": "2"}]})
    code = json.dumps("```python\ndef f(): return 1\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |")
    await begin(page, f'!script call read {{"path": "a.py"}} ;; --- ;; call edit {edit} ;; --- ;; say {code}', tmp_path)
    await page.until(IDLE)
    assert await page.run("[...document.querySelectorAll('.answer .t-word')].map(one => one.textContent)") == [
        "def",
        "return",
    ]
    assert await page.text(".answer td") == "1"
    assert await texts(page, ".output.diff > :is(.add, .del)") == ["- two", "+ 2"]
    assert await texts(page, ".tool .about") == ["a.py", "a.py"]
    assert page.problems == []


@needs("chromium")
async def test_output_of_a_command_is_live_and_its_approval_shows_all_of_it(
    browser: Browser, face: Face, tmp_path: Path
) -> None:
    page = await paired(browser, face)
    gate = tmp_path / "gate"
    await begin(page, f"!bash echo begun; until [ -e {gate} ]; do sleep 0.05; done; echo over", tmp_path)
    await page.until("document.querySelector('.approval button')")
    assert str(gate) in await page.text(".approval .command")
    await page.run("document.querySelector('.approval').focus()")
    await page.press("a")
    await page.until("document.querySelector('.tool .output').textContent.includes('begun')")
    assert await page.text(".tool .state") == "running"
    gate.touch()
    await page.until(IDLE)
    assert "over" in await page.text(".tool .output")
    assert await page.text(".approval .outcome")


@needs("chromium")
async def test_images_are_attached_by_drop_and_paste_and_shown(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!echo begun", tmp_path)
    await page.until(IDLE)
    await attach(page, png(1), "drop.png", "image/png", drop=True)
    await page.until("document.querySelectorAll('.chips li').length === 1")
    await attach(page, b"pasted text", "note.txt", "text/plain", drop=False)
    await page.until("document.querySelectorAll('.chips li').length === 2")
    await submit(page, "!echo seen")
    await page.until("document.querySelectorAll('.user').length === 2")
    await page.until("document.querySelector('.user img')?.naturalWidth === 1")
    assert await page.run("document.querySelectorAll('.chips li').length") == 0
    prompt = [one for one in await messages(face, session) if one["role"] == "user"][-1]
    assert [block["type"] for block in prompt["blocks"]] == ["text", "image"] or "image" in str(prompt["blocks"])
    assert "pasted text" in prompt["content"]
    again = await paired(browser, face)  # Also in a page that was not there.
    await open_session(again, session)
    await again.until("document.querySelector('.user img')?.naturalWidth === 1")
    assert again.problems == []


@needs("chromium")
async def test_commands_and_files_are_completed(browser: Browser, face: Face, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my file.py").write_text("")
    page = await paired(browser, face)
    await begin(page, "!echo begun", tmp_path)
    await page.until(IDLE)
    await page.run("document.getElementById('prompt').focus()")
    await page.type("!echo @myf")
    await page.until("document.querySelector('.offers li')?.textContent === 'src/my file.py'")
    await page.press("Tab")
    assert await page.run("document.getElementById('prompt').value") == '!echo @"src/my file.py" '
    await page.press("Enter")
    await page.until("document.querySelectorAll('.answer').length === 2")
    await page.until(IDLE)
    await page.type("/ren")
    await page.until("document.querySelector('.offers li b')?.textContent === '/rename'")
    await page.press("Enter")
    await page.type("A better title")
    await page.press("Enter")
    await page.until("document.querySelector('.head h2').textContent === 'A better title'")
    await page.until("document.querySelector('#sessions [aria-current] .title').textContent === 'A better title'")


@needs("chromium")
async def test_a_session_is_rewound_with_a_preview_of_files_and_the_rewind_is_undone(
    browser: Browser, face: Face, tmp_path: Path
) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!write kept.txt first", tmp_path)
    await page.until(IDLE)
    await submit(page, "!write kept.txt second")
    await page.until("document.querySelectorAll('.user').length === 2")
    await page.until(IDLE)
    await submit(page, "/rewind ")
    await page.until("document.querySelectorAll('dialog input[type=radio]').length === 2")
    await page.run("document.querySelector('dialog input[type=radio]').click()")
    await page.until("document.querySelector('.preview code')?.textContent === 'kept.txt'")
    assert (tmp_path / "kept.txt").read_text() == "second"
    await page.run("document.querySelector('dialog .buttons .main').click()")
    await page.until("document.querySelectorAll('.user').length === 1")
    assert (tmp_path / "kept.txt").read_text() == "first"
    assert await page.run("document.getElementById('prompt').value") == "!write kept.txt second"
    assert await shown(page) == await recorded(face, session)
    await page.run("[...document.querySelectorAll('.toast button')].find(one => one.textContent === 'Undo').click()")
    await page.until("document.querySelectorAll('.user').length === 2")
    assert (tmp_path / "kept.txt").read_text() == "second"


@needs("chromium")
async def test_a_session_is_forked_and_deleted_and_found(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!echo zebra crossing", tmp_path)
    await page.until(IDLE)
    await submit(page, "/fork ")
    await page.until(f"decodeURIComponent(location.hash.slice(4)) !== {json.dumps(session)}")
    await page.until("document.querySelectorAll('.answer').length === 1")
    await page.run("document.getElementById('search').focus()")
    await page.type("zebra cross")
    await page.until("document.querySelectorAll('#sessions a').length === 2")
    await submit(page, "/delete ")
    await page.until("document.querySelector('dialog .bad')")
    await page.run("document.querySelector('dialog .bad').click()")
    await page.until("location.hash === '#/'")
    await page.until("document.querySelectorAll('#sessions a').length === 1")
    assert await page.run("document.querySelector('#sessions a').dataset.session") == session


@needs("chromium")
async def test_a_panel_takes_keys_and_extensions_have_states(browser: Browser, tmp_path: Path) -> None:
    good, bad = Extension(tmp_path, "tasks", PANEL), Extension(tmp_path, "bad", "raise SystemExit('cannot')\n")
    async with dashboard(tmp_path / "home", ext=(str(good.directory), str(bad.directory))) as face:
        page = await paired(browser, face)
        session = await begin(page, "!echo begun", tmp_path)
        await page.until(IDLE)
        await submit(page, "/tasks ")
        await page.until("document.activeElement.dataset.panel === 'p'")
        assert await page.text(".panel pre") == "first\nsecond"
        await page.press("x")
        await page.until("document.querySelector('.panel pre').textContent.endsWith('key x')")
        await page.send("Input.dispatchKeyEvent", type="keyDown", key="ArrowDown", windowsVirtualKeyCode=40)
        await page.until("document.querySelector('.panel pre').textContent.endsWith('key down')")
        other = await paired(browser, face)  # The same panel, in the same state.
        await open_session(other, session)
        await other.until("document.querySelector('.panel pre')?.textContent.endsWith('key down')")
        await page.until("document.querySelector('.head .warn')")
        await page.run("document.querySelector('.head .warn').click()")
        states = "[...document.querySelectorAll('.extensions li')].map(one => one.dataset.state)"
        await page.until(f"{states}.join() === 'running,failed'")
        await page.run("document.querySelector('dialog').close()")
        await page.run("document.querySelector('.panel button').click()")
        await other.until("!document.querySelector('.panel')")


@needs("chromium")
async def test_the_overview_has_spending_health_and_audit_lines(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    await begin(page, "!usage 1000 500 0 0", tmp_path)
    await page.until(IDLE)
    await page.press("Escape")
    await page.run("document.getElementById('main').focus()")
    await page.press("o")
    await page.until("document.querySelector('.overview .chart svg')")
    assert "lab/lab-1" in await page.text(".bars")
    await page.until("document.querySelector('.overview dd.good')?.textContent === 'ok'")
    assert "session/prompt" in await page.text(".overview table")
    assert page.problems == []


@needs("chromium")
async def test_unread_sessions_are_marked_until_they_are_opened(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!echo begun", tmp_path)
    await page.until(IDLE)
    await page.run("location.hash = '#/inbox'")
    async with face.connected() as client:
        await client.begin(session)
        await client.prompt(session, "!echo elsewhere")
    row = f"[...document.querySelectorAll('#sessions a')].find(one => one.dataset.session === {json.dumps(session)})"
    await page.until(f"{row}.hasAttribute('data-unread') && {row}.textContent.includes('elsewhere')")
    await open_session(page, session)
    await page.until(f"!{row}.hasAttribute('data-unread')")


@needs("chromium")
async def test_notifications_are_opt_in(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    await page.run(NOTES)
    await page.run("Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' })")
    await begin(page, "!bash echo one", tmp_path)
    await page.until("document.querySelector('.approval button')")
    assert await page.run("window.notes.length") == 0
    await page.run("document.getElementById('settings').click()")
    await page.until("document.querySelector('dialog input[type=checkbox]')")
    await page.run("document.querySelector('dialog input[type=checkbox]').click()")
    await page.until("JSON.parse(localStorage.getItem('zot')).notify === true")
    await page.run("document.querySelector('dialog').close(); document.querySelector('.approval').focus()")
    await page.press("r")
    await page.until("window.notes.some(one => one.includes('has ended'))")


@needs("chromium")
async def test_resources_of_an_mcp_server_are_completed(browser: Browser, tmp_path: Path) -> None:
    server = f"[mcp.s]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([SERVER, 'rich'])}\n"
    async with dashboard(tmp_path / "home", CONFIG + server) as face:
        page = await paired(browser, face)
        await begin(page, "!echo begun", tmp_path)
        await page.until(IDLE)
        await page.run("document.getElementById('prompt').focus()")
        await page.type("look at @s:")
        # The list comes in the background: ask again from time to time.
        again = "setInterval(() => document.getElementById('prompt').dispatchEvent(new Event('input')), 500)"
        await page.run(f"window.again = {again}")
        await page.until("document.querySelector('.offers li')?.textContent.startsWith('@s:note://a')")
        await page.run("clearInterval(window.again)")
        await page.until("document.querySelector('.offers li')?.textContent.startsWith('@s:note://a')")
        await page.press("Tab")
        assert await page.run("document.getElementById('prompt').value") == "look at @s:note://a "


@needs("chromium")
async def test_a_question_of_an_mcp_server_is_answered_in_the_inbox(browser: Browser, tmp_path: Path) -> None:
    servers = "".join(
        f"[mcp.{name}]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([SERVER, mode])}\n"
        for name, mode in (("s", "form"), ("gone", "exits"))
    )
    async with dashboard(tmp_path / "home", CONFIG + servers) as face:
        page, other = await paired(browser, face), await paired(browser, face, "view")
        session = await begin(page, "!echo begun", tmp_path)
        await open_session(other, session)
        await page.until("document.querySelector('.head .warn')?.textContent === '2 MCP servers: 1 not running'")
        await other.run("document.querySelector('.menu').open = true")
        actions = "[...document.querySelectorAll('.menu button:not([hidden])')].map(one => one.textContent).join()"
        await other.until(f"{actions} === 'context,extensions'")  # All that this browser may do.
        await other.run("[...document.querySelectorAll('.menu button:not([hidden])')].at(-1).click()")
        states = "[...document.querySelectorAll('.servers li')].map(one => one.textContent).join('; ')"
        await other.until(f"document.querySelector('dialog') && {states}.includes('gonefailed')")
        await other.until(f"{states}.includes('srunning3 tools')")  # The open dialog shows the changes.
        await submit(page, "!script call mcp__s__echo {} ;; --- ;; say done")
        await page.run("location.hash = '#/inbox'")
        await page.until("document.querySelector('#inbox .request')")
        assert await page.text(".request h3") == "mcp:s asks"
        assert await page.text(".request .ask") == "Who are\\x1b you?"
        assert "left" in await page.text(".request .left")
        await page.run("document.querySelector('.request input').value = 'Ann'")
        await page.run("document.querySelector('.request select').value = 'red'")
        await page.run("document.querySelector('.request').focus()")
        await page.press("a")
        await page.until("!document.querySelector('#inbox .request')")
        await open_session(page, session)
        await page.until(f"document.querySelector('.tool .output')?.textContent && {IDLE}")
        result = json.loads(await page.text(".tool .output"))
        assert result == {"action": "accept", "content": {"name": "Ann", "age": 7, "color": "red"}}
        assert page.problems == []


@needs("chromium")
async def test_a_running_turn_is_steered_and_what_waits_is_withdrawn(
    browser: Browser, face: Face, tmp_path: Path
) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!bash echo one", tmp_path)
    await page.until("document.querySelector('.approval .left')?.textContent.endsWith('left')")
    await page.run("document.getElementById('prompt').focus()")
    for text, modifiers in (("!echo steered", CONTROL), ("!echo not this", CONTROL), ("!echo nor that", 0)):
        await page.type(text)
        await page.press("Enter", modifiers=modifiers)
    await page.until("document.querySelectorAll('.queue li').length === 3")
    assert await texts(page, ".queue .facts") == ["Steers", "Steers", "Queued"]
    for left, text in ((2, "!echo nor that"), (1, "!echo not this")):  # At once, and back in the prompt.
        await page.run("document.querySelector('.queue li:last-child button').click()")
        await page.until(f"document.querySelectorAll('.queue li').length === {left}")
        assert await page.run("document.getElementById('prompt').value") == text
        await page.run("document.getElementById('prompt').value = ''")
    await page.run("document.querySelector('.approval').focus()")
    await page.press("a")
    await page.until("document.querySelectorAll('.user').length === 2 && !document.querySelector('.queue li')")
    await page.until(IDLE)
    said = ["!bash echo one", "Running it.", "!echo steered", "steered"]
    assert await shown(page) == await recorded(face, session) == said
    assert page.problems == []


@needs("chromium")
async def test_a_session_is_forked_from_a_chosen_prompt(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!echo first", tmp_path)
    await page.until(IDLE)
    await submit(page, "!echo second")
    await page.until("document.querySelectorAll('.answer').length === 2")
    await page.until(IDLE)
    await submit(page, "/rewind ")
    await page.until("document.querySelectorAll('dialog input[type=radio]').length === 2")
    await page.run("document.querySelector('dialog input[type=radio]').click()")
    await page.run("[...document.querySelectorAll('dialog .buttons button')].at(-1).click()")
    await page.until(f"decodeURIComponent(location.hash.slice(4)) !== {json.dumps(session)}")
    copy = str(await page.run("decodeURIComponent(location.hash.slice(4))"))
    await page.until("document.querySelectorAll('.answer').length === 1")
    assert await shown(page) == await recorded(face, copy) == ["!echo first", "first"]
    assert len(await recorded(face, session)) == 4


@needs("chromium")
async def test_a_question_of_a_tool_is_a_card_with_fields(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    module = "document.querySelector('script[type=module]').src.replace('main.js', 'requests.js')"
    fields = [
        {"name": "n", "kind": "integer", "title": "Number", "required": True, "minimum": 1},
        {"name": "c", "kind": "choice", "choices": [{"value": "a"}, {"value": "b"}]},
    ]
    about = {"origin": "mcp:files", "message": "Which one?", "deadline": "2099-01-01T00:00:00Z"}
    question = {"sessionId": "s", "id": "q", "kind": "question", "fields": fields, **about}
    script = f"""import({module}).then(({{ Cards }}) => {{
      const board = new EventTarget();
      window.sent = [];
      Object.assign(board, {{ titleOf: (id) => id, asker: () => "", refresh() {{}},
        connection: {{ may: () => true, call: async (method, params) => window.sent.push([method, params]) }} }});
      document.getElementById("main").replaceChildren(new Cards(board).card({json.dumps(question)}));
    }})"""
    await page.run(script)
    await page.run("document.querySelector('.request input').value = '7'")
    await page.run("document.querySelector('.request select').value = 'b'")
    await page.run("document.querySelector('.request').focus()")
    await page.press("a")
    await page.until("window.sent.length")
    assert await page.run("window.sent") == [
        ["session/answer", {"sessionId": "s", "requestId": "q", "action": "accept", "content": {"n": 7, "c": "b"}}]
    ]


@needs("chromium")
async def test_a_request_of_an_unopened_session_is_in_the_inbox_without_a_poll(
    browser: Browser, face: Face, tmp_path: Path
) -> None:
    page = await paired(browser, face)
    await page.send("Page.addScriptToEvaluateOnNewDocument", source="window.setInterval = () => 0; window.isNew = true")
    await page.send("Page.reload")
    await page.until(f"window.isNew && {LIVE}")
    await page.run("location.hash = '#/inbox'")
    async with face.connected() as client:
        session = await client.begin()
        prompting = asyncio.ensure_future(client.prompt(session, f"!bash echo once > {tmp_path}/effect"))
        await page.until("document.querySelector('#inbox .request .command')")
        assert await page.text("#inbox .request .command") == f"echo once > {tmp_path}/effect"
        row = f"document.querySelector('#sessions a[data-session={json.dumps(session)}]')"
        await page.until(f"{row}?.dataset.state === 'waiting_approval'")
        await page.until("document.querySelector('#inbox .request .facts').textContent.startsWith('default')")
        await page.press("j")
        await page.press("a")
        assert (await prompting)["result"]["stopReason"] == "end_turn"
    assert (tmp_path / "effect").read_text() == "once\n"
    await page.until(f"{row}.dataset.state === 'idle' && {row}.textContent.includes('finished.')")


@needs("chromium")
async def test_the_queue_has_the_prompts_of_all_clients(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face, name="mine")
    session = await begin(page, "!stall", tmp_path)
    await page.until("!document.querySelector('.stop').hidden")
    watcher = await paired(browser, face, "view")
    await open_session(watcher, session)
    await submit(page, "!echo mine")
    queue = "[...document.querySelectorAll('.queue .text')].map(one => one.textContent).join()"
    await watcher.until(f"{queue} === '!echo mine'")  # It is the first.
    async with face.connected() as client:
        await client.call("initialize", {"protocolVersion": 1})
        for text in ("!echo theirs\nsecond line", "!echo never"):
            params = {"sessionId": session, "prompt": text, "promptId": text[-4:]}
            message = {"jsonrpc": "2.0", "id": text, "method": "session/prompt", "params": params}
            await client.socket.send(json.dumps(message))
    for one in (page, watcher):
        await one.until(f"{queue} === '!echo mine,!echo theirs,!echo never'")
    assert await texts(page, ".queue .facts") == ["Queued", "Queued by default", "Queued by default"]
    assert (await texts(watcher, ".queue .facts"))[0] == "Queued by web.mine"
    assert await watcher.run("document.querySelectorAll('.queue button').length") == 0
    await page.run("document.querySelector('.queue li:last-child button').click()")
    await page.until("document.querySelector('dialog .bad')")  # It is of another client: this asks first.
    await page.run("document.querySelector('dialog .bad').click()")
    for one in (page, watcher):
        await one.until(f"{queue} === '!echo mine,!echo theirs'")
    assert await page.run("document.getElementById('prompt').value") == ""
    await page.send("Page.reload")  # It is in the queue of a new page as well.
    await page.until(f"{queue} === '!echo mine,!echo theirs'")
    await page.until("!document.querySelector('.stop').hidden")
    await page.run("document.querySelector('.stop').click()")
    for one in (page, watcher):
        await one.until(
            f"document.querySelectorAll('.answer').length === 2 && !document.querySelector('.queue li') && {IDLE}"
        )
    assert await shown(page) == await shown(watcher) == await recorded(face, session)


@needs("chromium")
async def test_the_context_window_is_shown_by_part(browser: Browser, face: Face, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("line\n" * 500)
    page = await paired(browser, face)
    session = await begin(page, "!read long.txt", tmp_path)
    await page.until(f"{IDLE} && !document.querySelector('.window').hidden")
    await page.run("document.querySelector('.window').click()")
    await page.until("document.querySelector('dialog .bars')")
    assert await texts(page, "dialog .name") == ["System prompt", "Tools", "Messages", "Results of tools", "Free"]
    async with face.connected() as client:
        await client.call("initialize", {"protocolVersion": 1})
        use = (await client.call("session/context", {"sessionId": session}))["result"]
    widths = "[...document.querySelectorAll('dialog .bar:not(.none)')].map(one => Number(one.getAttribute('width')))"
    parts = [use[name] / use["window"] * 100 for name in ("system", "tools", "messages", "results")]
    assert await page.run(widths) == [*(max(1, round(part, 1)) for part in parts), 0]
    await page.run("document.querySelector('dialog').close()")
    await submit(page, "/context ")
    await page.until("document.querySelector('dialog .bars')")
    assert page.problems == []
