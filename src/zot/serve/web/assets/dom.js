// Elements built from strings as text, never as markup.

const PROPERTIES = new Set(["value", "disabled", "hidden", "open", "checked", "tabIndex", "type", "name", "id", "rows",
  "placeholder", "autocomplete", "required", "spellcheck", "htmlFor", "href", "rel", "target", "title", "dateTime"]);

/** Create an element. Keys of `given`: `class`, `on` (handlers by event), `data`, `aria-…`, `role`, and properties. */
export function h(tag, given, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(given ?? {})) {
    if (value === undefined || value === null) continue;
    if (key === "class") element.className = value;
    else if (key === "on") for (const [name, handler] of Object.entries(value)) element.addEventListener(name, handler);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "role" || key.startsWith("aria-")) element.setAttribute(key, String(value));
    else if (PROPERTIES.has(key)) element[key] = value;
    else throw new Error(`h does not set ${key}`);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Everything that cannot be seen, or told from a space: controls, directions, characters without width or ink.
const UNSEEN = /[^\S \n]|[\p{C}\p{Default_Ignorable_Code_Point}\u2800]/gu;

/** Text in which everything can be seen, for questions: what a person approves is what runs. Line feeds stay. */
export function visible(text) {
  return text.replace(UNSEEN, (one) => one === "\n" ? one : `\\u{${one.codePointAt(0).toString(16)}}`);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** Set text only if it differs, so that screen readers do not repeat it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An amount of dollars for people. */
export function money(usd) {
  if (usd === null || usd === undefined) return "";
  return usd && usd < 0.01 ? `$${usd.toFixed(4)}` : `$${usd.toFixed(2)}`;
}

/** A time relative to now, for people. */
export function ago(time) {
  const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}
