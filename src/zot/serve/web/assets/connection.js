// The WebSocket to the daemon: JSON-RPC calls, subscriptions by cursor, and reconnecting without a gap or a repetition.

const FIRST_MS = 100;
const LONGEST_MS = 8000;
const BEAT_MS = 10000;
const ANSWER_MS = 8000;
const ENDS = ["turn_end", "error", "done"];

/** The daemon refused a call. */
export class Refused extends Error {
  constructor({ code, message, data }) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

/** The connection was lost before the answer came. `sent` says whether the call may have reached the daemon. */
export class Lost extends Error {
  constructor(message, { sent }) {
    super(message);
    this.sent = sent;
  }
}

/** A subscription to one session: `last` is the number of the newest event that was delivered, null before the first attach. */
class Subscription {
  constructor(id, after, epoch) {
    this.id = id;
    this.last = after;
    this.isWatch = after === null;
    this.epoch = epoch;
    this.pending = false;
    this.catching = true;
    this.until = 0;
    this.asked = null;
  }
}

/**
 * Dispatches `state` (`connecting`, `catching`, `live`, `lost`, `unpaired`), `ready` after each connect, `changed` when any
 * session starts, waits or ends, with {sessionId, state}, and, for subscribed sessions, `session` events with {id, event, seq, old}, {id, attached}, {id, live}, {id, refused}, or
 * {id, reset}: the subscription has ended, since another history has this id now.
 */
export class Connection extends EventTarget {
  constructor(base) {
    super();
    this.base = base;
    this.state = "connecting";
    this.capabilities = new Set();
    this.subscriptions = new Map();
    this.reconnects = 0;
    this.socket = null;
    this.calls = new Map();
    this.number = 0;
    this.wait = FIRST_MS;
    this.timer = null;
    this.seen = Date.now();
    const wake = () => this.wake();
    for (const name of ["online", "pageshow", "focus"]) window.addEventListener(name, wake);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && wake());
    document.addEventListener("resume", wake);
    setInterval(() => this.beat(), BEAT_MS);
  }

