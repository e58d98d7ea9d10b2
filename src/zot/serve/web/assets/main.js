// The dashboard: pairing, routes, the list of sessions, the inbox, and one conversation at a time.

import { Connection, Lost, device } from "./connection.js";
import { ago, fill, h, money, say, visible } from "./dom.js";
import { Transcript, usageText } from "./transcript.js";

const LIST_MS = 2000;
const MOST_SESSIONS = 200;
const MOST_COSTS = 30;
const STATES = {
  connecting: "Connecting…",
  catching: "Catching up…",
  live: "Live",
  lost: "Connection lost, reconnecting…",
  unpaired: "Not paired",
};
const WORDS = { idle: "idle", running: "running", waiting_approval: "waits for you" };

const base = new URL("./", document.location.href);
const connection = new Connection(base);
const find = (id) => document.getElementById(id);
const main = find("main");

const sessions = new Map(); // Entries of session/list, by id.
const states = new Map(); // session/state by id, with the lastSeq it was read at.
const open = new Map(); // Conversations that were opened, by id.
const approvals = new Map(); // Open approvals, by session id and request id.
let agents = [];
let route = { view: "sessions" };

// Pairing.

async function start() {
  const code = /^#pair=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", `${location.pathname}#/`);
    const answer = await fetch(new URL("pair", base), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ code }),
      credentials: "same-origin",
    }).catch(() => null);
    // A used link in a browser that is paired already does no harm.
    if (!answer?.ok && !await device(base)) {
      unpaired(answer ? await answer.text() : "The daemon does not answer.");
      return;
    }
  } else if (await device(base) === null) {
    unpaired("");
    return;
  }
  connection.connect();
}

function unpaired(reason) {
  connection.become("unpaired");
  fill(main, h("section", { class: "card" }, h("h2", null, "This browser is not paired"),
    reason ? h("p", { class: "notice error" }, reason) : null,
    h("p", null, "Run ", h("code", null, "zot web pair"), " on the daemon's machine and open the link that it prints.")));
  document.body.dataset.view = "unpaired";
}

find("unpair").addEventListener("click", async () => {
  if (!window.confirm("Unpair this browser? Only a new link can pair it again.")) return;
  const answer = await fetch(new URL("unpair", base), { method: "POST", credentials: "same-origin" }).catch(() => null);
  if (!answer?.ok) say(find("link"), "The daemon did not unpair this browser.");
});

connection.addEventListener("state", ({ detail }) => {
  const link = find("link");
  link.dataset.state = detail;
  say(link, STATES[detail]);
  if (detail === "unpaired") unpaired("The pairing has ended: it was revoked, or is over.");
});

connection.addEventListener("ready", async () => {
  refresh();
  agents = (await connection.call("agents/list").catch(() => ({ agents: [] }))).agents;
  if (["new", "unpaired"].includes(document.body.dataset.view) || !main.hasChildNodes()) show();
  for (const one of open.values()) one.update();
});

// Sessions.

let refreshing = false;

async function refresh() {
  if (refreshing || !connection.may("session/list")) return;
  refreshing = true;
  try {
    const query = find("search").value.trim();
    const params = { limit: MOST_SESSIONS, ...(query ? { query } : {}) };
    const answer = await connection.call("session/list", params);
    sessions.clear();
    for (const one of answer.sessions) sessions.set(one.sessionId, one);
    for (const one of answer.sessions) if (one.state !== "idle") connection.subscribe(one.sessionId);
    drawSessions();
    for (const one of answer.sessions.slice(0, MOST_COSTS)) await readState(one);
    drawSessions();
    open.get(route.id)?.update();
  } catch (problem) {
    if (!(problem instanceof Lost)) say(find("link"), problem.message);
  } finally {
    refreshing = false;
  }
}

async function readState({ sessionId, lastSeq }) {
  if (states.get(sessionId)?.at === lastSeq) return;
  const state = await connection.call("session/state", { sessionId }).catch(() => null);
  if (state) states.set(sessionId, { at: lastSeq, ...state });
}

