// One conversation: events in, DOM nodes out.

import { h, money, say } from "./dom.js";
import { render } from "./markdown.js";

const MOST_OUTPUT = 100000;

/** Shows the events of a session. Its element is filled as they come; `usage` is that of the session so far. */
export class Transcript {
  constructor(approvalCard) {
    this.element = h("div", { class: "transcript", role: "log", "aria-live": "off", "aria-label": "Conversation" });
    this.approvalCard = approvalCard;
    this.reset();
  }

  reset() {
    this.element.replaceChildren();
    this.tools = new Map();
    this.message = null;
    this.thought = null;
    this.hasText = false; // Whether the reply that is being written has any.
    this.dirty = new Set();
    this.running = false;
    this.usage = null;
    this.prompts = new Set();
    this.onUsage?.();
  }

  /** Take one event of the session. */
  take(event) {
    switch (event.type) {
      case "user_message":
        this.end();
        this.running = true;
        if (event.prompt_id) this.prompts.add(event.prompt_id);
        this.add(h("article", { class: "user", "aria-label": event.by ? `Prompt by ${event.by}` : "Prompt" },
          h("p", null, shown(event.content))));
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
        if (!this.hasText && shown(event.content)) this.text(shown(event.content));
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
        this.add(this.approvalCard(event));
        break;
      case "usage":
        this.usage = event.cumulative;
        this.onUsage?.();
        break;
      case "turn_end":
        if (event.stop === "aborted") this.notice("Stopped.");
        else if (event.stop === "length") this.notice("Cut off at the length limit.");
        break;
      case "error":
        this.notice(event.message, "error");
        break;
      case "done":
        this.end();
        this.running = false;
        break;
      case "retry":
        this.notice(`${event.reason}; attempt ${event.attempt} follows`);
        break;
      case "compact_done":
        this.notice("Older messages were summarized for the model.");
        break;
      case "conversation_replaced":
        if (event.messages === 0) this.element.replaceChildren();
        this.notice(`The conversation was changed: it has ${event.messages} messages now.`);
        break;
      case "ext_notify":
        this.notice(`${event.extension}: ${event.message}`, event.level === "error" ? "error" : "");
        break;
      default: // Nothing to show.
    }
  }

  add(node) {
    this.element.append(node);
    return node;
  }

  notice(text, kind = "") {
    this.add(h("p", { class: `notice ${kind}` }, text));
  }

  end() {
    this.flush();
    this.message = null;
    this.thought = null;
  }

  text(delta) {
    if (!this.message) {
      const element = h("article", { class: "answer", "aria-label": "Answer" });
      this.message = { element: this.add(element), text: "" };
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
      const body = h("pre", null);
      this.thought = body;
      this.add(h("details", { class: "thought" }, h("summary", null, "Thinking"), body));
    }
    this.thought.append(delta);
  }

  tool(id, name) {
    const known = this.tools.get(id);
    if (known) return known;
    const state = h("span", { class: "state" }, "writing");
    const about = h("span", { class: "about" });
    const input = h("pre", { class: "input", hidden: true });
    const output = h("pre", { class: "output", tabIndex: 0, hidden: true });
    const summary = h("summary", null, h("b", null, name), " ", about, " ", state);
    const element = this.add(h("details", { class: "tool", data: { state: "writing" } }, summary, input, output));
    const tool = { element, state, about, input, output, size: 0 };
    this.tools.set(id, tool);
    return tool;
  }

  become(tool, state) {
    tool.element.dataset.state = state;
    say(tool.state, state);
  }

  called({ id, name, args }) {
    this.end();
    const tool = this.tool(id, name);
    say(tool.about, about(args));
    tool.input.textContent = args === null ? "the arguments are not valid" : JSON.stringify(args, null, 2);
    tool.input.hidden = false;
    tool.element.open = true;
    this.become(tool, "running");
  }

  output(id, text) {
    const tool = this.tools.get(id);
    if (!tool || tool.size > MOST_OUTPUT) return;
    tool.size += text.length;
    tool.output.hidden = false;
    tool.output.append(text);
    if (tool.size > MOST_OUTPUT) tool.output.append("\n…");
  }

  result({ id, is_error: failed, content }) {
    const tool = this.tool(id, "tool");
    const text = shown(content);
    tool.output.textContent = text.length > MOST_OUTPUT ? `${text.slice(0, MOST_OUTPUT)}\n…` : text;
    tool.output.hidden = !text;
    tool.element.open = failed;
    this.become(tool, failed ? "failed" : "done");
  }
}

/** Text of message blocks; an image is named, and tool calls have events of their own. */
export function shown(content) {
  const parts = content.map((one) => one.text ?? (one.mime_type ? `[${one.mime_type}, ${one.bytes ?? "?"} bytes]` : ""));
  return parts.filter(Boolean).join("\n");
}

/** The most telling argument of a tool call. */
export function about(args) {
  const text = args?.command ?? args?.path ?? args?.name ?? "";
  const line = String(text).split("\n")[0];
  return line.length > 120 ? `${line.slice(0, 119)}…` : line;
}

/** Tokens and money for people. */
export function usageText(usage) {
  if (!usage) return "";
  const cost = usage.price_known === false ? "" : money(usage.cost_usd);
  return [`${usage.input + usage.cache_read + usage.cache_write} in`, `${usage.output} out`, cost].filter(Boolean)
    .join(" · ");
}
