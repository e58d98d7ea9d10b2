// Elements, icons and texts for people. Text from elsewhere only ever becomes text: nothing here takes markup.

const PROPERTIES = new Set([
  "href", "rel", "target", "title", "tabIndex", "type", "value", "placeholder", "rows", "hidden", "open", "id", "htmlFor",
  "disabled", "required", "autocomplete", "spellcheck", "dateTime", "name", "checked", "max", "min", "multiple", "src", "alt",
  "accept", "enterKeyHint", "step", "minLength", "maxLength",
]);
const SVG = "http://www.w3.org/2000/svg";

/** Make an element, such as "p.facts". `class`, `data`, `on`, `role` and `aria-*` are set as such; everything else must be a listed property. */
export function h(name, properties, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null) continue;
    if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (key === "role" || key === "list" || key.startsWith("aria-")) element.setAttribute(key, String(value));
    else if (PROPERTIES.has(key)) element[key] = value;
    else throw new Error(`h does not set ${key}`);
  }
  element.append(...present(children));
  return element;
}

/** Make an element of an SVG drawing. Attributes are numbers and words of our own. */
export function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (!/^(class|viewBox|x|y|x1|x2|y1|y2|cx|cy|r|rx|d|width|height|role|preserveAspectRatio|aria-[a-z]+)$/.test(key)) {
      throw new Error(`svg does not set ${key}`);
    }
    element.setAttribute(key, String(value));
  }
  element.append(...present(children));
  return element;
}

/** A list with a bar for each share of a whole, from 0 to 1. */
export function shares(rows) {
  const bar = (kind, width) => svg("rect", { class: kind, x: 0, y: 0, width, height: 4 });
  return h("ul.bars", null, ...rows.map(({ name, value, share, facts }) => h("li", null, h("span.name", null, name), h("span.value", null, value),
    svg("svg", { viewBox: "0 0 100 4", preserveAspectRatio: "none", class: "share", "aria-hidden": true }, bar("bar none", 100), bar("bar", (share && Math.max(1, share * 100)).toFixed(1))),
    facts ? h("span.facts", null, facts) : null)));
}

const ICONS = {
  back: "M15 5l-7 7 7 7", send: "M5 12h13M12 5l7 7-7 7", more: "M5 12h.01M12 12h.01M19 12h.01",
  clip: "M18 9l-8 8a3 3 0 0 1-4-4l8-8a4.5 4.5 0 0 1 6.5 6.5l-8 8", close: "M6 6l12 12M18 6L6 18", copy: "M9 9h10v11H9zM15 9V4H5v11h4", down: "M6 9l6 6 6-6",
  sessions: "M4 6h16M4 12h16M4 18h10", overview: "M5 20V11M12 20V4M19 20v-6", inbox: "M4 13l3-8h10l3 8v6H4zM4 13h5l1 3h4l1-3h5", new: "M12 5v14M5 12h14", settings: "M4 8h8M18 8h2M4 16h2M12 16h8M15 5v6M9 13v6",
};

/** A small drawing that says nothing to screen readers: its button has a name. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": true }, svg("path", { d: ICONS[name] }));
}

/** A button. With an icon, `text` is its name for screen readers and its tooltip. */
export function button(text, act, { kind = "", picture = null, key = null, hidden = false } = {}) {
  const about = picture ? { "aria-label": text, title: text } : {};
  return h("button", { type: "button", class: `${kind} ${picture ? "square" : ""}`.trim(), hidden, data: key ? { key } : {},
    on: { click: act }, ...about }, picture ? icon(picture) : text, key && !picture ? h("kbd", { "aria-hidden": true }, key) : null);
}

function present(children) {
  return children.filter((child) => child !== null && child !== undefined && child !== false);
}

// Everything that cannot be seen, or told from a space: controls, directions, characters without width or ink.
const UNSEEN = /[^\S \n]|[\p{C}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/** Text in which everything can be seen, for requests: what a person approves is what runs. Line feeds stay, and `kept`. */
export function visible(text, kept = "") {
  return text.replace(UNSEEN, (one) => one === "\n" || one === kept ? one : `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

/** Set text only if it differs, so that screen readers do not repeat it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Tell screen readers something that happened elsewhere on the page. */
export function announce(text) {
  const region = document.getElementById("announcer");
  if (region) region.textContent = text;
}

/** Show a note for a while, with at most one action. It stays while it has the focus or the pointer. */
export function toast(text, { kind = "", act = null, label = "" } = {}) {
  const place = document.getElementById("toasts");
  const note = h("div", { class: `toast ${kind}`, role: kind === "error" ? "alert" : "status" }, h("span", null, text),
    act ? button(label, () => { note.remove(); act(); }, { kind: "quiet" }) : null,
    button("Dismiss", () => note.remove(), { kind: "quiet", picture: "close" }));
  place.append(note);
  while (place.children.length > 4) place.firstChild.remove();
  const leave = () => (note.matches(":hover, :focus-within") ? setTimeout(leave, 2000) : note.remove());
  setTimeout(leave, act ? 12000 : 6000);
}

/** Open a dialog; resolves with what `close` was called with, undefined if it was dismissed. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const box = h("dialog", { "aria-label": title });
    let outcome;
    const close = (value) => {
      outcome = value;
      box.close();
    };
    box.append(h("header", null, h("h2", null, title), button("Close", () => close(), { kind: "quiet", picture: "close" })));
    box.append(...present([build(close)].flat()));
    box.addEventListener("close", () => {
      box.remove();
      resolve(outcome);
    });
    box.addEventListener("click", (press) => press.target === box && close());
    document.body.append(box);
    box.showModal();
    box.querySelector("[type=text]")?.select();
  });
}

export function confirmed(title, text, label) {
  return dialog(title, (close) => [h("p", null, text), h("p.buttons", null,
    button(label, () => close(true), { kind: "bad" }), button("Cancel", () => close(false)))]);
}

/** A number of things for people. */
export function count(number, name) {
  return `${number} ${name}${number === 1 ? "" : "s"}`;
}

/** What makes an element that scrolls reachable by keyboard. */
export function scrolls(label) {
  return { tabIndex: 0, role: "group", "aria-label": label };
}

/** An amount of dollars for people. */
export function money(usd) {
  if (usd === null || usd === undefined) return "";
  return usd && usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

/** A number of tokens or bytes for people. */
export function short(number) {
  if (number < 1000) return String(number);
  if (number < 1e6) return `${(number / 1000).toFixed(number < 1e4 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(number < 1e7 ? 1 : 0)}M`;
}

/** A time relative to now, for people. */
export function ago(time, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(time)) / 1000);
  return Number.isFinite(seconds) ? (seconds < 60 ? "now" : span(seconds)) : "";
}

/** A time of some seconds, for people. */
export function span(seconds) {
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

/** The last parts of a path, for people. */
export function tail(path, parts = 2) {
  const all = path.split("/").filter(Boolean);
  return all.length > parts ? `…/${all.slice(-parts).join("/")}` : path;
}