setInterval(() => document.visibilityState === "visible" && connection.state === "live" && refresh(), LIST_MS);
find("search").addEventListener("input", () => refresh());

function titleOf(id) {
  return sessions.get(id)?.title || id;
}

function stateOf(one) {
  if ([...approvals.values()].some((each) => each.sessionId === one.sessionId)) return "waiting_approval";
  return one.state;
}

function drawSessions() {
  const list = find("sessions");
  const focused = document.activeElement?.dataset?.session;
  const rows = [...sessions.values()].map((one) => {
    const state = stateOf(one);
    const cost = money(states.get(one.sessionId)?.usage?.costUsd);
    return h("li", null, h("a", {
      href: `#/s/${encodeURIComponent(one.sessionId)}`,
      data: { session: one.sessionId, state },
      "aria-current": route.id === one.sessionId ? "page" : undefined,
    },
    h("span", { class: "title" }, one.title || one.sessionId),
    h("span", { class: "facts" }, h("span", { class: "dot", "aria-hidden": true }),
      [WORDS[state] ?? state, one.agentAlias, ago(one.lastActivity), cost].filter(Boolean).join(" · ")),
    h("span", { class: "facts cwd" }, one.cwd)));
  });
  fill(list, ...rows);
  if (!rows.length) fill(list, h("li", { class: "empty" }, find("search").value ? "Nothing found." : "No sessions yet."));
  if (focused) [...list.querySelectorAll("a")].find((one) => one.dataset.session === focused)?.focus();
}

// What happens in sessions.

connection.addEventListener("session", ({ detail }) => {
  const { id, event } = detail;
  const conversation = open.get(id);
  if (detail.reset) {
    forget(id);
    conversation?.reset();
  } else if (detail.attached) {
    if (!detail.attached.pendingApproval) forget(id);
    conversation?.attached(detail.attached);
  } else if (detail.refused) {
    conversation?.failed(detail.refused);
  } else if (event) {
    watch(id, event, detail.old);
    conversation?.take(event);
  } else if (detail.live) {
    conversation?.caughtUp();
  }
});

function watch(id, event, old) {
  const entry = sessions.get(id);
  if (event.type === "approval_request" && !old) {
    approvals.set(`${id}\n${event.id}`, { sessionId: id, ...event });
    drawInbox();
    drawSessions();
  } else if (event.type === "approval_answer") {
    settled(id, event.id, event.by ? `${event.decision} by ${event.by}` : event.decision);
  } else if (event.type === "done" || event.type === "user_message") {
    if (entry && !old) entry.state = event.type === "done" ? "idle" : "running";
    if (event.type === "done" && !old) forget(id);
    if (!old) drawSessions();
  }
}

function forget(id) {
  const gone = [...approvals.keys()].filter((key) => key.startsWith(`${id}\n`));
  for (const key of gone) approvals.delete(key);
  if (gone.length) drawInbox();
}

// Approvals.

const cards = new Map(); // Cards that show an approval, by session id and request id.

function card(sessionId, request, { named = false } = {}) {
  const key = `${sessionId}\n${request.id}`;
  const outcome = h("p", { class: "outcome", role: "status" });
  const buttons = h("p", { class: "buttons" });
  const left = h("time", { dateTime: request.deadline, title: request.deadline, data: { deadline: request.deadline } });
  const decide = (decision) => answer(sessionId, request.id, decision, outcome);
  if (connection.may("session/approve")) {
    buttons.append(
      h("button", { type: "button", class: "main", data: { key: "a" }, on: { click: () => decide("allow_once") } }, "Allow once (a)"),
      h("button", { type: "button", data: { key: "l" }, on: { click: () => decide("allow_always") } }, "Allow always (l)"),
      h("button", { type: "button", data: { key: "r" }, on: { click: () => decide("reject") } }, "Reject (r)"));
  }
  const { command, ...others } = request.args ?? {};
  const isCommand = typeof command === "string";
  const rest = isCommand ? others : request.args ?? {};
  const parts = [isCommand ? command : null, Object.keys(rest).length || !isCommand ? JSON.stringify(rest, null, 2) : null];
  const element = h("section", { class: "card approval", tabIndex: 0, "aria-label": `${request.tool} waits for approval`,
    on: { keydown: (press) => byKey(press, buttons) } },
  h("h3", null, visible(request.tool), named ? " in " : null,
    named ? h("a", { href: `#/s/${encodeURIComponent(sessionId)}` }, titleOf(sessionId)) : null),
  named ? h("p", { class: "facts" }, sessions.get(sessionId)?.cwd ?? "") : null,
  isCommand ? null : h("p", { class: "facts" }, visible(request.summary ?? "")),
  h("pre", { tabIndex: 0 }, visible(parts.filter((one) => one !== null).join("\n"))), h("p", { class: "facts" }, "until ", left), buttons, outcome);
  const shown = cards.get(key) ?? [];
  cards.set(key, [...shown, { element, buttons, outcome }]);
  tick();
  return element;
}

