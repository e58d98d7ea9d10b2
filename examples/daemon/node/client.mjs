#!/usr/bin/env node
// Run one prompt in a session of `zot daemon` from Node, without dependencies. A lost connection costs nothing.
//
//     node client.mjs SESSION "PROMPT" [--approve]
//
// $ZEROCLAW_SOCKET is the daemon's socket. --approve allows every tool call that asks; without it each is rejected.
// Exit codes: 0 completed, 1 failed or lost, 2 wrong usage, 3 no daemon, 130 cancelled with Ctrl+C.

import { randomUUID } from "node:crypto";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const RECONNECT_MS = 30_000; // how long a lost daemon is tried again
const SETTLE_MS = 2_000; // how long an idle session may be silent before a prompt that left no trace counts as lost
const STOPPING = -32005; // the daemon is stopping and has not begun this: ask the next one

class ConnectionLost extends Error {}

/** One connection: calls with their answers, and updates. */
class Connection {
  #calls = new Map();
  #lastId = 0;

  constructor(socket, onUpdate) {
    this.socket = socket;
    this.lost = new Promise((_, reject) => {
      socket.on("close", () => {
        const error = new ConnectionLost("the connection was lost");
        for (const call of this.#calls.values()) call.reject(error);
        reject(error);
      });
    });
    this.lost.catch(() => {}); // it may be lost while nothing waits
    socket.on("error", () => {}); // "close" follows
    socket.setEncoding("utf8"); // also puts characters together that two chunks share
    let rest = "";
    socket.on("data", (data) => {
      // Only LF ends a line: U+2028 may stand inside one.
      const lines = (rest + data).split("\n");
      rest = lines.pop();
      for (const line of lines) this.#receive(JSON.parse(line), onUpdate);
    });
  }

  static open(socketPath, onUpdate) {
    return new Promise((resolve, reject) => {
      const socket = net.connect(socketPath, () => resolve(new Connection(socket, onUpdate)));
      socket.once("error", reject);
    });
  }

  /** Call a method. Rejects with the daemon's error (and its `code`), or with ConnectionLost. */
  call(method, params) {
    const id = ++this.#lastId;
    const answer = new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }));
    this.socket.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n");
    return answer;
  }

  #receive({ id, method, params, result, error }, onUpdate) {
    if (method === "session/update") return onUpdate(params);
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (error) call?.reject(Object.assign(new Error(error.message), { code: error.code }));
    else call?.resolve(result);
  }
}

/** One prompt in a session, over as many connections as it takes. */
class Run {
  promptId = randomUUID(); // by it we know our turn among those of others, and after a reconnect
  cursor = null; // the number of the last update that we have handled
  sent = false;
  mine = false; // whether the turn that runs is ours

  constructor(session, prompt, approve) {
    Object.assign(this, { session, prompt, approve });
    this.completed = new Promise((resolve) => (this.complete = resolve));
  }

  /** Run it to its end; return its turn_complete. */
  async result() {
    for (let first = true; ; first = false) {
      this.connection = await connect((update) => this.#receive(update), first ? 0 : RECONNECT_MS);
      try {
        return await Promise.race([this.#follow(), this.connection.lost]);
      } catch (error) {
        if (error.code === STOPPING) {
          this.sent = false;
          await sleep(500);
        } else if (!(error instanceof ConnectionLost)) throw error;
      } finally {
        clearTimeout(this.settling);
        this.connection.socket.destroy();
      }
    }
  }

  cancel() {
    this.connection?.call("session/cancel", { sessionId: this.session }).catch(() => {});
  }

  async #follow() {
    const { connection, session: sessionId, promptId } = this;
    await connection.call("initialize", { protocolVersion: 1, client: { name: "example-node" } });
    const refused = new Promise((_, reject) => (this.refuse = reject));
    if (this.cursor === null) {
      const opened = await connection.call("session/new", { agentAlias: "default", sessionId, cwd: process.cwd() });
      [this.cursor, this.epoch] = [opened.lastSeq, opened.epoch];
    } else {
      const attached = await connection.call("session/attach", { sessionId, after: this.cursor });
      if (attached.epoch !== this.epoch) throw new Error("the session is another one now: begin again");
      if (this.sent && attached.state === "idle") this.#settle();
    }
    if (!this.sent) {
      this.sent = true;
      connection.call("session/prompt", { sessionId, prompt: this.prompt, promptId }).catch(this.refuse);
    }
    return Promise.race([this.completed, refused]);
  }

  #receive(update) {
    if (update.sessionId !== this.session) return;
    if (this.settling) this.#settle();
    if (update.type === "state" && update.prompt !== undefined) this.mine = update.promptId === this.promptId;
    if (this.mine) show(update);
    if (update.type === "approval_request" && this.mine) {
      const decision = this.approve ? "allow_once" : "reject";
      const params = { sessionId: this.session, requestId: update.requestId, decision };
      this.connection.call("session/approve", params).catch(() => {}); // another client was first, or it is asked again
    }
    if (update.seq === undefined) return; // it is not on record: the answer to the prompt counts
    this.cursor = update.seq;
    if (update.type === "turn_complete" && update.promptId === this.promptId) this.complete(update);
  }

  #settle() {
    clearTimeout(this.settling);
    const error = new Error("the daemon never got the prompt; send it again");
    this.settling = setTimeout(() => this.refuse(error), SETTLE_MS);
  }
}

async function connect(onUpdate, patienceMs) {
  const deadline = Date.now() + patienceMs;
  for (let pause = 100; ; pause = Math.min(2 * pause, 2000)) {
    try {
      return await Connection.open(socketPath, onUpdate);
    } catch (error) {
      if (Date.now() + pause > deadline) throw Object.assign(error, { exitCode: 3 });
      await sleep(pause);
    }
  }
}

function show(update) {
  if (update.type === "agent_message_chunk") process.stdout.write(update.text);
  else if (update.type === "tool_call") {
    process.stdout.write("\n");
    console.error(`[${update.name}] ${JSON.stringify(update.rawInput)}`);
  }
  if (update.type === "tool_result") console.error(update.isError ? "[failed]" : "[ok]");
  else if (update.type === "approval_request") console.error(`[approve?] ${update.argumentsSummary}`);
}

const [session, prompt, flag] = process.argv.slice(2);
if (prompt === undefined) {
  console.error('usage: client.mjs SESSION "PROMPT" [--approve]');
  process.exit(2);
}
const socketPath = process.env.ZEROCLAW_SOCKET || path.join(os.homedir(), ".zeroclaw", "data", "daemon.sock");
const run = new Run(session, prompt, flag === "--approve");
process.once("SIGINT", () => run.cancel()); // once: a second Ctrl+C ends this program; the turn continues in the daemon
try {
  const { outcome, error } = await run.result();
  process.stdout.write("\n");
  if (error) console.error(`client.mjs: ${error}`);
  process.exitCode = { completed: 0, cancelled: 130, failed: 1 }[outcome];
} catch (error) {
  console.error(`client.mjs: ${error.message}`);
  process.exitCode = error.exitCode ?? 1;
}
