// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";

import { Extension, ToolError, allow, block, display, framesOf, image, insert, modify, noop, prompt, replace } from "../zot-ext.js";
import { Client } from "../testing.js";

/** @param {Extension} extension @param {(client: Client) => Promise<void>} talk */
async function withClient(extension, talk) {
  const client = await new Client(extension).start();
  await talk(client);
  await client.stop();
}

const quiet = (/** @type {() => Promise<void>} */ job) => async () => {
  const { error } = console;
  console.error = () => {};
  await job().finally(() => (console.error = error));
};

test("it says what was declared in one go", async () => {
  const extension = new Extension("x", "1.0", { onFailure: "block" });
  extension.notify("early");
  extension.command("hi", "say hi", () => {});
  extension.tool("look", "Look it up.", { type: "object" }, () => "");
  extension.on("turn_end", () => {}).intercept("tool_call", () => {});
  await withClient(extension, async (client) => {
    assert.deepEqual(client.frames, [
      { type: "hello", name: "x", version: "1.0", capabilities: ["commands", "tools", "events"] },
      { type: "register_command", name: "hi", description: "say hi" },
      { type: "register_tool", name: "look", description: "Look it up.", schema: { type: "object" } },
      { type: "subscribe", events: ["turn_end"], intercept: ["tool_call"], on_failure: "block" },
      { type: "ready" },
      { type: "notify", level: "info", message: "early" },
    ]);
  });
});

test("it can decide what to declare when it knows where it is", async () => {
  const extension = new Extension("x");
  extension.setup(async () => void extension.command("here", extension.host.provider, () => extension.dataDir));
  await withClient(extension, async (client) => {
    assert.deepEqual(client.frames.map(({ type }) => type), ["hello", "register_command", "ready"]);
    assert.match((await client.command("here")).display ?? "", /zot-ext-/);
  });
  assert.throws(() => new Extension("y").dataDir, /not answered hello/);
  assert.throws(() => extension.on("turn_end", () => {}), /before zot is told/);
});

for (const [name, returned, response] of /** @type {[string, any, object][]} */ ([
  ["nothing", undefined, { action: "noop" }],
  ["a text", "note", { action: "display", display: "note" }],
  ["a prompt", prompt("Greet me."), { action: "prompt", prompt: "Greet me." }],
  ["what to insert", insert("x"), { action: "insert", insert: "x" }],
  ["what to display", display("x"), { action: "display", display: "x" }],
  ["noop", noop(), { action: "noop" }],
])) {
  test(`a command answers with ${name}`, async () => {
    const extension = new Extension("x").command("go", "", async () => returned);
    await withClient(extension, async (client) => {
      assert.deepEqual(await client.command("go"), { type: "command_response", id: "1", ...response });
    });
  });
}

test("a command is given what was typed", async () => {
  const extension = new Extension("x").command("echo", "", (args) => args);
  await withClient(extension, async (client) => {
    assert.equal((await client.command("echo", "  a b ")).display, "a b");
    await assert.rejects(client.command("ecko"), /no command ecko; there are echo/);
  });
});

test("a tool returns text, pictures or JSON", async () => {
  const extension = new Extension("x").tool("go", "", {}, ({ what }) => ({
    text: "a", json: { a: [1] }, picture: image(Buffer.from("hi")), both: ["a", image(Buffer.from("hi"), "image/gif")],
  })[/** @type {"text"} */ (what)]);
  const picture = { type: "image", mime_type: "image/png", data: "aGk=" };
  await withClient(extension, async (client) => {
    assert.deepEqual((await client.call("go", { what: "text" })).content, [{ type: "text", text: "a" }]);
    assert.deepEqual((await client.call("go", { what: "json" })).text, '{"a":[1]}');
    assert.deepEqual((await client.call("go", { what: "picture" })).content, [picture]);
    assert.deepEqual((await client.call("go", { what: "both" })).content[1], { ...picture, mime_type: "image/gif" });
    assert.deepEqual((await client.call("go", { what: "none" })).content, []);
  });
});

test("a handler that throws has answered", quiet(async () => {
  const extension = new Extension("x")
    .command("fail", "", () => { throw new RangeError("oops"); })
    .tool("refuse", "", {}, async () => { throw new ToolError("no such city"); })
    .tool("fail", "", {}, () => { throw new RangeError("oops"); })
    .intercept("turn_start", async () => { throw new RangeError("oops"); });
  await withClient(extension, async (client) => {
    assert.equal((await client.command("fail")).error, "/fail failed: RangeError: oops");
    const { text, isError } = await client.call("refuse");
    assert.deepEqual([text, isError], ["no such city", true]);
    assert.equal((await client.call("fail")).text, "fail failed: RangeError: oops");
    const { block: blocked, reason } = await client.intercept("turn_start");
    assert.deepEqual([blocked, reason], [true, "the interceptor of turn_start in x failed: RangeError: oops"]);
  });
}));

