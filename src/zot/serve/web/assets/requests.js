// Requests that wait for a person: approvals of tool calls, and questions of tools. One card shows one request, anywhere on the page.

import { button, h, say, visible } from "./dom.js";
import { link, webAddress } from "./markdown.js";
import { described } from "./tools.js";

const WORDS = {
  allow_once: "Allowed once", allow_always: "Always allowed", reject: "Rejected", accept: "Answered", decline: "Declined",
  cancel: "Cancelled", expired: "Expired", aborted: "Aborted", unanswerable: "No user to ask",
};

/** The kinds of requests: the events that open and settle one, and how it is answered. */
export const KINDS = {
  approval_request: { kind: "approval", method: "session/approve" },
  question_request: { kind: "question", method: "session/answer" },
};
export const ANSWERS = { approval_answer: "decision", question_answer: "action" };

/** The outcome of a request for people. */
export function outcome(event) {
  const word = WORDS[event[ANSWERS[event.type]]] ?? String(event[ANSWERS[event.type]]);
  return event.by ? `${word} by ${event.by}` : word;
}

/** The key of a request among those of all sessions. */
export function keyOf(sessionId, requestId) {
  return `${sessionId}\n${requestId}`;
}

/** Cards of open requests. `board` knows sessions and takes answers. */
export class Cards {
  constructor(board) {
    this.board = board;
    this.shown = new Map(); // Cards by the key of their request.
    board.addEventListener("settled", ({ detail }) => this.settle(detail.key, detail.outcome));
    board.addEventListener("sessions", () => this.tick());
    setInterval(() => this.tick(), 1000);
  }

  /** Return a card for a request. `named` adds the session that it belongs to. */
  card(request, { named = false } = {}) {
    const { sessionId, id, kind } = request;
    const result = h("p.outcome", { role: "status" });
    const buttons = h("div.buttons");
    const left = h("time", { dateTime: request.deadline, title: request.deadline });
    const title = visible(kind === "approval" ? request.tool : `${request.origin ?? "A tool"} asks`);
    const place = h("a", { href: `#/s/${encodeURIComponent(sessionId)}` });
    const one = { sessionId, id, buttons, result, place, left, who: h("p.facts"), request, element: null };
    const body = kind === "approval" ? described(request.tool, request.args) : this.question(request, one);
    if (kind === "approval" && this.board.connection.may("session/approve")) {
      const decide = (decision) => () => this.answer(one, "session/approve", { decision });
      buttons.append(button("Allow once", decide("allow_once"), { kind: "main", key: "a" }),
        button("Always allow", decide("allow_always"), { key: "l" }), button("Reject", decide("reject"), { kind: "bad", key: "r" }));
    }
    one.element = h("article.card.request", { tabIndex: 0, data: { kind, request: keyOf(sessionId, id) },
      "aria-label": `${title}${kind === "approval" ? " waits for approval" : ""}`, on: { keydown: (press) => byKey(press, buttons) } },
    h("div.row", null, h("h3", null, title), named ? h("span.in", null, "in ", place) : null,
      h("span.left", null, left)),
    one.who, ...body, buttons, result);
    if (kind === "approval") one.element.classList.add("approval");
    const key = keyOf(sessionId, id);
    this.shown.set(key, [...(this.shown.get(key) ?? []), one]);
    this.tick();
    return one.element;
  }

