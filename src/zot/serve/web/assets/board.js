// What the page knows of all sessions: the list, the requests that wait for a person, and what is unread.

import { Lost } from "./connection.js";
import { tail } from "./dom.js";
import { prefs } from "./prefs.js";
import { ANSWERS, KINDS, keyOf, outcome } from "./requests.js";

const LIST_MS = 5000; // For what the daemon does not announce, such as another title.
const SOON_MS = 200; // Changes come in bursts.
const SEARCH_MS = 250;
const MOST_SESSIONS = 200;

/**
 * Dispatches `sessions` when the list changed, `requests` when the open requests did, `asked` with a new request,
 * `settled` with {key, outcome}, `ended` with {id, failed}, and `problem` with a text.
 */
export class Board extends EventTarget {
  constructor(connection) {
    super();
    this.connection = connection;
    this.sessions = new Map(); // Entries of session/list, by id.
    this.requests = new Map(); // Open requests, by key.
    this.agents = [];
    this.prompters = new Map(); // Who prompted the running turn of a session, by id.
    this.failed = new Set(); // Sessions whose running turn has failed.
    this.query = "";
    this.current = null; // The session on the screen: what happens in it is read.
    this.fresh = new Map(); // States that have changed since the list was asked for: it may be older.
    this.refreshing = null;
    connection.addEventListener("session", ({ detail }) => this.take(detail));
    connection.addEventListener("changed", ({ detail }) => this.changed(detail));
    connection.addEventListener("ready", () => this.begin());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.refresh());
    setInterval(() => this.refresh(), LIST_MS);
  }

  async begin() {
    this.refresh();
    this.agents = (await this.connection.call("agents/list").catch(() => ({ agents: this.agents }))).agents;
    this.emit("sessions");
  }

  emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /** A session has started, waits, was answered or has ended: perhaps one that no list had yet. */
  changed({ sessionId: id, state }) {
    const entry = this.sessions.get(id);
    const ends = entry && entry.state !== "idle" && state === "idle";
    this.fresh.set(id, state);
    if (entry) this.become(entry, state);
    if (ends) this.emit("ended", { id, failed: this.failed.has(id) });
    this.follow(id, state);
    this.refreshSoon();
  }

  /** Follow a session while it does something: its requests appear at once, and can be answered. */
  follow(id, state) {
    if (state !== "idle") this.connection.subscribe(id);
    else {
      this.forget(id);
      this.connection.release(id);
    }
  }

  refreshSoon() {
    this.soon ??= setTimeout(() => {
      this.soon = null;
      this.refresh();
    }, SOON_MS);
  }

  search(query) {
    this.query = query.trim();
    this.emit("sessions");
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.refresh(), this.query ? SEARCH_MS : 0);
  }

  /** Read the list. Calls while one is under way share its result and cause another one. */
  async refresh() {
    if (!this.connection.isUp || !this.connection.may("session/list")) return;
    if (this.refreshing) {
      this.again = true;
      return;
    }
    this.refreshing = this.read();
    await this.refreshing;
    this.refreshing = null;
    if (this.again) {
      this.again = false;
      this.refresh();
    }
  }

  async read() {
    const { query } = this;
    this.fresh.clear();
    try {
      const params = { limit: MOST_SESSIONS, active: true, details: true };
      const all = (await this.connection.call("session/list", params)).sessions;
      const found = query ? (await this.connection.call("session/list", { ...params, query })).sessions : [];
      if (query !== this.query) return;
      this.matches = query ? new Set(found.map((one) => one.sessionId)) : null;
      const entries = new Map([...all, ...found].map((one) => [one.sessionId, one]));
      for (const id of this.sessions.keys()) if (!entries.has(id)) this.forget(id);
      this.sessions = entries;
      for (const one of entries.values()) {
        one.state = this.fresh.get(one.sessionId) ?? one.state;
        if (prefs.seen(one.sessionId) === undefined || one.sessionId === this.current) prefs.see(one.sessionId, one.lastSeq);
        this.follow(one.sessionId, one.state);
      }
      this.emit("sessions");
    } catch (problem) {
      if (!(problem instanceof Lost)) this.emit("problem", problem.message);
    }
  }

  /** The entries to show: those whose words match the query. */
  get listed() {
    const all = [...this.sessions.values()];
    if (!this.query) return all;
    const wanted = this.query.toLowerCase();
    const has = (one) => [one.title, one.cwd, one.agentAlias, one.branch ?? "", one.sessionId].some((text) => text.toLowerCase().includes(wanted));
    return all.filter((one) => this.matches?.has(one.sessionId) || has(one));
  }

  titleOf(id) {
    return this.sessions.get(id)?.title || id;
  }

  stateOf(id) {
    if ([...this.requests.values()].some((one) => one.sessionId === id)) return "waiting_approval";
    return this.sessions.get(id)?.state ?? "idle";
  }

  isUnread(one) {
    return one.sessionId !== this.current && one.lastSeq > (prefs.seen(one.sessionId) ?? one.lastSeq);
  }

  /** Who asks: the agent, where it works, and who prompted it. */
  asker({ sessionId }) {
    const one = this.sessions.get(sessionId);
    const by = this.prompters.get(sessionId);
    return [one?.agentAlias, one && tail(one.cwd), one?.branch, by && `prompted by ${by}`].filter(Boolean).join(" · ");
  }

  // What happens in sessions that are followed.

  take({ id, event, old, attached, reset, refused }) {
    if (reset || refused) this.forget(id);
    else if (attached) {
      const open = new Set([attached.pendingApproval?.requestId, ...(attached.questions ?? []).map((one) => one.id)]);
      for (const [key, one] of this.requests) if (one.sessionId === id && !open.has(one.id)) this.drop(key);
      for (const one of attached.questions ?? []) this.ask(id, { type: "question_request", ...one }, true);
    } else if (event) this.happened(id, event, old);
  }

  happened(id, event, old) {
    const entry = this.sessions.get(id);
    if (event.type in KINDS) this.ask(id, event, old);
    else if (event.type in ANSWERS) this.drop(keyOf(id, event.id), outcome(event));
    else if (event.type === "user_message") {
      this.prompters.set(id, event.by ?? "");
      this.failed.delete(id);
      if (entry && !old) this.become(entry, "running");
    } else if (event.type === "error") this.failed.add(id);
    else if (event.type === "done") this.forget(id);
  }

  become(entry, state) {
    entry.state = state;
    this.emit("sessions");
  }

  ask(id, event, old) {
    const key = keyOf(id, event.id);
    if (this.requests.has(key)) return;
    const request = { sessionId: id, kind: KINDS[event.type].kind, ...event };
    this.requests.set(key, request);
    this.emit("requests");
    this.emit("sessions");
    if (!old) this.emit("asked", request);
  }

  drop(key, text = "Settled") {
    const known = this.requests.delete(key);
    this.emit("settled", { key, outcome: text });
    if (known) {
      this.emit("requests");
      this.emit("sessions");
    }
  }

  forget(id) {
    for (const [key, one] of this.requests) if (one.sessionId === id) this.drop(key);
  }
}
