// Extensions for zot. One file without dependencies: install the package, or copy this file beside your extension.
// Types are in zot-ext.d.ts, what the frames mean in docs/reference/extensions.md.

const EVENTS = ["session_start", "turn_start", "turn_end", "tool_call", "assistant_message"];
const INTERCEPTED = ["tool_call", "turn_start", "assistant_message"];
const LEVELS = ["info", "success", "warn", "error"];
const NAMES = {
  hello: /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/,
  register_command: /^[^\s/\x00-\x1f\x7f]{1,64}$/,
  register_tool: /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/,
};
// How long what was heard before shutdown may still be worked on. zot waits two seconds in all.
const PATIENCE_MS = 1500;
const MAX_LINE_BYTES = 4 * 1024 * 1024;

/** Throw it in a tool: the model hears its text, and that the call failed. */
export class ToolError extends Error {}

class Response {
  constructor(fields) {
    this.fields = fields;
  }
}

class Decision {
  constructor(fields) {
    this.fields = fields;
  }
}

class Image {
  constructor(data, mimeType) {
    this.block = { type: "image", mime_type: mimeType, data: Buffer.from(data).toString("base64") };
  }
}

export function prompt(text) {
  if (!text.trim()) throw new Error("a prompt must not be empty");
  return new Response({ action: "prompt", prompt: text });
}
export const insert = (text) => new Response({ action: "insert", insert: text });
export const display = (text) => new Response({ action: "display", display: text });
export const noop = () => new Response({ action: "noop" });

export const allow = (note = "") => new Decision(note ? { reason: note } : {});
export const block = (reason) => new Decision({ block: true, reason });
export function modify(args, note = "") {
  JSON.stringify(args); // What is not JSON fails here, where it is blocked, and not when it is sent.
  return new Decision({ modified_args: args, ...(note ? { reason: note } : {}) });
}
export function replace(text, note = "") {
  if (!text) return block(note || "the message was removed");
  return new Decision({ replace_text: text, ...(note ? { reason: note } : {}) });
}

export const image = (data, mimeType = "image/png") => new Image(data, mimeType);

export class Panel {
  #send;

  constructor(id, { title = "", footer = "", draw, key, closed }, send) {
    Object.assign(this, { id, title, footer, draw, key, closed, isOpen: false });
    this.#send = send;
  }

