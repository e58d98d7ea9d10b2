// Test an extension without a process and without zot: a client that says what zot would say.

import { tmpdir } from "node:os";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";

export class Client {
  #extension;
  #receive;
  #dataDir;
  #temporary = null;
  #host;
  #count = 0;

  constructor(extension, { dataDir = "", provider = "lab", model = "lab-1" } = {}) {
    this.#extension = extension;
    this.#dataDir = dataDir;
    this.#host = { provider, model };
    /** All that the extension has said, in order. */
    this.frames = [];
    /** What is shown in each panel that is open, by id. */
    this.panels = new Map();
  }

  async start() {
    if (!this.#dataDir) this.#dataDir = this.#temporary = await mkdtemp(join(tmpdir(), "zot-ext-"));
    this.#receive = this.#extension.connect((...frames) => frames.forEach((frame) => this.#heard(frame)));
    const where = { cwd: process.cwd(), extension_dir: this.#dataDir, data_dir: this.#dataDir };
    await this.#say({ type: "hello_ack", protocol_version: 1, zot_version: "0", ...this.#host, ...where });
    return this;
  }

  async stop() {
    await this.#extension.finish();
    if (this.#temporary) await rm(this.#temporary, { recursive: true });
  }

  /** What it has shown the person so far. */
  get notices() {
    return this.frames.filter(({ type }) => type === "notify").map(({ level, message }) => [level, message]);
  }

  async command(name, args = "") {
    this.#mustHave("register_command", name);
    const response = await this.#ask({ type: "command_invoked", name, args: args.trim() });
    if (response.action === "open_panel") this.panels.set(response.open_panel.id, response.open_panel.lines);
    return response;
  }

  async call(tool, args = {}) {
    this.#mustHave("register_tool", tool);
    const { content, is_error: isError = false } = await this.#ask({ type: "tool_call", name: tool, args });
    const text = content.filter(({ type }) => type === "text").map((block) => block.text);
    return { text: text.join("\n"), isError, content };
  }

  async intercept(event, about = {}) {
    return this.#ask({ type: "event_intercept", event, ...about });
  }

  async tell(event, about = {}) {
    await this.#say({ type: "event", event, ...about });
  }

  async press(panelId, key, text = "") {
    await this.#say({ type: "panel_key", panel_id: panelId, key, text });
    return this.panels.get(panelId);
  }

  async closePanel(panelId) {
    this.panels.delete(panelId);
    await this.#say({ type: "panel_close", panel_id: panelId });
  }

  async #ask(frame) {
    const id = String(++this.#count);
    await this.#say({ ...frame, id });
    const answer = this.frames.find((said) => said.id === id);
    if (!answer) throw new Error(`${frame.type} was not answered`);
    return answer;
  }

  async #say(frame) {
    await this.#receive(JSON.parse(JSON.stringify(frame)));
  }

  #heard(frame) {
    const said = JSON.parse(JSON.stringify(frame));
    this.frames.push(said);
    if (said.type === "panel_render" && this.panels.has(said.panel_id)) this.panels.set(said.panel_id, said.lines);
    if (said.type === "panel_close") this.panels.delete(said.panel_id);
  }

  #mustHave(type, name) {
    const names = this.frames.filter((frame) => frame.type === type).map((frame) => frame.name);
    if (!names.includes(name)) throw new Error(`no ${type.slice(9)} ${name}; there are ${names.join(", ") || "none"}`);
  }
}