  connect() {
    clearTimeout(this.timer);
    this.timer = null;
    this.become("connecting");
    const address = new URL("ws", this.base);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address, ["zot.v1"]);
    this.socket = socket;
    setTimeout(() => socket.readyState === WebSocket.CONNECTING && socket.close(), ANSWER_MS);
    socket.onopen = () => this.greet(socket);
    socket.onmessage = (message) => this.socket === socket && this.take(JSON.parse(message.data));
    socket.onclose = () => this.socket === socket && this.lose();
  }

  async greet(socket) {
    try {
      const client = { name: "zot web", version: "1" };
      const answer = await this.call("initialize", { protocolVersion: 1, features: ["events", "questions"], client });
      this.capabilities = new Set(answer.capabilities);
      this.version = answer.serverVersion;
      this.wait = FIRST_MS;
      for (const one of this.subscriptions.values()) {
        one.catching = true;
        this.attach(one);
      }
      if (this.may("sessions/watch")) this.call("sessions/watch").catch(() => {});
      this.settle();
      this.dispatchEvent(new CustomEvent("ready"));
    } catch {
      socket.close();
    }
  }

  may(method) {
    return this.capabilities.has(method);
  }

  get isUp() {
    return this.state === "live" || this.state === "catching";
  }

  call(method, params) {
    if (this.socket?.readyState !== WebSocket.OPEN) return Promise.reject(new Lost("There is no connection.", { sent: false }));
    this.number += 1;
    const id = this.number;
    this.socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params: params ?? {} }));
    return new Promise((resolve, reject) => this.calls.set(id, { resolve, reject }));
  }

  take(message) {
    this.seen = Date.now();
    if (message.method === "session/update") this.update(message.params);
    else if (message.method === "sessions/changed") this.dispatchEvent(new CustomEvent("changed", { detail: message.params }));
    else if (this.calls.has(message.id)) {
      const { resolve, reject } = this.calls.get(message.id);
      this.calls.delete(message.id);
      if (message.error) reject(new Refused(message.error));
      else resolve(message.result);
    }
  }

  /** Follow a session: after a row of the history `epoch`, or else from its open request, or from now on. */
  subscribe(id, { after = null, epoch = null } = {}) {
    if (after === null && this.subscriptions.has(id)) return;
    const subscription = new Subscription(id, after, epoch);
    this.subscriptions.set(id, subscription);
    if (this.isUp) this.attach(subscription);
  }

  /** End a subscription that no conversation has: `subscribe` without a row made it. */
  release(id) {
    if (this.subscriptions.get(id)?.isWatch) this.unsubscribe(id);
  }

  unsubscribe(id) {
    if (this.subscriptions.delete(id) && this.socket?.readyState === WebSocket.OPEN) {
      this.call("session/detach", { sessionId: id }).catch(() => {});
    }
    this.settle();
  }

  async attach(one) {
    // Until the answer, updates are those of an earlier subscription on this connection.
    one.pending = true;
    this.settle();
    const socket = this.socket;
    const isOld = () => this.socket !== socket || this.subscriptions.get(one.id) !== one;
    const params = one.last === null ? { sessionId: one.id } : { sessionId: one.id, after: one.last };
    try {
      const answer = await this.call("session/attach", params);
      if (!isOld()) this.attached(one, answer);
    } catch (problem) {
      if (!(problem instanceof Refused) || isOld()) return;
      this.subscriptions.delete(one.id);
      this.tell({ id: one.id, refused: problem.message });
      this.settle();
    }
  }

  attached(one, answer) {
    if (one.epoch !== null && one.epoch !== answer.epoch) {
      this.reset(one); // Another history has this id: its numbers start again.
      return;
    }
    one.epoch = answer.epoch;
    one.asked = answer.askedSeq ?? null;
    if (one.last === null) one.last = one.asked === null ? answer.lastSeq : one.asked - 1;
    one.pending = false;
    one.until = answer.lastEventSeq ?? 0;
    this.tell({ id: one.id, attached: answer });
    this.progress(one);
  }

  reset(one) {
    this.unsubscribe(one.id);
    this.tell({ id: one.id, reset: true });
  }

  update({ sessionId, type, event, seq }) {
    const one = this.subscriptions.get(sessionId);
    if (!one || one.pending) return;
    if (type === "restarted") {
      this.reset(one);
      return;
    }
    if (seq !== undefined) {
      if (seq <= one.last) return;
      one.last = seq;
    } else if (ENDS.includes(event?.type)) return; // Of a prompt that never ran: its call is answered as well.
    this.tell({ id: sessionId, event, seq, old: one.catching && seq !== one.asked });
    this.progress(one);
  }

  progress(one) {
    if (one.pending || !one.catching || one.last < one.until) return;
    one.catching = false;
    this.tell({ id: one.id, live: true });
    this.settle();
  }

  tell(detail) {
    this.dispatchEvent(new CustomEvent("session", { detail }));
  }

  /** Decide between `catching` and `live`. */
  settle() {
    if (this.socket?.readyState !== WebSocket.OPEN || !this.capabilities.size) return;
    this.become([...this.subscriptions.values()].some((one) => one.catching) ? "catching" : "live");
  }

  become(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }

  async lose() {
    this.socket = null;
    for (const { reject } of this.calls.values()) reject(new Lost("The connection was lost.", { sent: true }));
    this.calls.clear();
    for (const one of this.subscriptions.values()) one.pending = true;
    this.become("lost");
    this.reconnects += 1;
    // A refused handshake looks like any other loss: only this tells whether the browser is still paired.
    const is = await device(this.base);
    if (is === null) this.become("unpaired");
    else if (this.socket === null && this.timer === null) {
      const wait = this.wait * (0.5 + Math.random());
      this.wait = Math.min(LONGEST_MS, this.wait * 2);
      this.timer = setTimeout(() => this.connect(), wait);
    }
  }

  /** Reconnect at once, or find out whether the connection has survived. */
  wake() {
    if (this.state === "lost" && this.timer !== null) this.connect();
    else this.beat();
  }

  /** End a connection that does not answer, as after sleep: nothing else would report its loss. */
  beat() {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN) return;
    const asked = Date.now();
    this.call("agents/list").catch(() => {});
    setTimeout(() => {
      if (this.socket !== socket || this.seen >= asked) return;
      socket.onclose = null;
      socket.close();
      this.lose();
    }, ANSWER_MS);
  }
}

/** Send a request of this page to the daemon. The header is one that no foreign page can send. */
export function post(base, path, body) {
  const headers = { "content-type": "application/json", "x-zot-page": "1" };
  return fetch(new URL(path, base), { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" })
    .catch(() => null);
}

/** Return who this browser is for the daemon; null if it is not paired, undefined if the daemon does not answer. */
export async function device(base) {
  try {
    const answer = await fetch(new URL("device", base), { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_MS) });
    if (answer.ok) return await answer.json();
    return answer.status === 401 ? null : undefined;
  } catch {
    return undefined;
  }
}
