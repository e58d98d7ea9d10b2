#!/usr/bin/env node
// Drive `zot rpc` from Node, without dependencies.
//
//     node client.mjs "say hello" --provider lab
//
// Further arguments are passed on to `zot rpc`. $ZOT is the program (default: zot).

import { spawn } from "node:child_process";

class Zot {
  /** One `zot rpc` process: one conversation. */
  constructor(...flags) {
    // Detached, so that a Ctrl+C at the terminal reaches us alone: we abort the prompt and keep the process.
    this.child = spawn(process.env.ZOT ?? "zot", ["rpc", ...flags], {
      stdio: ["pipe", "pipe", "inherit"],
      detached: true,
    });
    this.exited = new Promise((resolve) => {
      this.child.on("error", (error) => resolve(error.message)); // it could not be started
      this.child.on("close", (code, signal) => resolve(`zot has ended (${signal ?? `exit code ${code}`})`));
    });
    this.child.stdin.on("error", () => {}); // it does not listen any more: the end of its output tells
    this.child.stdout.setEncoding("utf8"); // also puts characters together that two chunks share
    this.lines = this.#split();
  }

  /** Start a prompt; `events` yields its events. */
  prompt(message) {
    this.#send({ id: "prompt", type: "prompt", message });
  }

  /** End the running prompt. Its events still come, up to `done`. */
  abort() {
    this.#send({ id: "abort", type: "abort" });
  }

  /** The events of a prompt, `done` last. Throws if it was refused or zot is gone. */
  async *events() {
    for (;;) {
      const { value, done } = await this.lines.next(); // not `for await`: that would close it for the next prompt
      if (done) throw new Error(await this.exited);
      const frame = JSON.parse(value);
      if (frame.type !== "response") yield frame;
      else if (!frame.success) throw new Error(`${frame.command}: ${frame.error}`);
      if (frame.type === "done") return;
    }
  }

  /** End its input; it then finishes and exits. */
  close() {
    this.child.stdin.end();
    return this.exited;
  }

  #send(command) {
    this.child.stdin.write(JSON.stringify(command) + "\n");
  }

  // Not readline: it also cuts at U+2028 and U+2029, which may stand inside a frame.
  async *#split() {
    let rest = "";
    for await (const chunk of this.child.stdout) {
      rest += chunk;
      if (!chunk.includes("\n")) continue; // a long line: look at it once, when it is complete
      const lines = rest.split("\n");
      rest = lines.pop();
      yield* lines;
    }
  }
}

const [message, ...flags] = process.argv.slice(2);
if (message === undefined) {
  console.error('usage: client.mjs "PROMPT" [flags of zot rpc]');
  process.exit(2);
}
const zot = new Zot(...flags);
process.once("SIGINT", () => zot.abort()); // once: a second Ctrl+C ends this program, and zot follows
try {
  zot.prompt(message);
  for await (const event of zot.events()) {
    if (event.type === "text_delta") process.stdout.write(event.delta);
    else if (event.type === "assistant_message") process.stdout.write("\n");
    else if (event.type === "tool_call") console.error(`[${event.name}] ${JSON.stringify(event.args)}`);
    else if (event.type === "tool_result") console.error(event.is_error ? "[failed]" : "[ok]");
    else if (event.type === "error") (process.exitCode = 1), console.error(`error: ${event.message}`);
    else if (event.type === "turn_end" && event.stop === "aborted") process.exitCode = 130;
  }
} catch (problem) {
  console.error(`client.mjs: ${problem.message}`);
  process.exitCode = 1;
}
await zot.close();
