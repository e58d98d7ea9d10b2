// Panels of extensions: lines of text that take keys while they have the focus, as in the terminal.

import { button, fill, h, say, toast } from "./dom.js";

const KEYS = "ArrowUp ArrowDown ArrowLeft ArrowRight Enter Escape PageUp PageDown Home End Backspace Delete".split(" ");

/** The protocol's name of a pressed key, {key, text}; null if a panel gets no such key. Tab leaves a panel, as everywhere. */
export function panelKey({ key, ctrlKey, metaKey, altKey }) {
  if (ctrlKey || metaKey || altKey) return null;
  if (KEYS.includes(key)) return { key: key.replace(/^Arrow|ape$/, "").toLowerCase() };
  return [...key].length === 1 ? { key: "rune", text: key } : null;
}

/** The open panels of one session. */
export class Panels {
  constructor(connection, sessionId) {
    this.connection = connection;
    this.sessionId = sessionId;
    this.element = h("div.panels");
    this.open = new Map();
  }

  /** Forget all: an attach sends the open panels again. */
  reset() {
    this.open.clear();
    fill(this.element);
  }

  take(event) {
    if (event.type === "panel_close") {
      const one = this.open.get(event.panel_id);
      const hadFocus = one?.element.contains(document.activeElement);
      one?.element.remove();
      this.open.delete(event.panel_id);
      if (hadFocus) document.getElementById("prompt")?.focus();
    } else if (event.type === "panel_open" || event.type === "panel_render") this.show(event);
  }

  show({ panel_id: id, extension, title, lines, footer = "" }) {
    const one = this.open.get(id) ?? this.make(id);
    one.element.setAttribute("aria-label", `${title || id}, panel of ${extension}`);
    say(one.title, title || id);
    say(one.owner, extension);
    say(one.lines, lines.join("\n"));
    say(one.footer, footer);
    one.footer.hidden = !footer;
  }

  make(id) {
    const one = { title: h("b"), owner: h("span.facts"), lines: h("pre"), footer: h("p.facts") };
    const close = button("Close the panel", () => this.call("session/panel_close", { panelId: id }), { kind: "quiet", picture: "close" });
    const may = this.connection.may("session/panel_key");
    close.hidden = !may;
    one.element = h("div.panel", { role: "group", tabIndex: 0, data: { panel: id }, on: { keydown: (press) => may && this.press(id, press) } },
      h("div.row", null, one.title, one.owner, close), one.lines, one.footer);
    this.open.set(id, one);
    this.element.append(one.element);
    return one;
  }

  press(id, press) {
    const key = press.target.closest("button") ? null : panelKey(press);
    if (!key) return;
    press.preventDefault();
    press.stopPropagation();
    this.call("session/panel_key", { panelId: id, ...key });
  }

  call(method, params) {
    this.connection.call(method, { sessionId: this.sessionId, ...params }).catch((problem) => toast(problem.message, { kind: "error" }));
  }

  /** Give a panel the keys, once it is open. */
  focus(id) {
    this.open.get(id)?.element.focus();
  }
}