  /** What a command answers with to open it. */
  open() {
    this.isOpen = true;
    return new Response({ action: "open_panel", open_panel: { id: this.id, ...this.#shown() } });
  }

  /** Draw it again, if it is open. */
  render() {
    if (this.isOpen) this.#send({ type: "panel_render", panel_id: this.id, ...this.#shown() });
  }

  /** Close it, if it is open. */
  close() {
    if (!this.isOpen) return;
    this.isOpen = false;
    this.#send({ type: "panel_close", panel_id: this.id });
  }

  #shown() {
    return { title: this.title, lines: [...this.draw()], footer: this.footer };
  }
}

export class Extension {
  #commands = new Map();
  #tools = new Map();
  #events = new Map();
  #interceptors = new Map();
  #panels = new Map();
  #setup = [];
  #atEnd = [];
  #early = [];
  #host = null;
  #send = null;
  #subscribed = false;
  // What watches is called in order: each waits for the one before.
  #lane = Promise.resolve();

  constructor(name, version = "", { onFailure = "allow" } = {}) {
    checkName("hello", name);
    mustBeOneOf("onFailure", onFailure, ["allow", "block"]);
    Object.assign(this, { name, version, onFailure });
  }

  command(name, description, handler) {
    checkName("register_command", name);
    mustBeNew("command", name, this.#commands);
    const frame = { type: "register_command", name, description };
    this.#commands.set(name, { frame, handler });
    this.#send?.(frame);
    return this;
  }

  tool(name, description, schema, handler) {
    checkName("register_tool", name);
    mustBeNew("tool", name, this.#tools);
    const frame = { type: "register_tool", name, description, schema };
    this.#tools.set(name, { frame, handler });
    this.#send?.(frame);
    return this;
  }

  on(event, handler) {
    mustBeOneOf("event", event, EVENTS);
    this.#mustNotBeSubscribed();
    this.#events.set(event, [...(this.#events.get(event) ?? []), handler]);
    return this;
  }

  intercept(event, handler) {
    mustBeOneOf("event to intercept", event, INTERCEPTED);
    this.#mustNotBeSubscribed();
    mustBeNew("interceptor of", event, this.#interceptors);
    this.#interceptors.set(event, handler);
    return this;
  }

  panel(id, options) {
    mustBeNew("panel", id, this.#panels);
    const panel = new Panel(id, options, (frame) => this.#send?.(frame));
    this.#panels.set(id, panel);
    return panel;
  }

  /** Call a function once zot has said where we are, before we say ready. It may declare more. */
  setup(handler) {
    this.#setup.push(handler);
    return this;
  }

  /** Call a function when zot shuts down. */
  atEnd(handler) {
    this.#atEnd.push(handler);
    return this;
  }

  get host() {
    if (!this.#host) throw new Error("zot has not answered hello yet: use it in a handler, or in setup");
    return this.#host;
  }

  get dataDir() {
    return this.host.data_dir;
  }

  notify(message, level = "info") {
    mustBeOneOf("level", level, LEVELS);
    const frame = { type: "notify", level, message };
    if (this.#send) this.#send(frame);
    else this.#early.push(frame);
  }

  /** Serve zot on standard input and output until it shuts us down. What is printed goes to standard error. */
  async run() {
    const write = process.stdout.write.bind(process.stdout);
    process.stdout.write = process.stderr.write.bind(process.stderr);
    process.stdout.on("error", () => {}); // zot is gone: so is its end of our input, and we leave.
    const receive = this.connect((...frames) => write(frames.map((frame) => JSON.stringify(frame) + "\n").join("")));
    for await (const frame of framesOf(process.stdin)) {
      if (frame.type === "shutdown") break;
      // Not awaited: one call does not wait for another. Only setup may fail, and then we cannot begin.
      const taken = receive(frame);
      if (frame.type === "hello_ack") await taken;
    }
    await Promise.race([this.finish(), new Promise((resolve) => setTimeout(resolve, PATIENCE_MS))]);
    await new Promise((resolve) => write('{"type":"shutdown_ack"}\n', resolve));
    process.exit(0);
  }

  /** For `run` and the testing client: say hello, and return what takes each frame from zot. */
  connect(send) {
    this.#subscribed = false;
    this.#host = null;
    const frames = [this.#hello(), ...this.#frames(this.#commands), ...this.#frames(this.#tools)];
    this.#send = send;
    send(...frames, ...(this.#setup.length ? [] : this.#last()));
    return (frame) => this.#take(frame);
  }

  /** For `run` and the testing client: wait for what watches, then say that it is over. */
  async finish() {
    await this.#inOrder(async () => {
      for (const handler of this.#atEnd) await attempt("atEnd", handler);
    });
  }

  async #take(frame) {
    switch (frame.type) {
      case "hello_ack":
        return this.#greeted(frame);
      case "command_invoked":
        return this.#send(await this.#commandResponse(frame));
      case "tool_call":
        return this.#send(await this.#toolResult(frame));
      case "event_intercept":
        return this.#inOrder(async () => this.#send(await this.#decision(frame)));
      case "event":
        return this.#inOrder(async () => {
          for (const handler of this.#events.get(frame.event) ?? []) await attempt(frame.event, () => handler(frame));
        });
      case "panel_key":
      case "panel_close":
        return this.#inOrder(() => attempt(frame.type, () => this.#panelTold(frame)));
      default: // A later zot may say more than we know.
        console.error(`zot-ext: unknown frame ${frame.type}`);
    }
  }

  async #greeted(frame) {
    this.#host = frame;
    if (!this.#setup.length) return;
    for (const handler of this.#setup) await handler();
    this.#send(...this.#last());
  }

  async #commandResponse({ id, name, args }) {
    const head = { type: "command_response", id };
    try {
      const returned = await this.#commands.get(name).handler(args ?? "");
      if (returned === undefined || returned === null) return { ...head, action: "noop" };
      if (typeof returned === "string") return { ...head, action: "display", display: returned };
      if (returned instanceof Response) return { ...head, ...returned.fields };
      throw new TypeError(`a command returns a response, a text or nothing, not ${JSON.stringify(returned)}`);
    } catch (problem) {
      return { ...head, action: "noop", error: told(`/${name}`, problem) };
    }
  }

  async #toolResult({ id, name, args }) {
    const head = { type: "tool_result", id };
    try {
      return shortEnough({ ...head, content: contentOf(await this.#tools.get(name).handler(args ?? {})) });
    } catch (problem) {
      const text = problem instanceof ToolError ? problem.message : told(name, problem);
      return { ...head, content: contentOf(text), is_error: true };
    }
  }

  async #decision(frame) {
    const head = { type: "event_intercept_response", id: frame.id };
    try {
      const decided = await this.#interceptors.get(frame.event)(frame);
      if (decided === undefined || decided === null) return head;
      if (decided instanceof Decision) return { ...head, ...decided.fields };
      throw new TypeError(`an interceptor returns a decision or nothing, not ${JSON.stringify(decided)}`);
    } catch (problem) {
      // One that fails does not let things through.
      return { ...head, block: true, reason: told(`the interceptor of ${frame.event} in ${this.name}`, problem) };
    }
  }

  async #panelTold(frame) {
    const panel = this.#panels.get(frame.panel_id);
    if (!panel) return;
    if (frame.type === "panel_close") {
      panel.isOpen = false;
      await panel.closed?.();
    } else {
      await panel.key?.(frame.key, frame.text ?? "");
      panel.render();
    }
  }

  #inOrder(job) {
    this.#lane = this.#lane.then(job).catch((problem) => void told("zot-ext", problem));
    return this.#lane;
  }

  #hello() {
    const some = {
      commands: this.#commands.size,
      tools: this.#tools.size,
      events: this.#events.size + this.#interceptors.size,
      panels: this.#panels.size,
    };
    // What is set up later may turn out to be anything.
    const capabilities = Object.keys(some).filter((name) => some[name] || this.#setup.length);
    return { type: "hello", name: this.name, version: this.version, capabilities };
  }

  #frames(declared) {
    return [...declared.values()].map(({ frame }) => frame);
  }

  #last() {
    this.#subscribed = true;
    const [events, intercept] = [[...this.#events.keys()], [...this.#interceptors.keys()]];
    const subscribe = { type: "subscribe", events, intercept, on_failure: this.onFailure };
    return [...(events.length + intercept.length ? [subscribe] : []), { type: "ready" }, ...this.#early.splice(0)];
  }

  #mustNotBeSubscribed() {
    if (this.#subscribed) throw new Error("events and interceptors are declared before zot is told that we are ready");
  }
}

/** Yield the frames of a byte stream: cut at LF alone, what is not JSON is written to the log. */
export async function* framesOf(stream) {
  let pieces = [];
  for await (const chunk of stream) {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      const line = Buffer.concat([...pieces, chunk.subarray(start, end)]).toString("utf8");
      [pieces, start] = [[], end + 1];
      if (!line.trim()) continue;
      try {
        yield JSON.parse(line);
      } catch (problem) {
        console.error(`zot-ext: ${problem.message}`);
      }
    }
    pieces.push(chunk.subarray(start));
  }
}

function contentOf(output) {
  if (output === undefined || output === null) return [];
  const pieces = Array.isArray(output) && output.length && output.every(isPiece) ? output : [output];
  return pieces.map((piece) => {
    if (piece instanceof Image) return piece.block;
    return { type: "text", text: typeof piece === "string" ? piece : JSON.stringify(piece) };
  });
}

/** A line that is too long is not read, and would fail other calls, too. */
function shortEnough(result) {
  const size = Buffer.byteLength(JSON.stringify(result));
  if (size > MAX_LINE_BYTES) throw new ToolError(`the result is too long: ${size} bytes; more than 4 MiB is not read`);
  return result;
}

const isPiece = (piece) => typeof piece === "string" || piece instanceof Image;

async function attempt(who, job) {
  try {
    await job();
  } catch (problem) {
    told(who, problem);
  }
}

/** Write a failure to the log, which standard error is, and return what is said of it. */
function told(who, problem) {
  console.error(problem);
  return `${who} failed: ${problem}`;
}

function checkName(kind, name) {
  if (typeof name !== "string" || !NAMES[kind].test(name)) throw new Error(`${kind}: no good name: ${name}`);
}

function mustBeNew(kind, name, known) {
  if (known.has(name)) throw new Error(`there is already a ${kind} ${name}`);
}

function mustBeOneOf(kind, name, known) {
  if (!known.includes(name)) throw new Error(`no ${kind} ${name}; known: ${known.join(", ")}`);
}
