// The view of one session: its transcript, panels, composer, facts and actions.

import { Composer, mention } from "./composer.js";
import { Lost } from "./connection.js";
import { announce, button, confirmed, count, dialog, fill, h, icon, say, shares, short, tail, toast } from "./dom.js";
import { Panels } from "./panels.js";
import { textOf } from "./tools.js";
import { Transcript, downButton, usageText } from "./transcript.js";

const PAGE = 40;
const OLDER_PAGE = 20; // Small, so that scrolling never waits for one.
const NEAR_PX = 800;
const STATES = { idle: "idle", running: "running", waiting_approval: "waits for you" };

export class Conversation {
  constructor({ connection, board, cards }, id) {
    this.connection = connection;
    this.board = board;
    this.id = id;
    this.sent = new Map(); // Our prompts without an answer, by prompt id: {text, attachments, steers, waits, isLost}.
    this.isLoaded = false;
    this.loads = 0;
    this.first = 0; // The number of the oldest message that is shown.
    this.sticks = true; // Whether the end is in sight, so that the view follows it.
    this.state = null; // The last answer of session/state.
    this.commands = null;
    this.installed = [];
    this.transcript = new Transcript({
      sessionId: id, cards, onUsage: () => this.facts(), fetchImage: (where) => this.call("session/image", where),
    });
    this.panels = new Panels(connection, id);
    this.composer = new Composer({
      complete: (kind, word) => this.complete(kind, word),
      send: (prompt) => this.submit(prompt),
      stop: () => this.act("session/cancel"),
    });
    this.newest = downButton(() => this.toEnd(true));
    this.build();
    this.load();
  }

