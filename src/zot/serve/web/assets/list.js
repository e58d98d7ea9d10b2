// The list of sessions. Rows keep their elements as long as their session is listed, so that the focus stays where it is.

import { ago, fill, h, money, say, tail } from "./dom.js";

const WORDS = { idle: "", running: "running", waiting_approval: "waits for you" };

/** Words without the marks of Markdown. */
export function plainWords(text) {
  return text.replace(/(?<![^\s])#{1,6}\s|[*`|]+/g, "").replace(/\s+/g, " ").trim();
}

export class SessionList {
  constructor(element, board) {
    this.element = element;
    this.board = board;
    this.rows = new Map();
    this.empty = h("li.empty");
    board.addEventListener("sessions", () => this.later());
    setInterval(() => this.later(), 30000); // Times grow old.
  }

  /** Draw once a frame, however often the list changes. */
  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.draw();
    });
  }

  draw() {
    const entries = this.board.listed;
    const wanted = new Set(entries.map((one) => one.sessionId));
    for (const [id, row] of this.rows) {
      if (wanted.has(id)) continue;
      row.item.remove();
      this.rows.delete(id);
    }
    let before = this.element.firstChild;
    for (const one of entries) {
      const row = this.rows.get(one.sessionId) ?? this.make(one.sessionId);
      this.show(row, one);
      if (row.item === before) before = before.nextSibling;
      else this.place(row.item, before);
    }
    say(this.empty, this.board.query ? "Nothing found." : "No sessions yet.");
    if (!entries.length) fill(this.element, this.empty);
    else this.empty.remove();
  }

  /** Move a row; the focus would be lost with the move. */
  place(item, before) {
    const focused = item.contains(document.activeElement) ? document.activeElement : null;
    this.element.insertBefore(item, before);
    focused?.focus();
  }

  make(id) {
    const row = {
      title: h("span.title"), words: h("span.words"), facts: h("span.facts"),
      when: h("span.when"), state: h("span.badge"), dot: h("span.dot", { "aria-hidden": true }),
    };
    row.link = h("a", { href: `#/s/${encodeURIComponent(id)}`, data: { session: id } }, h("span.line", null, row.dot, row.title, row.when),
      row.words, h("span.line", null, row.facts, row.state));
    row.item = h("li", null, row.link);
    this.rows.set(id, row);
    return row;
  }

  show(row, one) {
    const state = this.board.stateOf(one.sessionId);
    const unread = this.board.isUnread(one);
    say(row.title, one.title || one.sessionId);
    say(row.words, one.pendingApproval?.argumentsSummary ?? plainWords(one.lastWords ?? ""));
    say(row.facts, [money(one.costUsd), one.agentAlias, one.branch, tail(one.cwd)].filter(Boolean).join(" · "));
    say(row.when, ago(one.lastActivity));
    say(row.state, WORDS[state] || (unread ? "new" : one.closed ? "closed" : ""));
    row.state.hidden = !row.state.textContent;
    row.link.dataset.state = state;
    row.link.toggleAttribute("data-unread", unread);
    if (this.board.current === one.sessionId) row.link.setAttribute("aria-current", "page");
    else row.link.removeAttribute("aria-current");
  }
}
