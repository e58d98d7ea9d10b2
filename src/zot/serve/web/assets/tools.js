// Tool calls for people: what a call does, and what came of it.

import { diff, unified } from "./diff.js";
import { h, scrolls, visible } from "./dom.js";
import { languageOf, paint } from "./highlight.js";

export const MOST_OUTPUT = 100000;
const MOST_ROWS = 2000;

/** Text of message blocks. Images and tool calls have elements of their own. */
export function textOf(content) {
  return content.map((one) => one.text ?? "").filter(Boolean).join("\n");
}

/** The most telling argument of a tool call, in one line. */
export function about(args) {
  const text = args?.command ?? args?.path ?? args?.name ?? args?.query ?? args?.url ?? "";
  const line = String(text).split("\n")[0];
  return line.length > 120 ? `${line.slice(0, 119)}…` : line;
}

/** Shorten a text that would make the page slow. */
export function cut(text) {
  return text.length > MOST_OUTPUT ? `${text.slice(0, MOST_OUTPUT)}\n… ${text.length - MOST_OUTPUT} more characters` : text;
}

/** A text as it is, in a box that scrolls. */
export function plain(text, name, label) {
  return h("pre", { class: name, ...scrolls(label) }, cut(text));
}

/** Rows of a diff. */
export function diffBox(rows, label) {
  const shown = rows.slice(0, MOST_ROWS).map(({ kind, text }) => h("div", { class: { "+": "add", "-": "del", "…": "gap" }[kind] ?? "" },
    kind === "…" ? text : `${kind} ${text}`));
  if (rows.length > MOST_ROWS) shown.push(h("div.gap", null, `${rows.length - MOST_ROWS} more lines`));
  return h("div.diff", scrolls(label), ...shown);
}

/** What a call would do, in full: its command, its changes to a file, or its arguments. */
export function described(name, args) {
  if (args === null || args === undefined) return [plain("The arguments are not a JSON object.", "input", "Arguments")];
  if (name === "bash" && typeof args.command === "string") {
    const rest = others(args, "command");
    return [paint(plain("", "input command", "Command"), cut(visible(args.command)), "sh"), ...rest];
  }
  if (name === "edit" && Array.isArray(args.edits)) {
    const rows = args.edits.flatMap((one, at) => [...(at ? [{ kind: "…", text: "" }] : []), ...diff(shown(one?.oldText), shown(one?.newText))]);
    return [h("p.path", null, visible(String(args.path))), diffBox(rows, `Changes to ${args.path}`), ...others(args, "path", "edits")];
  }
  if (name === "write" && typeof args.content === "string") {
    return [h("p.path", null, visible(String(args.path))), diffBox(diff("", cut(shown(args.content))), `New content of ${args.path}`), ...others(args, "path", "content")];
  }
  return Object.keys(args).length ? [paint(plain("", "input", "Arguments"), cut(visible(JSON.stringify(args, null, 2))), "json")] : [];
}

/** Content of a file: its tabs are indentation. */
function shown(text) {
  return visible(String(text ?? ""), "\t");
}

function others(args, ...known) {
  const rest = Object.fromEntries(Object.entries(args).filter(([key]) => !known.includes(key)));
  return Object.keys(rest).length ? [plain(visible(JSON.stringify(rest, null, 2)), "input", "Further arguments")] : [];
}

/** Fill the box of a call's output with its result. */
export function showResult(box, name, args, text, failed) {
  const rows = name === "edit" && !failed ? unified(text) : null;
  if (rows) {
    box.replaceChildren(...diffBox(rows, "").childNodes);
    box.classList.add("diff");
  } else if (name === "read" && !failed && typeof args?.path === "string") paint(box, cut(text), languageOf(args.path));
  else box.textContent = cut(text);
}