function byKey(press, buttons) {
  if (press.ctrlKey || press.metaKey || press.altKey) return;
  const button = [...buttons.children].find((one) => one.dataset.key === press.key);
  if (!button || button.disabled) return;
  press.preventDefault();
  button.click();
}

async function answer(sessionId, requestId, decision, outcome) {
  const key = `${sessionId}\n${requestId}`;
  for (const one of cards.get(key) ?? []) for (const button of one.buttons.children) button.disabled = true;
  try {
    await connection.call("session/approve", { sessionId, requestId, decision });
    settled(sessionId, requestId, decision);
  } catch (problem) {
    say(outcome, problem.message);
    for (const one of cards.get(key) ?? []) for (const button of one.buttons.children) button.disabled = false;
  }
}

/** An approval was decided, here or elsewhere. */
function settled(sessionId, requestId, outcome) {
  const key = `${sessionId}\n${requestId}`;
  approvals.delete(key);
  for (const one of cards.get(key) ?? []) {
    one.buttons.replaceChildren();
    one.element.dataset.settled = "";
    say(one.outcome, outcome.replace("_", " "));
  }
  cards.delete(key);
  drawInbox();
}

function drawInbox() {
  const badge = find("waiting");
  badge.hidden = !approvals.size;
  say(badge, String(approvals.size));
  document.title = approvals.size ? `(${approvals.size}) zot` : "zot";
  const list = find("inbox");
  if (!list) return;
  for (const old of [...list.children]) {
    if (old.dataset.approval !== undefined && !approvals.has(old.dataset.approval)) {
      const hadFocus = old.contains(document.activeElement);
      old.remove();
      if (hadFocus) (list.querySelector(".approval") ?? main).focus();
    }
  }
  const shown = new Set([...list.children].map((one) => one.dataset.approval));
  for (const [key, request] of approvals) {
    if (shown.has(key)) continue;
    const one = card(request.sessionId, request, { named: true });
    one.dataset.approval = key;
    list.append(one);
  }
  find("nothing").hidden = approvals.size > 0;
}

function tick() {
  for (const one of document.querySelectorAll("time[data-deadline]")) {
    const seconds = Math.round((Date.parse(one.dataset.deadline) - Date.now()) / 1000);
    const left = seconds > 90 ? `${Math.round(seconds / 60)} min left` : `${Math.max(0, seconds)} s left`;
    say(one, `${new Date(one.dataset.deadline).toLocaleTimeString()} (${left})`);
  }
}

setInterval(tick, 1000);

function showInbox() {
  fill(main, h("h2", null, "Inbox"), h("p", { id: "nothing" }, "Nothing waits for you."), h("div", { id: "inbox" }));
  drawInbox();
  main.querySelector(".approval")?.focus();
}

// A conversation.

