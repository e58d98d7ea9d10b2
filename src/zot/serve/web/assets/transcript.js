// One conversation: messages and events in, elements out.

import { button, h, money, say, short } from "./dom.js";
import { render } from "./markdown.js";
import { KINDS } from "./requests.js";
import { MOST_OUTPUT, about, described, showResult, textOf } from "./tools.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** Shows a session. `fetchImage` returns an image of it, `cards` those of requests; `onUsage` is called when the usage changes. */
export class Transcript {
  constructor({ sessionId, cards, fetchImage, onUsage }) {
    this.element = h("div", { class: "transcript", role: "log", tabIndex: 0, "aria-live": "off", "aria-label": "Conversation" });
    this.body = h("div", { class: "column" });
    this.element.append(this.body);
    this.sessionId = sessionId;
    this.cards = cards;
    this.fetchImage = fetchImage;
    this.onUsage = onUsage;
    this.reset();
  }

  reset() {
    this.body.replaceChildren();
    this.target = this.body; // Where new elements go.
    this.tools = new Map();
    this.results = new Map(); // Results whose calls are on an older page.
    this.message = null;
    this.thought = null;
    this.hasText = false; // Whether the reply that is being written has any.
    this.dirty = new Set();
    this.running = false;
    this.usage = null;
    this.prompts = new Set();
  }

  // Messages of the past.

  /** Show older messages before all others. */
  prepend(messages) {
    const fragment = document.createDocumentFragment();
    this.target = fragment;
    for (const message of messages) this.past(message);
    this.end();
    this.target = this.body;
    this.body.prepend(fragment);
  }

  past({ role, blocks, time, thinking, stopReason, error }) {
    this.end();
    if (role === "user") this.prompt(blocks, time, "");
    else if (role === "tool") {
      for (const one of blocks) if (one.type === "tool_result") this.result({ id: one.call_id, is_error: one.is_error, content: one.content });
    } else {
      if (thinking) this.think(thinking);
      this.end();
      if (textOf(blocks)) this.text(textOf(blocks));
      this.end();
      for (const one of blocks) if (one.type === "tool_call") this.called(one, { lazy: true });
    }
    if (stopReason) this.stopped(stopReason === "cancelled" ? "aborted" : stopReason, error);
    this.end();
  }

  // Events.

  /** Take one event of the session. */
  take(event) {
    switch (event.type) {
      case "user_message":
        this.end();
        this.running = true;
        if (event.prompt_id) this.prompts.add(event.prompt_id);
        this.prompt(event.content, event.time, event.by ?? "");
        break;
      case "turn_start":
      case "assistant_start":
        this.running = true;
        this.hasText = false;
        this.end();
        break;
      case "text_delta":
        this.text(event.delta);
        break;
      case "thinking_delta":
        this.think(event.delta);
        break;
      case "assistant_message":
        if (!this.hasText && textOf(event.content)) this.text(textOf(event.content));
        this.end();
        break;
      case "tool_use_start":
        this.end();
        this.tool(event.id, event.name);
        break;
      case "tool_call":
        this.called(event);
        break;
      case "tool_progress":
        this.output(event.id, event.text);
        break;
      case "tool_result":
        this.result(event);
        break;
      case "approval_request":
      case "question_request":
        this.add(this.cards.card({ sessionId: this.sessionId, kind: KINDS[event.type].kind, ...event }));
        break;
      case "usage":
        this.usage = event.cumulative;
        this.onUsage();
        break;
      case "turn_end":
        this.stopped(event.stop, event.error);
        break;
      case "error":
        this.notice(event.message, "error");
        break;
      case "done":
        this.end();
        this.running = false;
        break;
      case "retry":
        this.notice(`${event.reason}: attempt ${event.attempt} follows.`);
        break;
      case "compact_done":
        this.notice("Older messages were summarized for the model.");
        break;
      case "ext_notify":
        this.notice(`${event.extension}: ${event.message}`, event.level === "error" ? "error" : "");
        break;
      case "ext_waiting":
        this.notice(`Waiting for the extension ${event.extension} (${event.what}).`);
        break;
      default: // Nothing to show.
    }
  }

  stopped(stop, error) {
    if (stop === "aborted") this.notice("Stopped.");
    else if (stop === "length") this.notice("Cut off at the length limit.");
    else if (stop === "error" && error) this.notice(error, "error");
  }

  add(node) {
    this.target.append(node);
    return node;
  }

  notice(text, kind = "") {
    const last = this.target.lastChild;
    if (last?.className === `notice ${kind}` && last.textContent === text) return; // An error ends its turn as well.
    this.add(h("p", { class: `notice ${kind}` }, text));
  }

  prompt(content, time, by) {
    const text = textOf(content);
    const images = content.filter((one) => one.type === "image");
    this.add(h("article", { class: "user", "aria-label": by ? `Prompt by ${by}` : "Prompt" },
      text ? h("p", null, text) : null, ...images.map((one, index) => this.image(one, { time, index })),
      by ? h("p", { class: "by" }, by) : null));
  }

