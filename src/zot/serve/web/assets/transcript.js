// One conversation: messages and events in, elements out.

import { button, h, money, say, scrolls, short } from "./dom.js";
import { render } from "./markdown.js";
import { KINDS } from "./requests.js";
import { MOST_OUTPUT, about, described, showResult, textOf } from "./tools.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** Shows a session. `fetchImage` returns an image of it, `cards` those of requests; `onUsage` is called when the usage changes. */
export class Transcript {
  constructor({ sessionId, cards, fetchImage, onUsage }) {
    this.element = h("div.transcript", { role: "log", tabIndex: 0, "aria-live": "off", "aria-label": "Conversation" });
    this.body = h("div.column");
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
    if (Object.hasOwn(EVENTS, event.type)) EVENTS[event.type](this, event);
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
    this.add(h("article.user", { "aria-label": by ? `Prompt by ${by}` : "Prompt" },
      text ? h("p", null, text) : null, ...images.map((one, index) => this.image(one, { time, index })),
      by ? h("p.by", null, by) : null));
  }

  /** An image, fetched when it comes into view. Only pictures are shown, whatever a message calls its content. */
  image({ mime_type: kind, bytes }, where) {
    const label = `Image, ${short(bytes ?? 0)} bytes`;
    if (!PICTURES.has(kind)) return h("p.notice", null, `${kind}, ${short(bytes ?? 0)} bytes`);
    const picture = h("img", { alt: label });
    const frame = h("div.picture", null, picture);
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
        frame.replaceChildren(h("p.notice", null, `${label}: ${problem.message}`));
      }
    }).observe(frame);
    return frame;
  }

  /** A reply of the model begins. */
  begin() {
    this.running = true;
    this.hasText = false;
    this.end();
  }

  ask(event) {
    this.add(this.cards.card({ sessionId: this.sessionId, kind: KINDS[event.type].kind, ...event }));
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
      this.message = { element: this.add(h("article.answer", { "aria-label": "Answer" })), text: "" };
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
      this.thought = h("pre");
      this.add(h("details.thought", null, h("summary", null, "Thinking"), this.thought));
    }
    this.thought.append(delta);
  }

  tool(id, name) {
    const known = this.tools.get(id);
    if (known) return known;
    const state = h("span.state", null, "writing");
    const subject = h("span.about");
    const input = h("div.call");
    const output = h("pre.output", { ...scrolls("Output"), hidden: true });
    const pictures = h("div");
    const summary = h("summary", null, h("span.dot", { "aria-hidden": true }), h("b", null, name), " ", subject, " ", state);
    const element = this.add(h("details.tool", { data: { state: "writing" } }, summary, input, output, pictures));
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

/** What each kind of event changes; others have nothing to show. */
const EVENTS = {
  user_message(view, { content, time, by = "", prompt_id: id }) {
    view.end();
    view.running = true;
    if (id) view.prompts.add(id);
    view.prompt(content, time, by);
  },
  turn_start: (view) => view.begin(),
  assistant_start: (view) => view.begin(),
  text_delta: (view, { delta }) => view.text(delta),
  thinking_delta: (view, { delta }) => view.think(delta),
  assistant_message(view, { content }) {
    if (!view.hasText && textOf(content)) view.text(textOf(content));
    view.end();
  },
  tool_use_start(view, { id, name }) {
    view.end();
    view.tool(id, name);
  },
  tool_call: (view, event) => view.called(event),
  tool_progress: (view, { id, text }) => view.output(id, text),
  tool_result: (view, event) => view.result(event),
  approval_request: (view, event) => view.ask(event),
  question_request: (view, event) => view.ask(event),
  usage(view, { cumulative }) {
    view.usage = cumulative;
    view.onUsage();
  },
  turn_end: (view, { stop, error }) => view.stopped(stop, error),
  error: (view, { message }) => view.notice(message, "error"),
  done(view) {
    view.end();
    view.running = false;
  },
  retry: (view, { reason, attempt }) => view.notice(`${reason}: attempt ${attempt} follows.`),
  compact_done: (view) => view.notice("Older messages were summarized for the model."),
  ext_notify: (view, { extension, message, level }) => view.notice(`${extension}: ${message}`, level === "error" ? level : ""),
  ext_waiting: (view, { extension, what }) => view.notice(`Waiting for the extension ${extension} (${what}).`),
};

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