  build() {
    this.title = h("h2");
    this.status = h("p.facts", { role: "status" });
    this.place = h("p.facts.place");
    this.meter = h("meter", { min: 0, max: 1, "aria-hidden": true });
    this.window = h("button", { type: "button", class: "quiet window", hidden: true, on: { click: () => this.context() } }, this.meter);
    this.queue = h("ul.queue", { "aria-label": "Prompts that wait", hidden: true });
    this.extensionButton = button("Extensions", () => this.extensions(), { kind: "quiet", hidden: true });
    this.menu = h("details.menu", null, h("summary", { "aria-label": "Actions", title: "Actions" }, icon("more")), h("div.items", null,
      ...Object.entries(COMMANDS).map(([name, [help]]) => {
        const one = button(name, () => { this.menu.open = false; this[name](""); }, { kind: "quiet" });
        one.title = help;
        return one;
      })));
    this.menu.addEventListener("keydown", (press) => {
      if (press.key !== "Escape") return;
      this.menu.open = false;
      this.menu.firstChild.focus();
    });
    this.menu.addEventListener("focusout", (event) => event.relatedTarget && !this.menu.contains(event.relatedTarget) && (this.menu.open = false));
    const back = h("a.back", { href: "#/", "aria-label": "Back to the sessions" }, icon("back"));
    const log = this.transcript.element;
    this.element = h("div.conversation", null,
      h("div.head", null, back, h("div.names", null, this.title, this.status, this.place), this.window, this.extensionButton, this.menu),
      log, this.newest, this.panels.element, this.queue, this.composer.element);
    this.composer.takeDrops(this.element);
    log.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.toEnd()).observe(log); // The queue or a panel below it may cover a request.
  }

  call(method, params) {
    return this.connection.call(method, { sessionId: this.id, ...params });
  }

  /** Call a method; a refusal becomes a note. Resolves with undefined then. */
  async act(method, params) {
    try {
      return await this.call(method, params);
    } catch (problem) {
      toast(problem.message, { kind: "error" });
      return undefined;
    }
  }

  // Loading.

  /** Show the newest messages, then follow from there. Also after another history took the place of this one. */
  async load() {
    this.loads += 1;
    const { loads } = this;
    this.isLoaded = false;
    if (!this.connection.isUp) return;
    try {
      const state = await this.call("session/state");
      const page = await this.call("session/messages", { limit: PAGE, view: "past" });
      if (loads !== this.loads) return;
      this.isLoaded = true;
      this.first = page.start;
      this.transcript.reset();
      this.transcript.prepend(page.messages);
      this.connection.subscribe(this.id, { after: page.lastSeq ?? 0, epoch: state.epoch });
      this.become(state);
      this.toEnd(true);
      this.readExtensions();
    } catch (problem) {
      if (!(problem instanceof Lost)) this.failed(problem.message);
    }
  }

  async older() {
    if (this.isReading || !this.first || !this.isLoaded) return;
    this.isReading = true;
    const { loads } = this;
    try {
      const page = await this.call("session/messages", { limit: OLDER_PAGE, beforeIndex: this.first, view: "past" });
      if (loads !== this.loads) return;
      const log = this.transcript.element;
      if (log.scrollTop < 1) log.scrollTop = 1; // Otherwise the browser keeps the top in view, not the messages.
      this.first = page.start;
      this.transcript.prepend(page.messages);
    } catch (problem) {
      if (!(problem instanceof Lost)) toast(problem.message, { kind: "error" });
    } finally {
      this.isReading = false;
    }
    if (this.transcript.element.scrollTop < NEAR_PX) requestAnimationFrame(() => this.older());
  }

  /** The connection is back: load what was never loaded; subscriptions continue by themselves. */
  reconnected() {
    if (this.isLoaded) this.readState();
    else this.load();
  }

  // What the daemon says.

  take(event) {
    if (event.type.startsWith("panel_")) this.panels.take(event);
    else this.transcript.take(event);
    if (event.prompt_id) this.begun(event.prompt_id);
    if (this.sticks) this.toEnd();
    if (event.type === "conversation_replaced") this.load();
    else if (event.type === "compact_done") this.first = 0; // Its numbers have changed: older messages come with the next load.
    if (["user_message", "done", "approval_request", "approval_answer"].includes(event.type)) this.update();
    if (["reconfigured", "compact_done"].includes(event.type)) this.readState();
    if (["ext_notify", "reconfigured"].includes(event.type)) this.readExtensions();
  }

  attached({ state }) {
    this.transcript.running = state !== "idle";
    this.panels.reset();
    this.update();
  }

  /** The daemon has the prompts that the transcript shows or that wait in its queue; others were lost on the way. */
  async caughtUp() {
    this.update();
    if (!await this.readState()) return;
    for (const [id, { text, attachments, isLost }] of this.sent) {
      if (!isLost || this.state.queue?.some((one) => one.promptId === id)) continue;
      this.sent.delete(id);
      this.unsent(text, attachments, "The connection was lost before this was sent.");
    }
    this.drawQueue();
  }

  unsent(text, attachments, reason) {
    this.transcript.notice(reason, "error");
    this.composer.restore(text, attachments);
  }

  failed(reason) {
    this.transcript.notice(reason, "error");
    this.update();
  }

  /** Read the state again: it has changed. Resolves with false if it cannot be read. */
  async readState() {
    const state = await this.call("session/state").catch(() => null);
    if (state) this.become(state);
    return state !== null;
  }

  become(state) {
    this.state = state;
    this.drawQueue();
    this.drawExtensions();
  }

  async readExtensions() {
    const found = await this.call("session/extensions").catch(() => null);
    if (!found) return;
    this.installed = found.extensions;
    this.commands = null; // They may have changed as well.
    this.drawExtensions();
  }

  /** What the button says: how many extensions and MCP servers there are, and how many of them do not run. */
  drawExtensions() {
    const servers = this.state?.mcp ?? [];
    const names = [[this.installed, "extension"], [servers, "MCP server"]].filter(([some]) => some.length)
      .map(([some, name]) => count(some.length, name)).join(", ");
    const all = [...this.installed, ...servers];
    const broken = all.filter((one) => !FINE.includes(one.state)).length;
    say(this.extensionButton, broken ? `${names}: ${broken} not running` : names);
    this.extensionButton.classList.toggle("warn", broken > 0);
    this.extensionButton.hidden = !names;
    this.update();
    this.listExtensions();
    clearTimeout(this.looking); // The daemon does not announce that one has started or given up.
    if (all.some((one) => ["starting", "restarting"].includes(one.state))) this.looking = setTimeout(() => { this.readExtensions(); this.readState(); }, 1000);
  }

  // Drawing.

  update() {
    const { running } = this.transcript;
    say(this.title, this.board.titleOf(this.id));
    this.composer.update(running);
    this.composer.element.hidden = this.connection.capabilities.size > 0 && !this.connection.may("session/prompt");
    for (const one of this.menu.querySelectorAll("button")) one.hidden = !this.mayRun(one.textContent);
    this.menu.hidden = !this.menu.querySelector("button:not([hidden])");
    this.facts();
  }

  /** True if a command can be used here and now. */
  mayRun(name) {
    const useless = { stop: !this.transcript.running, extensions: this.extensionButton.hidden }[name];
    return this.connection.may(COMMANDS[name][1]) && !useless;
  }

  facts() {
    const entry = this.board.sessions.get(this.id);
    const waits = this.board.stateOf(this.id) === "waiting_approval";
    const state = this.transcript.running ? (waits ? "waiting_approval" : "running") : "idle";
    this.element.dataset.state = state;
    const usage = this.transcript.usage ?? this.state?.usage;
    say(this.status, [STATES[state], this.state?.model ?? "", usageText(usage)].filter(Boolean).join(" · "));
    const cwd = entry?.cwd ?? this.state?.cwd ?? "";
    say(this.place, [entry?.agentAlias ?? this.state?.agentAlias, tail(cwd), entry?.branch, this.state?.locked ? "locked" : ""].filter(Boolean).join(" · "));
    this.place.title = cwd;
    const { contextTokens: used, contextWindow: all } = this.state ?? {};
    this.window.hidden = !all;
    if (all) {
      this.meter.value = used / all;
      this.window.title = `${short(used)} of ${short(all)} tokens of the context window`;
      this.window.setAttribute("aria-label", this.window.title);
    }
  }

  scrolled() {
    const log = this.transcript.element;
    const below = log.scrollHeight - log.scrollTop - log.clientHeight;
    this.sticks = below < 80;
    this.newest.hidden = below < 400;
    if (log.scrollTop < NEAR_PX) this.older();
  }

  /** Scroll to the end, once a frame: measuring after each event would lay the page out each time. */
  toEnd(always = false) {
    if (always) this.sticks = true;
    if (this.isScrolling) return;
    this.isScrolling = true;
    requestAnimationFrame(() => {
      this.isScrolling = false;
      if (this.sticks) this.transcript.element.scrollTop = this.transcript.element.scrollHeight;
    });
  }

  // Prompts and commands.

  async complete(kind, word) {
    if (kind === "file") {
      const { files } = await this.call("session/files", { query: word, limit: 8 });
      const { resources } = await this.call("session/resources").catch(() => ({ resources: [] }));
      return [...resources.filter((one) => word && one.mention.startsWith(`@${word}`)).slice(0, 8)
        .map((one) => ({ text: `${one.mention} `, label: one.mention, help: one.title })),
      ...files.map((path) => ({ text: `${mention(path)} `, label: path }))];
    }
    this.commands ??= (await this.call("session/commands").catch(() => ({ commands: [] }))).commands;
    const all = [...Object.keys(COMMANDS).filter((name) => this.mayRun(name)).map((name) => ({ name, help: COMMANDS[name][0] })),
      ...this.commands.map((one) => ({ name: one.name, help: `${one.description} (${one.extension})` }))];
    return all.filter((one) => one.name.startsWith(word)).map((one) => ({ text: `/${one.name} `, label: `/${one.name}`, help: one.help }));
  }

  async submit({ text, attachments, steers }) {
    const command = /^\/(\S+)\s*([\s\S]*)$/.exec(text);
    if (command && !attachments.length) await this.command(command[1], command[2].trim(), text);
    else await this.prompt(text, attachments, steers);
  }

  async command(name, args, text) {
    if (Object.hasOwn(COMMANDS, name)) {
      await this[name](args);
      return;
    }
    try {
      const answer = await this.call("session/run_command", { name, args });
      if (answer.insert) this.composer.insert(answer.insert);
      if (answer.display) this.transcript.notice(answer.display);
      if (answer.panelId) this.panels.focus(answer.panelId);
      if (this.sticks) this.toEnd();
    } catch (problem) {
      this.unsent(text, [], problem.message);
    }
  }

  async prompt(prompt, attachments = [], steers = false) {
    const promptId = crypto.randomUUID();
    const one = { text: prompt, attachments, steers, waits: this.transcript.running };
    this.sent.set(promptId, one);
    this.drawQueue();
    this.sticks = true;
    const files = attachments.map(({ dataB64, filename, mimeType }) => ({ dataB64, filename, ...(mimeType ? { mimeType } : {}) }));
    try {
      const { stopReason } = await this.call(steers ? "session/steer" : "session/prompt", { prompt, promptId, ...(files.length ? { attachments: files } : {}) });
      if (!this.sent.has(promptId)) return; // It was withdrawn.
      if (stopReason === "cancelled" && !this.transcript.prompts.has(promptId)) this.unsent(prompt, attachments, "Another client withdrew this prompt.");
      else if (!steers) announce("The answer is complete.");
    } catch (problem) {
      if (!this.sent.has(promptId)) return;
      // A turn that failed shows its error, perhaps later; a prompt that was refused never became one.
      const began = this.transcript.prompts.has(promptId) || problem.data?.stopReason;
      if (problem.sent && !began) {
        one.isLost = true; // The replay will tell.
        return;
      }
      if (!began) this.unsent(prompt, attachments, problem.message);
    }
    this.sent.delete(promptId);
    this.drawQueue();
  }

  /** A prompt has left the queue: its turn has begun. */
  begun(promptId) {
    const one = this.sent.get(promptId);
    if (one) one.waits = false;
    if (one?.isLost) this.sent.delete(promptId);
    this.unqueue(promptId);
  }

  unqueue(promptId) {
    if (this.state?.queue) this.state.queue = this.state.queue.filter((one) => one.promptId !== promptId);
    this.drawQueue();
  }

  /** Show the prompts that wait: those of all clients, and ours that are on their way to the daemon. */
  drawQueue() {
    const known = this.state?.queue ?? [];
    const ours = [...this.sent].map(([promptId, one]) => ({ promptId, ...one })).filter((one) => one.waits && !known.some(({ promptId }) => promptId === one.promptId));
    fill(this.queue, ...[...known, ...ours].map(({ promptId, text, steers, by }) => {
      const label = text || "Attachments";
      const owner = by && !this.sent.has(promptId) ? ` by ${by}` : "";
      return h("li", null, h("span.facts", null, `${steers ? "Steers" : "Queued"}${owner}`), h("span.text", null, label),
        promptId && this.connection.may("session/take_back") ? button(`Withdraw: ${label}`, () => this.withdraw(promptId, label), { kind: "quiet", picture: "close" }) : null);
    }));
    this.queue.hidden = !this.queue.children.length;
  }

  /** Take back a prompt that waits. The daemon answers a queued one only after the running turn, so this does not wait. */
  async withdraw(promptId, label) {
    const one = this.sent.get(promptId);
    if (!one && !await confirmed("Withdraw this prompt?", label, "Withdraw")) return;
    this.sent.delete(promptId);
    if (await this.act("session/take_back", { promptId })) {
      if (one) this.composer.restore(one.text, one.attachments);
      this.unqueue(promptId);
    } else if (one) this.sent.set(promptId, { ...one, isLost: !this.connection.isUp });
  }

  // Actions.

  async rename(given = "") {
    const title = given || await dialog("Rename the session", (close) => {
      const input = h("input", { type: "text", value: this.board.titleOf(this.id), "aria-label": "Title", maxLength: 80 });
      return h("form.fields", { on: { submit: (press) => { press.preventDefault(); close(input.value.trim()); } } }, input,
        h("p.buttons", null, h("button", { type: "submit", class: "main" }, "Rename")));
    });
    if (title && await this.act("session/rename", { title })) await this.board.refresh();
    this.update();
  }

  async fork(messages) {
    const made = await this.act("session/fork", typeof messages === "number" ? { messages } : {});
    if (!made) return;
    toast("Forked: this is the copy.");
    this.board.refresh();
    location.hash = `#/s/${encodeURIComponent(made.sessionId)}`;
  }

  async compact() {
    if (await this.act("session/compact")) this.load();
  }

  async clear() {
    if (await confirmed("Clear the conversation?", "The model forgets it. A rewind brings it back.", "Clear")) await this.act("session/clear");
  }

  async delete() {
    if (!await confirmed("Delete the session?", `“${this.board.titleOf(this.id)}” is deleted for good, for everybody.`, "Delete")) return;
    if (!await this.act("session/delete")) return;
    this.board.refresh();
    location.hash = "#/";
  }

  async model(name) {
    const { models } = await this.act("session/models") ?? {};
    if (!models) return;
    const id = name || await dialog("Choose a model", (close) => h("ul.choices", null, ...models.map((one) => h("li", null,
      button(one.name || one.id, () => close(one.id), { kind: one.id === this.state?.model ? "main" : "" })))));
    if (id && await this.act("session/configure", { overrides: { model: id } })) toast(`The model is ${id} now.`);
  }

  /** Let the person choose a prompt to go back to, and show what would happen to files first. */
  async rewind() {
    const page = await this.act("session/messages", {});
    if (!page) return;
    const prompts = page.messages.map((one, at) => ({ ...one, number: page.start + at })).filter((one) => one.role === "user" && textOf(one.blocks));
    if (!prompts.length) {
      toast("There is no prompt to go back to.");
      return;
    }
    const chosen = await dialog("Rewind", (close) => this.rewindForm(prompts.reverse(), close));
    if (!chosen) return;
    if (chosen.forks) {
      await this.fork(chosen.messages);
      return;
    }
    const done = await this.act("session/rewind", { messages: chosen.messages, files: chosen.files });
    if (!done) return;
    if (!this.composer.value) this.composer.value = chosen.text;
    toast(`Rewound; ${count(done.files.length, "file")} restored.`, {
      label: "Undo", act: () => this.act("session/rewind", { at: done.undo, files: chosen.files }),
    });
  }

  rewindForm(prompts, close) {
    let current = null;
    const preview = h("div.preview", { role: "status" });
    const files = h("input", { type: "checkbox", checked: true });
    const go = button("Rewind", () => close({ messages: current.number, files: files.checked, text: textOf(current.blocks) }), { kind: "main" });
    const copy = button("Fork from here", () => close({ messages: current.number, forks: true }));
    const look = async (one) => {
      current = one;
      go.disabled = copy.disabled = false;
      say(preview, "Looking…");
      try {
        const would = await this.call("session/rewind", { messages: one.number, files: true, preview: true });
        if (current !== one) return;
        fill(preview, h("p", null, would.files.length ? "These files change:" : "No files change."),
          h("ul", null, ...would.files.map((file) => h("li", null, h("code", null, file.path), ` ${WORDS[file.change] ?? file.change}`))));
      } catch (problem) {
        if (current === one) say(preview, problem.message);
      }
    };
    go.disabled = copy.disabled = true;
    return [h("p.facts", null, "Go back to before a prompt. Later messages leave the conversation; a second rewind brings them back."),
      h("div.choices", { role: "radiogroup", "aria-label": "Prompts" }, ...prompts.map((one) => h("label", null,
        h("input", { type: "radio", name: "prompt", on: { change: () => look(one) } }), h("span", null, textOf(one.blocks).slice(0, 200))))),
      preview, h("label.check", null, files, h("span", null, "Restore files")), h("p.buttons", null, go, copy)];
  }

  /** Show what fills the model's window. */
  async context() {
    const use = await this.act("session/context");
    if (!use) return;
    const parts = [["System prompt", use.system], ["Tools", use.tools], ["Messages", use.messages], ["Results of tools", use.results]];
    const used = parts.reduce((sum, [, tokens]) => sum + tokens, 0);
    dialog("Context window", (close) => [
      h("p.facts", null, `${short(used)}${use.window ? ` of ${short(use.window)}` : ""} tokens, by estimate`),
      shares([...parts, ...(use.window ? [["Free", use.free]] : [])].map(([name, tokens]) => ({ name, value: short(tokens), share: name === "Free" ? 0 : tokens / (use.window || used || 1) }))),
      this.connection.may("session/compact") ? h("p.buttons", null, button("Compact", () => { close(); this.compact(); })) : null]);
  }

  async extensions() {
    this.list = h("div");
    this.listExtensions();
    this.readExtensions();
    this.readState();
    await dialog("Extensions", () => this.list);
    this.list = null;
  }

  /** Fill the open dialog of extensions and MCP servers. */
  listExtensions() {
    if (!this.list) return;
    const item = ({ name, state, problem }, offers) => h("li", { data: { state } },
      h("div.row", null, h("span.dot", { "aria-hidden": true }), h("b", null, name), h("span.facts", null, STANDINGS[state] ?? state)),
      problem ? h("p.notice.error", null, problem) : null, offers ? h("p.facts", null, offers) : null);
    const servers = this.state?.mcp ?? [];
    fill(this.list, h("ul.extensions", null, ...this.installed.map((one) => item(one, [...one.tools, ...one.commands.map((name) => `/${name}`)].join(", ")))),
      servers.length ? h("h3", null, "MCP servers") : null,
      h("ul.extensions.servers", null, ...servers.map((one) => item(one, one.tools ? count(one.tools, "tool") : ""))));
  }

  stop() {
    return this.act("session/cancel");
  }
}

/** States in which an extension or an MCP server needs no attention. */
const FINE = ["idle", "starting", "running", "disabled", "shadowed"];
const STANDINGS = { idle: "starts when it is used", login: "needs a login" };
const WORDS = { changed: "is changed back", created: "is created again", removed: "is removed" };
/** Commands of the page and its menu, methods of the view: what each does, and the daemon's method that it needs. */
const COMMANDS = {
  stop: ["Stop the running turn", "session/cancel"],
  rename: ["Rename the session", "session/rename"],
  model: ["Choose the model", "session/configure"],
  rewind: ["Go back to an earlier prompt", "session/rewind"],
  fork: ["Copy the session", "session/fork"],
  context: ["Show what fills the model's window", "session/context"],
  compact: ["Summarize older messages for the model", "session/compact"],
  clear: ["Clear the conversation", "session/clear"],
  extensions: ["Show the extensions and MCP servers", "session/extensions"],
  delete: ["Delete the session", "session/delete"],
};
