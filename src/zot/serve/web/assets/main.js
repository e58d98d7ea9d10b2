// The dashboard: pairing, routes, keys, the inbox, new sessions, settings and notifications.

import { Board } from "./board.js";
import { Connection, device, post } from "./connection.js";
import { Conversation } from "./conversation.js";
import { announce, button, confirmed, dialog, fill, h, icon, say, toast } from "./dom.js";
import { SessionList } from "./list.js";
import { Overview } from "./overview.js";
import { applyTheme, prefs } from "./prefs.js";
import { Cards } from "./requests.js";

const MOST_OPEN = 8;
const STATES = {
  connecting: "Connecting…",
  catching: "Catching up…",
  live: "Live",
  lost: "Connection lost, reconnecting…",
  unpaired: "Not paired",
};

const base = new URL("./", document.location.href);
const find = (id) => document.getElementById(id);
const main = find("main");
const connection = new Connection(base);
const board = new Board(connection);
const cards = new Cards(board);
const app = { connection, board, cards };
const open = new Map(); // Conversations that were opened, by id, the last used last.
const overview = new Overview(app);
let route = { view: "sessions" };

applyTheme();
for (const one of document.querySelectorAll("nav a, #settings")) one.prepend(icon(one.dataset.view ?? one.id));
const list = new SessionList(find("sessions"), board);

// Pairing.

async function start() {
  const code = /^#pair=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) {
    history.replaceState(null, "", `${location.pathname}#/`);
    const answer = await post(base, "pair", { code });
    // A used link in a browser that is paired already does no harm.
    if (!answer?.ok && !await device(base)) {
      unpaired(answer ? await answer.text() : "The daemon does not answer.");
      return;
    }
  } else if (await device(base) === null) {
    unpaired("");
    return;
  }
  show();
  connection.connect();
}

function unpaired(reason) {
  connection.become("unpaired");
  fill(main, h("section.card.pairing", null, h("h2", null, "This browser is not paired"),
    reason ? h("p.notice.error", null, reason) : null,
    h("p", null, "Run ", h("code", null, "zot web pair"), " on the daemon's machine and open the link that it prints.")));
  document.body.dataset.view = "unpaired";
}

connection.addEventListener("state", ({ detail }) => {
  const link = find("link");
  link.dataset.state = detail;
  say(link, STATES[detail]);
  if (detail === "unpaired") unpaired("The pairing has ended: it was revoked, or is over.");
});

connection.addEventListener("ready", () => {
  if (document.body.dataset.view === "unpaired") show();
  if (overview.element.isConnected) overview.refresh();
  for (const one of open.values()) one.reconnected();
});

connection.addEventListener("session", ({ detail }) => {
  const one = open.get(detail.id);
  if (!one) return;
  if (detail.reset) one.load();
  else if (detail.attached) one.attached(detail.attached);
  else if (detail.refused) one.failed(detail.refused);
  else if (detail.event) one.take(detail.event);
  else if (detail.live) one.caughtUp();
});

connection.addEventListener("changed", ({ detail }) => open.get(detail.sessionId)?.readState());

board.addEventListener("sessions", () => {
  open.get(route.id)?.update();
  const agent = find("agent");
  if (agent && !agent.options.length) fill(agent, ...agentOptions()); // What was typed on the page stays.
});
board.addEventListener("problem", ({ detail }) => toast(detail, { kind: "error" }));

// Inbox.

const inbox = h("div", { id: "inbox" });
const nothing = h("p", { id: "nothing", class: "empty" }, "Nothing waits for you.");
const inboxPage = h("div.page.narrow", null, h("h2", null, "Inbox"), nothing, inbox);

function drawInbox() {
  const count = board.requests.size;
  const badge = find("waiting");
  badge.hidden = !count;
  say(badge, String(count));
  badge.setAttribute("aria-label", `${count} waiting`);
  document.title = count ? `(${count}) zot` : "zot";
  const hadFocus = inbox.contains(document.activeElement);
  for (const old of [...inbox.children]) {
    if (board.requests.has(old.dataset.request)) continue;
    // What was answered elsewhere stays for a moment, and says so.
    if (!old.dataset.leaving) {
      old.dataset.leaving = "yes";
      setTimeout(() => {
        const next = old.contains(document.activeElement) ? old.nextElementSibling ?? old.previousElementSibling ?? main : null;
        old.remove();
        next?.focus();
        nothing.hidden = board.requests.size > 0 || inbox.children.length > 0;
      }, 1500);
    }
  }
  const shown = new Set([...inbox.children].map((one) => one.dataset.request));
  for (const [key, request] of board.requests) if (!shown.has(key)) inbox.append(cards.card(request, { named: true }));
  nothing.hidden = count > 0 || inbox.children.length > 0;
  if (hadFocus && !inbox.contains(document.activeElement)) inbox.querySelector(".request")?.focus();
}

