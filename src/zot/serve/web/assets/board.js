// What the page knows of all sessions: the list, the requests that wait for a person, and what is unread.

import { Lost } from "./connection.js";
import { tail } from "./dom.js";
import { prefs } from "./prefs.js";
import { ANSWERS, KINDS, keyOf, outcome } from "./requests.js";

const LIST_MS = 2000;
const HIDDEN_MS = 10000;
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
    this.refreshing = null;
    this.listedAt = 0;
    connection.addEventListener("session", ({ detail }) => this.take(detail));
    connection.addEventListener("ready", () => this.begin());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.refresh());
    setInterval(() => this.poll(), LIST_MS);
  }

  async begin() {
    this.refresh();
    this.agents = (await this.connection.call("agents/list").catch(() => ({ agents: this.agents }))).agents;
    this.emit("sessions");
  }

  emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  poll() {
    const every = document.visibilityState === "visible" ? LIST_MS : HIDDEN_MS;
    if (this.connection.isUp && Date.now() - this.listedAt >= every - 100) this.refresh();
  }

  search(query) {
    this.query = query.trim();
    this.emit("sessions");
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.refresh(), this.query ? SEARCH_MS : 0);
  }

  /** Read the list. Calls while one is under way share its result and cause another one. */
  async refresh() {
    if (!this.connection.may("session/list")) return;
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
    this.listedAt = Date.now();
    try {
      const params = { limit: MOST_SESSIONS, details: true };
      const all = (await this.connection.call("session/list", params)).sessions;
      const found = query ? (await this.connection.call("session/list", { ...params, query })).sessions : [];
      if (query !== this.query) return;
      this.matches = query ? new Set(found.map((one) => one.sessionId)) : null;
      const entries = new Map([...all, ...found].map((one) => [one.sessionId, one]));
      for (const id of this.sessions.keys()) if (!entries.has(id)) this.forget(id);
      this.sessions = entries;
      for (const one of entries.values()) {
        if (prefs.seen(one.sessionId) === undefined || one.sessionId === this.current) prefs.see(one.sessionId, one.lastSeq);
        if (one.state !== "idle") this.connection.subscribe(one.sessionId);
        else this.forget(one.sessionId);
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
    else if (event.type === "done") {
      this.forget(id);
      if (entry && !old) {
        this.become(entry, "idle");
        this.emit("ended", { id, failed: this.failed.has(id) });
        this.refresh();
      }
    }
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