  /** The body of a question: its text, an address to open, and a field for each value. */
  question(request, one) {
    const href = request.url ? webAddress(request.url) : null;
    const fields = (request.fields ?? []).map((field) => fieldOf(field));
    const form = h("form.fields", { on: { submit: (press) => {
      press.preventDefault();
      const content = Object.fromEntries(fields.map(({ name, read }) => [name, read()]).filter(([, value]) => value !== undefined));
      this.answer(one, "session/answer", { action: "accept", content });
    } } }, ...fields.map(({ element }) => element));
    if (this.board.connection.may("session/answer")) {
      one.buttons.append(h("button", { type: "submit", class: "main", data: { key: "a" }, on: { click: () => form.requestSubmit() } },
        fields.length ? "Send" : "Accept", h("kbd", { "aria-hidden": true }, "a")),
      button("Decline", () => this.answer(one, "session/answer", { action: "decline" }), { kind: "bad", key: "r" }));
    }
    return [h("p.ask", null, visible(request.message)), href ? h("p", null, link(request.url, href)) : null,
      request.url && !href ? h("p.path", null, visible(request.url)) : null, fields.length ? form : null].filter(Boolean);
  }

  async answer(one, method, params) {
    for (const each of one.buttons.children) each.disabled = true;
    try {
      await this.board.connection.call(method, { sessionId: one.sessionId, requestId: one.id, ...params });
    } catch (problem) {
      if (one.element.dataset.settled !== undefined) return; // Another client was first; the card says who.
      say(one.result, problem.message);
      for (const each of one.buttons.children) each.disabled = false;
      this.board.refresh();
    }
  }

  /** A request was answered here or elsewhere: its cards say so and take no more answers. */
  settle(key, text) {
    for (const { element, buttons, result } of this.shown.get(key) ?? []) {
      buttons.replaceChildren();
      element.querySelector("form")?.remove();
      element.dataset.settled = "";
      say(result, text);
    }
    this.shown.delete(key);
  }

  /** Show the time left, and what is known of the session by now. */
  tick() {
    for (const { sessionId, request, place, left, who } of [...this.shown.values()].flat()) {
      say(place, this.board.titleOf(sessionId));
      say(who, this.board.asker(request));
      const seconds = Math.round((Date.parse(request.deadline) - Date.now()) / 1000);
      if (Number.isFinite(seconds)) say(left, seconds > 90 ? `${Math.round(seconds / 60)} min left` : `${Math.max(0, seconds)} s left`);
    }
  }
}

function byKey(press, buttons) {
  if (press.ctrlKey || press.metaKey || press.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(press.target.tagName)) return;
  const found = [...buttons.children].find((one) => one.dataset.key === press.key);
  if (!found || found.disabled) return;
  press.preventDefault();
  found.click();
}

const TYPES = { email: "email", uri: "url", date: "date" };

function fieldOf({ name, kind, title, description, required, choices = [], default: preset, minimum, maximum, format }) {
  const label = visible(title || name);
  const hint = description ? h("span.facts", null, description) : null;
  const wrap = (control) => h("label", null, h("span", null, label), control, hint);
  if (kind === "boolean") {
    const box = h("input", { type: "checkbox", checked: preset === true });
    return { name, element: h("label.check", null, box, h("span", null, label), hint), read: () => box.checked };
  }
  if (kind === "choice" || kind === "choices") {
    const chosen = new Set([preset].flat());
    const options = choices.map(({ value, title: shown }) => {
      const option = h("option", { value }, shown || value);
      option.selected = chosen.has(value);
      return option;
    });
    const many = kind === "choices";
    const select = h("select", { multiple: many, required: required && !many }, many || required ? null : h("option", { value: "" }, ""), ...options);
    const read = () => (many ? [...select.selectedOptions].map((one) => one.value) : select.value || undefined);
    return { name, element: wrap(select), read };
  }
  const isNumber = kind === "number" || kind === "integer";
  const bounds = isNumber ? { min: minimum, max: maximum, step: kind === "integer" ? 1 : "any" } : { minLength: minimum, maxLength: maximum };
  const input = h("input", { type: isNumber ? "number" : TYPES[format] ?? "text", required, autocomplete: "off", ...bounds });
  if (preset !== undefined && preset !== null) input.value = String(preset);
  return { name, element: wrap(input), read: () => (input.value === "" ? undefined : isNumber ? Number(input.value) : input.value) };
}