class Conversation {
  constructor(id) {
    this.id = id;
    this.lost = new Map(); // Prompts whose answer was lost with the connection, by prompt id.
    this.transcript = new Transcript((request) => card(id, request));
    this.transcript.onUsage = () => this.facts();
    this.sticks = true; // Whether the end is in sight, so that the view follows it.
    this.isScrolling = false;
    const log = this.transcript.element;
    log.addEventListener("scroll", () => { this.sticks = log.scrollHeight - log.scrollTop - log.clientHeight < 80; });
    this.status = h("p", { class: "facts", role: "status" });
    this.title = h("h2", null, titleOf(id));
    this.input = h("textarea", { rows: 2, "aria-label": "Prompt", placeholder: "Prompt", id: "prompt",
      on: { keydown: (press) => this.key(press) } });
    const button = (text, name, act) => h("button", { type: "button", class: name, on: { click: act } }, text);
    this.send = button("Send", "main send", () => this.prompt());
    this.steer = button("Steer", "steer", () => this.prompt({ steers: true }));
    this.stop = button("Stop", "stop", () => this.cancel());
    this.composer = h("div", { class: "composer" }, this.input, h("p", { class: "buttons" }, this.send, this.steer, this.stop));
    this.element = h("div", { class: "conversation" }, h("div", { class: "head" }, this.title, this.status),
      this.transcript.element, this.composer);
    connection.subscribe(id, { whole: true });
    this.update();
  }

  take(event) {
    this.transcript.take(event);
    if (event.type === "approval_answer") settled(this.id, event.id, event.decision);
    if (event.prompt_id) this.lost.delete(event.prompt_id);
    if (this.sticks) this.toEnd();
    if (["user_message", "done", "approval_request"].includes(event.type)) this.update();
  }

  /** Scroll to the end, once a frame: measuring after each event would lay the page out each time. */
  toEnd() {
    if (this.isScrolling) return;
    this.isScrolling = true;
    requestAnimationFrame(() => {
      this.isScrolling = false;
      this.transcript.element.scrollTop = this.transcript.element.scrollHeight;
    });
  }

  reset() {
    this.transcript.reset();
  }

  attached({ state }) {
    this.transcript.running = state !== "idle";
    this.update();
  }

  /** The daemon has the prompts that the transcript shows or that wait in its queue; others were lost on the way. */
  async caughtUp() {
    this.update();
    if (!this.lost.size) return;
    const state = await connection.call("session/state", { sessionId: this.id }).catch(() => null);
    if (!state || state.queued) return;
    for (const [id, text] of this.lost) {
      if (!this.transcript.prompts.has(id)) this.unsent(text, "The connection was lost before this was sent.");
    }
    this.lost.clear();
  }

  unsent(text, reason) {
    this.transcript.notice(reason, "error");
    if (!this.input.value) this.input.value = text;
  }

  failed(reason) {
    this.transcript.notice(reason, "error");
  }

  facts() {
    const entry = sessions.get(this.id);
    const parts = [this.transcript.running ? "running" : "idle", entry?.agentAlias, entry?.cwd, usageText(this.transcript.usage)];
    say(this.status, parts.filter(Boolean).join(" · "));
  }

  update() {
    const { running } = this.transcript;
    say(this.title, titleOf(this.id));
    say(this.send, running ? "Queue" : "Send");
    this.steer.hidden = this.stop.hidden = !running;
    this.composer.hidden = connection.capabilities.size > 0 && !connection.may("session/prompt");
    this.facts();
  }

  key(press) {
    if (press.isComposing) return;
    if (press.key === "Enter" && !press.shiftKey) {
      press.preventDefault();
      this.prompt({ steers: press.ctrlKey && this.transcript.running });
    } else if (press.key === "Escape" && this.transcript.running) this.cancel();
  }

  async prompt({ steers = false } = {}) {
    const prompt = this.input.value.trim();
    if (!prompt) return;
    const promptId = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    this.input.value = "";
    if (this.transcript.running && !steers) this.transcript.notice(`Queued: ${prompt}`);
    try {
      await connection.call(steers ? "session/steer" : "session/prompt", { sessionId: this.id, prompt, promptId });
    } catch (problem) {
      // A turn that failed has shown its error; a prompt that was refused never became one.
      if (this.transcript.prompts.has(promptId)) return;
      if (problem.sent) this.lost.set(promptId, prompt); // The replay will tell.
      else this.unsent(prompt, problem.message);
    }
  }