board.addEventListener("requests", drawInbox);

// Notifications.

function notify(text, id) {
  announce(text);
  if (!prefs.notify || document.visibilityState === "visible" || window.Notification?.permission !== "granted") return;
  const note = new Notification("zot", { body: text, tag: id });
  note.onclick = () => {
    window.focus();
    location.hash = `#/s/${encodeURIComponent(id)}`;
    note.close();
  };
}

board.addEventListener("asked", ({ detail }) => {
  const what = detail.kind === "approval" ? detail.summary ?? detail.tool : detail.message;
  notify(`${board.titleOf(detail.sessionId)} waits: ${what}`.slice(0, 200), detail.sessionId);
});
board.addEventListener("ended", ({ detail }) => notify(`${board.titleOf(detail.id)} has ${detail.failed ? "failed" : "ended"}.`, detail.id));

async function settings() {
  const me = await device(base);
  await dialog("Settings", (close) => {
    const bell = h("input", { type: "checkbox", checked: prefs.notify && window.Notification?.permission === "granted", disabled: !window.Notification });
    bell.addEventListener("change", async () => {
      prefs.notify = bell.checked && await Notification.requestPermission() === "granted";
      if (bell.checked && !prefs.notify) toast("The browser does not permit notifications for this page.", { kind: "error" });
      bell.checked = prefs.notify;
    });
    const theme = h("select", { id: "theme", on: { change: () => { prefs.theme = theme.value; applyTheme(); } } },
      ...[["", "as the system"], ["light", "light"], ["dark", "dark"]].map(([value, text]) => h("option", { value }, text)));
    theme.value = prefs.theme;
    return [h("div.fields", null, h("label.check", null, bell, h("span", null, "Notify me when something waits or ends")),
      h("label", null, h("span", null, "Colours"), theme),
      me ? h("p.facts", null, `This browser is ${me.device}: it may ${me.roles.join(", ")}. zot ${connection.version ?? ""}`) : null),
    h("p.buttons", null, button("Keys", () => { close(); keys(); }), button("Unpair this browser", () => { close(); unpair(); }, { kind: "bad unpair" }))];
  });
}

async function unpair() {
  if (!await confirmed("Unpair this browser?", "Only a new link can pair it again.", "Unpair")) return;
  const answer = await post(base, "unpair", {});
  if (!answer?.ok) toast("The daemon did not unpair this browser.", { kind: "error" });
}

find("settings").addEventListener("click", settings);

// New sessions.

function agentOptions() {
  return board.agents.map((one) => h("option", { value: one.alias }, one.model ? `${one.alias} (${one.model})` : one.alias));
}

function newPage() {
  const agent = h("select", { id: "agent", name: "agent" }, ...agentOptions());
  const places = [...new Set([...board.sessions.values()].map((one) => one.cwd))].slice(0, 20);
  const cwd = h("input", { id: "cwd", type: "text", autocomplete: "off", spellcheck: false, placeholder: "where the agent works by default", list: "places" });
  const prompt = h("textarea", { id: "first", rows: 5, required: true, placeholder: "What should be done?" });
  const problem = h("p.notice.error", { role: "alert", hidden: true });
  const submit = async (press) => {
    press.preventDefault();
    try {
      const where = cwd.value.trim() ? { cwd: cwd.value.trim() } : {};
      const made = await connection.call("session/new", { agentAlias: agent.value || "default", ...where });
      location.hash = `#/s/${encodeURIComponent(made.sessionId)}`;
      conversation(made.sessionId).prompt(prompt.value.trim());
      board.refresh();
    } catch (failure) {
      problem.hidden = false;
      say(problem, failure.message);
    }
  };
  const onKey = (press) => press.key === "Enter" && (press.ctrlKey || press.metaKey) && press.target.form.requestSubmit();
  fill(main, h("div.page.narrow", null, h("h2", null, "New session"), h("form.card.fields", { on: { submit, keydown: onKey } },
    h("label", { htmlFor: "first" }, h("span", null, "First prompt")), prompt,
    h("label", { htmlFor: "agent" }, h("span", null, "Agent")), agent,
    h("label", { htmlFor: "cwd" }, h("span", null, "Directory")), cwd, h("datalist", { id: "places" }, ...places.map((value) => h("option", { value }))),
    problem, h("p.buttons", null, h("button.main", { type: "submit" }, "Start")))));
  prompt.focus();
}