test("an interceptor decides", quiet(async () => {
  const decisions = [undefined, allow("fine"), block("no"), modify({ a: 1 }), replace("*"), replace(""), true];
  const extension = new Extension("x").intercept("tool_call", ({ step = 0 }) => /** @type {any} */ (decisions[step]));
  const head = { type: "event_intercept_response" };
  await withClient(extension, async (client) => {
    const answers = [];
    for (const step of decisions.keys()) answers.push(await client.intercept("tool_call", { step }));
    assert.deepEqual(answers.map((answer) => ({ ...answer, id: undefined })), [
      {}, { reason: "fine" }, { block: true, reason: "no" }, { modified_args: { a: 1 } }, { replace_text: "*" },
      { block: true, reason: "the message was removed" },
      { block: true, reason: "the interceptor of tool_call in x failed: TypeError: an interceptor returns a decision or nothing, not true" },
    ].map((fields) => ({ ...head, id: undefined, ...fields })));
  });
}));

test("what watches is called in order, what is called is not", async () => {
  /** @type {string[]} */
  const heard = [];
  /** @type {(value?: unknown) => void} */
  let release = () => {};
  const released = new Promise((resolve) => (release = resolve));
  const extension = new Extension("x")
    .tool("slow", "", {}, async () => { await released; return "slow"; })
    .tool("quick", "", {}, () => "quick")
    .on("turn_start", async ({ step }) => { await new Promise(setImmediate); heard.push(`event ${step}`); })
    .intercept("turn_start", ({ step }) => void heard.push(`question ${step}`))
    .atEnd(() => void heard.push("end"));
  await withClient(extension, async (client) => {
    const slow = client.call("slow");
    assert.equal((await client.call("quick")).text, "quick");
    await Promise.all([client.tell("turn_start", { step: 1 }), client.intercept("turn_start", { step: 2 })]);
    release();
    assert.equal((await slow).text, "slow");
  });
  assert.deepEqual(heard, ["event 1", "question 2", "end"]);
});

test("a panel is drawn when it opens and after each key", async () => {
  const extension = new Extension("x");
  /** @type {string[]} */
  const pressed = [];
  let closed = 0;
  const panel = extension.panel("list", {
    title: "List", draw: () => (pressed.length ? pressed : ["empty"]), closed: () => void closed++,
    key: (key, text) => { pressed.push(text || key); if (text === "q") panel.close(); },
  });
  extension.command("show", "", () => panel.open());
  await withClient(extension, async (client) => {
    assert.deepEqual((await client.command("show")).open_panel, { id: "list", title: "List", lines: ["empty"], footer: "" });
    assert.deepEqual(await client.press("list", "down"), ["down"]);
    assert.equal(await client.press("list", "rune", "q"), undefined);
    await client.command("show");
    await client.closePanel("list");
    assert.deepEqual([closed, panel.isOpen], [1, false]);
  });
});

test("what zot would refuse is refused where it is declared", () => {
  const extension = new Extension("x").command("a", "", noop).tool("a", "", {}, noop);
  assert.throws(() => extension.command("a b", "", noop), /no good name: a b/);
  assert.throws(() => extension.command("a", "", noop), /already a command a/);
  assert.throws(() => extension.tool("a.b", "", {}, noop), /no good name: a.b/);
  assert.throws(() => extension.on(/** @type {any} */ ("nope"), () => {}), /no event nope; known: session_start/);
  assert.throws(() => extension.intercept(/** @type {any} */ ("turn_end"), () => {}), /no event to intercept turn_end/);
  assert.throws(() => extension.notify("m", /** @type {any} */ ("warning")), /no level warning/);
  assert.throws(() => new Extension("no/name"), /no good name/);
  assert.throws(() => prompt(" "), /must not be empty/);
});

test("lines are cut at LF alone, however they come", quiet(async () => {
  const stream = Buffer.from('{"type":"shutdown","x":"\u2028é"}\r\n\n \nnonsense\n{"type":"event"}\nrest');
  async function* bytes() { for (const byte of stream) yield Buffer.from([byte]); }
  async function* whole() { yield stream; }
  for (const source of [bytes(), whole()]) {
    const frames = [];
    for await (const frame of framesOf(source)) frames.push(frame);
    assert.deepEqual(frames, [{ type: "shutdown", x: "\u2028é" }, { type: "event" }]);
  }
}));
