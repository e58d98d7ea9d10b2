// The composer: a prompt with attachments, completion of commands and files, and the prompts that wait.

import { button, fill, h, short, toast } from "./dom.js";

const MOST_BYTES = 10 << 20;
const TYPING_MS = 120;

/** Return the word before the cursor that can be completed: {word, from, kind}; null if there is none. */
export function unfinished(text, cursor) {
  const before = text.slice(0, cursor);
  const command = /^\/\S*$/.exec(before);
  if (command) return { word: before.slice(1), from: 0, kind: "command" };
  const mention = /(?:^|\s)@("(?:[^"\\\n]|\\.)*|[^\s"]*)$/.exec(before);
  if (!mention) return null;
  const word = mention[1].startsWith('"') ? mention[1].slice(1).replace(/\\(["\\])/g, "$1") : mention[1];
  return { word, from: cursor - mention[1].length - 1, kind: "file" };
}

/** Return the mention of a path, quoted if it needs to be. */
export function mention(path) {
  return /\s|^"/.test(path) ? `@"${path.replace(/[\\"]/g, "\\$&")}"` : `@${path}`;
}

/** `complete` returns offers {text, label, help} for a word; `send` takes {text, attachments, steers}; `stop` aborts. */
export class Composer {
  constructor({ complete, send, stop }) {
    this.complete = complete;
    this.onSend = send;
    this.stop = stop;
    this.running = false;
    this.attached = [];
    this.offers = [];
    this.chosen = 0;
    this.asked = 0;
    this.input = h("textarea", { rows: 1, id: "prompt", "aria-label": "Prompt", placeholder: "Ask anything. / for commands, @ for files",
      "aria-autocomplete": "list", "aria-controls": "offers", enterKeyHint: "send",
      on: { keydown: (press) => this.key(press), input: () => this.changed(), paste: (event) => this.paste(event), blur: () => this.offer([]) } });
    this.files = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Attach files",
      on: { change: () => { this.attach([...this.files.files]); this.files.value = ""; } } });
    this.chips = h("ul.chips", { "aria-label": "Attachments", hidden: true });
    this.list = h("ul", { id: "offers", class: "offers", role: "listbox", "aria-label": "Completions", hidden: true });
    this.sendButton = button("Send", () => this.send(), { kind: "main send", picture: "send" });
    this.steerButton = button("Steer", () => this.send({ steers: true }), { kind: "steer" });
    this.stopButton = button("Stop", () => this.stop(), { kind: "stop bad" });
    this.element = h("div.composer", null, this.list, h("div.box", null, this.chips, this.input,
      h("div.buttons", null, button("Attach files", () => this.files.click(), { kind: "quiet attach", picture: "clip" }), this.files,
        h("span.hint.facts"), this.stopButton, this.steerButton, this.sendButton)));
    this.update(false);
  }

  /** Watch for files that are dropped on an element. */
  takeDrops(element) {
    element.addEventListener("dragover", (event) => {
      if (this.element.hidden || !event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      element.dataset.drop = "";
    });
    for (const name of ["dragleave", "drop"]) element.addEventListener(name, () => delete element.dataset.drop);
    element.addEventListener("drop", (event) => {
      if (this.element.hidden || !event.dataTransfer.files.length) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
  }

  update(running) {
    this.running = running;
    this.sendButton.setAttribute("aria-label", running ? "Queue" : "Send");
    this.sendButton.title = running ? "Queue after the running turn (Enter)" : "Send (Enter)";
    this.steerButton.title = "Add to the running turn (Ctrl+Enter)";
    this.stopButton.title = "Stop the running turn (Escape)";
    this.steerButton.hidden = this.stopButton.hidden = !running;
    this.element.querySelector(".hint").textContent = running ? "Enter queues, Ctrl+Enter steers" : "";
  }

  // Text.

  get value() {
    return this.input.value;
  }

  set value(text) {
    this.input.value = text;
    this.grow();
  }

  insert(text) {
    this.input.setRangeText(text, this.input.selectionStart, this.input.selectionEnd, "end");
    this.input.focus();
    this.changed();
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 240)}px`;
  }

  send({ steers = false } = {}) {
    const text = this.value.trim();
    if (!text && !this.attached.length) return;
    const attachments = this.attached;
    this.attached = [];
    this.drawChips();
    this.value = "";
    this.offer([]);
    this.onSend({ text, attachments, steers: steers && this.running });
  }

  /** Put a prompt back that was not sent. */
  restore(text, attachments) {
    this.value = [text, this.value].filter(Boolean).join("\n");
    this.attached = [...attachments, ...this.attached];
    this.drawChips();
  }

  key(press) {
    if (press.isComposing) return;
    if (this.offers.length && this.offerKey(press)) return;
    if (press.key === "Enter" && !press.shiftKey) {
      press.preventDefault();
      this.send({ steers: press.ctrlKey || press.metaKey });
    } else if (press.key === "Escape" && this.running) this.stop();
  }

  // Completion.

  changed() {
    this.grow();
    const found = unfinished(this.value, this.input.selectionStart);
    this.asked += 1;
    const { asked } = this;
    clearTimeout(this.timer);
    if (!found) {
      this.offer([]);
      return;
    }
    this.timer = setTimeout(async () => {
      const offers = await this.complete(found.kind, found.word).catch(() => []);
      if (asked === this.asked) this.offer(offers, found.from);
    }, found.kind === "file" ? TYPING_MS : 0);
  }

  offer(offers, from = 0) {
    this.offers = offers.slice(0, 30);
    this.from = from;
    this.chosen = 0;
    this.list.hidden = !this.offers.length;
    fill(this.list, ...this.offers.map((one, at) => h("li", { role: "option", id: `offer-${at}`,
      on: { mousedown: (press) => { press.preventDefault(); this.accept(at); } } }, h("b", null, one.label), one.help ? h("span.facts", null, one.help) : null)));
    this.choose(0);
  }

  choose(at) {
    this.chosen = this.offers.length ? (at + this.offers.length) % this.offers.length : 0;
    [...this.list.children].forEach((one, number) => one.setAttribute("aria-selected", String(number === this.chosen)));
    this.list.children[this.chosen]?.scrollIntoView({ block: "nearest" });
    if (this.offers.length) this.input.setAttribute("aria-activedescendant", `offer-${this.chosen}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  accept(at) {
    const { text } = this.offers[at];
    this.input.setRangeText(text, this.from, this.input.selectionStart, "end");
    this.offer([]);
    this.grow();
  }

  offerKey(press) {
    if (press.key === "ArrowDown") this.choose(this.chosen + 1);
    else if (press.key === "ArrowUp") this.choose(this.chosen - 1);
    else if (press.key === "Tab" || (press.key === "Enter" && !press.shiftKey && !this.isComplete())) this.accept(this.chosen);
    else if (press.key === "Escape") this.offer([]);
    else return false;
    press.preventDefault();
    return true;
  }

  /** True if the chosen offer is already there, so that Enter sends. */
  isComplete() {
    return this.value.slice(this.from, this.input.selectionStart).trim() === this.offers[this.chosen].text.trim();
  }

  // Attachments.

  paste(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    this.attach(files);
  }

  async attach(files) {
    for (const file of files) {
      if (file.size + this.attached.reduce((sum, one) => sum + one.size, 0) > MOST_BYTES) {
        toast(`${file.name}: attachments may have 10 MB together.`, { kind: "error" });
        continue;
      }
      const dataB64 = await base64(file);
      this.attached.push({ dataB64, filename: file.name, mimeType: file.type || null, size: file.size });
    }
    this.drawChips();
    this.input.focus();
  }

  drawChips() {
    this.chips.hidden = !this.attached.length;
    fill(this.chips, ...this.attached.map((one) => h("li", null, h("span", null, one.filename), h("span.facts", null, ` ${short(one.size)}B`),
      button(`Remove ${one.filename}`, () => {
        this.attached = this.attached.filter((other) => other !== one);
        this.drawChips();
      }, { kind: "quiet", picture: "close" }))));
  }
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