  /** An image, fetched when it comes into view. Only pictures are shown, whatever a message calls its content. */
  image({ mime_type: kind, bytes }, where) {
    const label = `Image, ${short(bytes ?? 0)} bytes`;
    if (!PICTURES.has(kind)) return h("p", { class: "notice" }, `${kind}, ${short(bytes ?? 0)} bytes`);
    const picture = h("img", { alt: label });
    const frame = h("div", { class: "picture" }, picture);
    new IntersectionObserver(async (entries, observer) => {
      if (!entries.some((one) => one.isIntersecting)) return;
      observer.disconnect();
      try {
        const { mimeType, dataB64 } = await this.fetchImage(where);
        if (!PICTURES.has(mimeType)) throw new Error("It is not a picture.");
        const data = Uint8Array.from(atob(dataB64), (one) => one.charCodeAt(0));
        picture.src = URL.createObjectURL(new Blob([data], { type: mimeType }));
        picture.onload = picture.onerror = () => URL.revokeObjectURL(picture.src);
      } catch (problem) {
        frame.replaceChildren(h("p", { class: "notice" }, `${label}: ${problem.message}`));
      }
    }).observe(frame);
    return frame;
  }

  /** End the message that is being written. */
  end() {
    this.flush();
    this.message = null;
    this.thought = null;
  }

  text(delta) {
    if (!this.message) {
      this.thought = null;
      this.message = { element: this.add(h("article", { class: "answer", "aria-label": "Answer" })), text: "" };
    }
    this.message.text += delta;
    this.hasText = true;
    this.later(this.message);
  }

  /** Render once a frame, however many deltas come. */
  later(message) {
    if (!this.dirty.size) requestAnimationFrame(() => this.flush());
    this.dirty.add(message);
  }

  flush() {
    for (const { element, text } of this.dirty) render(element, text);
    this.dirty.clear();
  }

  think(delta) {
    if (!this.thought) {
      this.thought = h("pre", null);
      this.add(h("details", { class: "thought" }, h("summary", null, "Thinking"), this.thought));
    }
    this.thought.append(delta);
  }

  tool(id, name) {
    const known = this.tools.get(id);
    if (known) return known;
    const state = h("span", { class: "state" }, "writing");
    const subject = h("span", { class: "about" });
    const input = h("div", { class: "call" });
    const output = h("pre", { class: "output", tabIndex: 0, role: "group", "aria-label": "Output", hidden: true });
    const pictures = h("div", null);
    const summary = h("summary", null, h("span", { class: "dot", "aria-hidden": true }), h("b", null, name), " ", subject, " ", state);
    const element = this.add(h("details", { class: "tool", data: { state: "writing" } }, summary, input, output, pictures));
    const tool = { element, name, args: null, state, subject, input, output, pictures, size: 0 };
    this.tools.set(id, tool);
    return tool;
  }

  become(tool, state) {
    tool.element.dataset.state = state;
    say(tool.state, state);
  }

  /** A complete call. `lazy` builds its details when they are opened: a long conversation has thousands. */
  called({ id, name, args }, { lazy = false } = {}) {
    this.end();
    const tool = this.tool(id, name);
    tool.args = args;
    say(tool.subject, about(args));
    this.become(tool, "running");
    const build = () => tool.input.hasChildNodes() || tool.input.replaceChildren(...described(name, args));
    if (lazy) tool.element.addEventListener("toggle", build);
    else {
      build();
      tool.element.open = true;
    }
    const early = this.results.get(id);
    if (early) {
      this.results.delete(id);
      this.result(early);
    }
  }

  output(id, text) {
    const tool = this.tools.get(id);
    if (!tool || tool.size > MOST_OUTPUT) return;
    tool.size += text.length;
    tool.output.hidden = false;
    tool.output.append(text);
    if (tool.size > MOST_OUTPUT) tool.output.append("\n…");
    tool.output.scrollTop = tool.output.scrollHeight;
  }

  result(event) {
    const { id, is_error: failed, content } = event;
    const tool = this.tools.get(id);
    if (!tool) {
      this.results.set(id, event);
      return;
    }
    const text = textOf(content);
    showResult(tool.output, tool.name, tool.args, text, failed);
    tool.output.hidden = !text;
    tool.input.hidden = tool.output.classList.contains("diff"); // It repeats the call, in its place.
    const images = content.filter((one) => one.type === "image");
    tool.pictures.replaceChildren(...images.map((one, index) => this.image(one, { callId: id, index })));
    tool.element.open = failed || images.length > 0;
    this.become(tool, failed ? "failed" : "done");
  }
}

/** Tokens and money for people. */
export function usageText(usage) {
  if (!usage) return "";
  const cost = usage.price_known === false ? "" : money(usage.cost_usd ?? usage.costUsd);
  const input = usage.input + (usage.cache_read ?? usage.cacheRead ?? 0) + (usage.cache_write ?? usage.cacheWrite ?? 0);
  return [`${short(input)} in`, `${short(usage.output)} out`, cost].filter(Boolean).join(" · ");
}

/** A button that goes to the newest message. */
export function downButton(act) {
  const one = button("Go to the newest message", act, { picture: "down", kind: "newest" });
  one.hidden = true;
  return one;
}