  async cancel() {
    await connection.call("session/cancel", { sessionId: this.id }).catch((problem) => this.failed(problem.message));
  }
}

function showSession(id) {
  if (!open.has(id)) open.set(id, new Conversation(id));
  const one = open.get(id);
  fill(main, one.element);
  one.update();
  one.toEnd();
  if (!one.composer.hidden && matchMedia("(min-width: 720px)").matches) one.input.focus();
}

// New sessions.

function showNew() {
  const agent = h("select", { id: "agent", name: "agent" }, ...agents.map((one) => h("option", { value: one.alias },
    one.model ? `${one.alias} (${one.model})` : one.alias)));
  const cwd = h("input", { id: "cwd", type: "text", autocomplete: "off", spellcheck: false, placeholder: "the agent's own" });
  const prompt = h("textarea", { id: "first", rows: 4, required: true });
  const problem = h("p", { class: "notice error", role: "alert", hidden: true });
  const submit = async (press) => {
    press.preventDefault();
    try {
      const where = cwd.value.trim() ? { cwd: cwd.value.trim() } : {};
      const made = await connection.call("session/new", { agentAlias: agent.value || "default", ...where });
      location.hash = `#/s/${encodeURIComponent(made.sessionId)}`;
      showSession(made.sessionId);
      const one = open.get(made.sessionId);
      one.input.value = prompt.value;
      one.prompt();
    } catch (failure) {
      problem.hidden = false;
      say(problem, failure.message);
    }
  };
  fill(main, h("form", { class: "card", on: { submit } }, h("h2", null, "New session"),
    h("label", { htmlFor: "agent" }, "Agent"), agent,
    h("label", { htmlFor: "cwd" }, "Directory"), cwd,
    h("label", { htmlFor: "first" }, "First prompt"), prompt,
    problem, h("p", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Start"))));
  prompt.focus();
}

// Routes and keys.

function show() {
  const [, view, id] = /^#\/(inbox|new|s)?(?:\/(.*))?$/.exec(location.hash) ?? [];
  if (view === "s" && id) {
    try {
      route = { view: "session", id: decodeURIComponent(id) };
    } catch {
      route = { view: "sessions" };
    }
  } else route = { view: view === "inbox" || view === "new" ? view : "sessions" };
  document.body.dataset.view = route.view;
  for (const [name, link] of [["sessions", "to-sessions"], ["inbox", "to-inbox"], ["new", "to-new"]]) {
    if (name === route.view) find(link).setAttribute("aria-current", "page");
    else find(link).removeAttribute("aria-current");
  }
  if (route.view === "session") showSession(route.id);
  else if (route.view === "inbox") showInbox();
  else if (route.view === "new") showNew();
  else fill(main, h("p", { class: "empty" }, "Choose a session, or start a new one. Keys: i inbox, n new, s sessions, / search."));
  drawSessions();
}

window.addEventListener("hashchange", () => connection.state !== "unpaired" && show());
find("skip").addEventListener("click", (press) => {
  press.preventDefault();
  main.focus();
});
document.addEventListener("keydown", (press) => {
  if (press.ctrlKey || press.metaKey || press.altKey || press.defaultPrevented) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(press.target.tagName)) return;
  const to = { i: "#/inbox", n: "#/new", s: "#/" }[press.key];
  if (to) location.hash = to;
  else if (press.key === "/") find("search").focus();
  else if (press.key === "p") find("prompt")?.focus();
  else if (press.key === "j" || press.key === "k") step(press.key === "j" ? 1 : -1);
  else return;
  press.preventDefault();
});

/** Move the focus along the list of sessions, or of approvals in the inbox. */
function step(by) {
  const all = [...document.querySelectorAll(route.view === "inbox" ? "#inbox .approval" : "#sessions a")];
  const at = all.indexOf(document.activeElement?.closest(".approval, #sessions a"));
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

start();