// Routes and keys.

function conversation(id) {
  const known = open.get(id) ?? new Conversation(app, id);
  open.delete(id);
  open.set(id, known);
  for (const old of [...open.keys()].slice(0, Math.max(0, open.size - MOST_OPEN))) {
    open.delete(old);
    connection.unsubscribe(old); // The board follows it again if it runs.
  }
  return known;
}

function show() {
  const [, view, id] = /^#\/(inbox|new|overview|s)?(?:\/(.*))?$/.exec(location.hash) ?? [];
  route = { view: ["inbox", "new", "overview"].includes(view) ? view : "sessions" };
  if (view === "s" && id) {
    try {
      route = { view: "session", id: decodeURIComponent(id) };
    } catch {
      // Not one of our addresses.
    }
  }
  document.body.dataset.view = route.view;
  board.current = route.id ?? null;
  const seen = board.sessions.get(route.id);
  if (seen) prefs.see(route.id, seen.lastSeq);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === route.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (route.view === "session") {
    const one = conversation(route.id);
    fill(main, one.element);
    one.update();
    one.toEnd(true);
    if (!one.composer.element.hidden && matchMedia("(min-width: 720px)").matches) one.composer.input.focus();
  } else if (route.view === "inbox") {
    fill(main, inboxPage);
    drawInbox();
    inbox.querySelector(".request")?.focus();
  } else if (route.view === "new") newPage();
  else {
    fill(main, overview.element);
    overview.refresh();
  }
  list.draw();
}

window.addEventListener("hashchange", () => connection.state !== "unpaired" && show());
find("skip").addEventListener("click", (press) => {
  press.preventDefault();
  main.focus();
});
find("search").addEventListener("input", () => board.search(find("search").value));
find("search").addEventListener("keydown", (press) => {
  if (press.key === "ArrowDown" || press.key === "Enter") find("sessions").querySelector("a")?.focus();
  else if (press.key === "Escape") {
    find("search").value = "";
    board.search("");
  } else return;
  press.preventDefault();
});

const KEYS = [
  ["s", "Sessions"], ["o", "Overview"], ["i", "Inbox"], ["n", "New session"], ["j k", "Next and previous session or request"],
  ["a l r", "On a request: allow once, always allow, reject"], ["/", "Search"], ["p", "Prompt"], ["Enter", "Send; while a turn runs, queue"],
  ["Ctrl+Enter", "Steer the running turn"], ["Shift+Enter", "New line"], ["Escape", "In the prompt: stop the turn"], ["?", "These keys"],
];

function keys() {
  dialog("Keys", () => h("dl.keys", null, ...KEYS.flatMap(([key, text]) => [h("dt", null, ...key.split(" ").map((one) => h("kbd", null, one))), h("dd", null, text)])));
}

document.addEventListener("keydown", (press) => {
  if (press.ctrlKey || press.metaKey || press.altKey || press.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(press.target.tagName) || connection.state === "unpaired") return;
  const to = { i: "#/inbox", n: "#/new", s: "#/", o: "#/overview" }[press.key];
  if (to) location.hash = to;
  else if (press.key === "/") find("search").focus();
  else if (press.key === "?") keys();
  else if (press.key === "p") find("prompt")?.focus();
  else if (press.key === "j" || press.key === "k") step(press.key === "j" ? 1 : -1);
  else return;
  press.preventDefault();
});

/** Move the focus along the list of sessions, or of requests in the inbox. */
function step(by) {
  const all = [...document.querySelectorAll(route.view === "inbox" ? "#inbox .request" : "#sessions a")];
  const at = all.indexOf(document.activeElement?.closest(".request, #sessions a"));
  all[Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
}

start();
