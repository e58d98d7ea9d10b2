// A subset of Markdown. `blocks` and `spans` turn text into values; `render` builds elements from them. HTML and images stay text.

import { button, h, scrolls, toast } from "./dom.js";
import { paint } from "./highlight.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const RULE = /^\s{0,3}(?:-{3,}|\*{3,}|_{3,})\s*$/;
const TABLE_LINE = /^[\s|:-]*-[\s|:-]*$/;
const LONGEST_INLINE = 20000;
const MOST_NESTED = 6;

/** Cut text into blocks. Each has its kind and its source, by which an unchanged block is recognised. */
export function blocks(text) {
  const found = [];
  const lines = text.split("\n");
  let at = 0;
  const take = (kind, more) => {
    const from = at;
    at += 1;
    while (at < lines.length && more(lines[at])) at += 1;
    found.push({ kind, source: lines.slice(from, at).join("\n") });
  };
  const begins = (line, next) => FENCE.test(line) || HEADING.test(line) || ITEM.test(line) || QUOTE.test(line)
    || RULE.test(line) || isTable(line, next);
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const from = at;
      const closes = (one) => one.trim().startsWith(fence[1]) && !one.trim().slice(fence[1].length).trim();
      at += 1;
      while (at < lines.length && !closes(lines[at])) at += 1;
      found.push({ kind: "code", source: lines.slice(from, at).join("\n"), language: fence[2].toLowerCase() });
      at += 1;
    } else if (HEADING.test(line)) take("heading", () => false);
    else if (RULE.test(line)) take("rule", () => false);
    else if (isTable(line, lines[at + 1])) take("table", (one) => one.includes("|"));
    else if (ITEM.test(line)) take("list", (one) => one.trim() && !RULE.test(one) && (ITEM.test(one) || /^\s/.test(one)));
    else if (QUOTE.test(line)) take("quote", (one) => QUOTE.test(one));
    else take("text", (one) => one.trim() && !begins(one, lines[at + 1]));
  }
  return found;
}

function isTable(line, next) {
  return line.includes("|") && next !== undefined && next.includes("|") && TABLE_LINE.test(next);
}

/** Cut a line of a table into its cells. */
export function cells(line) {
  const found = [];
  let cell = "";
  const inner = line.trim().replace(/^\|/, "");
  for (let at = 0; at < inner.length; at += 1) {
    if (inner[at] === "\\" && inner[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (inner[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else cell += inner[at];
  }
  if (cell.trim() || !found.length) found.push(cell.trim());
  return found;
}

/** Cut a text into spans: {kind: text, code, strong, em, strike or link}. Linear in its length, whatever it contains. */
export function spans(text, depth = 0) {
  if (text.length > LONGEST_INLINE || depth > MOST_NESTED) return [{ kind: "text", text }];
  const found = [];
  const missing = new Set(); // Marks without a closing one after here.
  let plain = "";
  const closing = (mark, from) => {
    if (missing.has(mark)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) missing.add(mark);
    return at;
  };
  const push = (span) => {
    if (plain) found.push({ kind: "text", text: plain });
    plain = "";
    found.push(span);
  };
  let at = 0;
  while (at < text.length) {
    const one = text[at];
    const span = one === "`" ? code(text, at, closing)
      : one === "*" || one === "_" || one === "~" ? emphasis(text, at, closing, depth)
        : one === "[" ? bracket(text, at, closing)
          : one === "h" ? bare(text, at) : null;
    if (one === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (span) {
      push(span.value);
      at = span.end;
    } else {
      let end = at + 1;
      if (one === "`" || one === "*" || one === "_" || one === "~") while (text[end] === one) end += 1;
      plain += text.slice(at, end);
      at = end;
    }
  }
  if (plain) found.push({ kind: "text", text: plain });
  return found;
}

function code(text, at, closing) {
  let open = at;
  while (text[open] === "`") open += 1;
  const mark = text.slice(at, open);
  let end = closing(mark, open);
  while (end >= 0 && (text[end - 1] === "`" || text[end + mark.length] === "`")) {
    while (text[end] === "`") end += 1;
    end = closing(mark, end);
  }
  if (end < 0) return null;
  const inside = text.slice(open, end);
  const trimmed = /^ .*\S.* $/s.test(inside) ? inside.slice(1, -1) : inside;
  return { value: { kind: "code", text: trimmed }, end: end + mark.length };
}

function emphasis(text, at, closing, depth) {
  const one = text[at];
  const mark = text[at + 1] === one ? one + one : one;
  if (one === "~" && mark.length === 1) return null;
  const from = at + mark.length;
  if (!text[from] || /\s/.test(text[from]) || text[from] === one) return null;
  if (one === "_" && /\w/.test(text[at - 1] ?? "")) return null;
  let end = closing(mark, from);
  for (let tries = 0; end >= 0 && tries < 8; tries += 1) {
    if (mark.length === 2 && text[end + 2] === one && text[end + 3] !== one) end += 1; // The inner mark closes first.
    const isWord = one === "_" && /\w/.test(text[end + mark.length] ?? "");
    if (end > from && !/\s/.test(text[end - 1]) && !isWord && (mark.length === 2 || text[end + 1] !== one)) {
      const kind = one === "~" ? "strike" : mark.length === 2 ? "strong" : "em";
      return { value: { kind, children: spans(text.slice(from, end), depth + 1) }, end: end + mark.length };
    }
    let after = end + mark.length;
    while (text[after] === one) after += 1;
    end = closing(mark, after);
  }
  return null;
}

function bracket(text, at, closing) {
  const end = closing("](", at);
  if (end < 0 || end - at > 500 || end === at + 1) return null;
  const close = closing(")", end + 2);
  if (close < 0 || close - end > 2000) return null;
  const label = text.slice(at + 1, end);
  const address = text.slice(end + 2, close).trim().split(/\s/)[0];
  const href = webAddress(address);
  if (!href || label.includes("[")) return null;
  return { value: { kind: "link", text: label, href }, end: close + 1 };
}

const BARE = /https?:\/\/[^\s<>()"'`]{1,2000}/y;

function bare(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return null;
  BARE.lastIndex = at;
  const found = BARE.exec(text)?.[0].replace(/[.,;:!?*_]+$/, "");
  const href = found && webAddress(found);
  return href ? { value: { kind: "link", text: found, href }, end: at + found.length } : null;
}

/** The address of a page on the web; null for any other scheme. */
export function webAddress(address) {
  try {
    const url = new URL(address);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

/** Show text in an element; blocks that are as before keep their elements. */
export function render(element, text) {
  const now = blocks(text);
  const before = element.markdown ?? [];
  let same = 0;
  while (same < now.length && same < before.length && now[same].source === before[same].source
    && now[same].kind === before[same].kind) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  for (const block of now.slice(same)) element.append(node(block));
  element.markdown = now;
}

function node({ kind, source, language }) {
  const lines = source.split("\n");
  if (kind === "code") return codeBlock(lines.slice(1).join("\n"), language);
  if (kind === "rule") return h("hr");
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    return h(`h${Math.min(6, marks.length + 2)}`, null, ...inline(text.replace(/\s+#+\s*$/, "")));
  }
  if (kind === "list") return list(lines);
  if (kind === "table") return table(lines);
  if (kind === "quote") return h("blockquote", null, ...inline(lines.map((one) => QUOTE.exec(one)[1]).join("\n")));
  return h("p", null, ...inline(source));
}

/** Code with its language and a button that copies it. */
export function codeBlock(text, language = "") {
  const copy = button("Copy", () => navigator.clipboard?.writeText(text).then(() => toast("Copied.")), { kind: "quiet", picture: "copy" });
  const body = h("pre", scrolls(language ? `Code in ${language}` : "Code"), paint(h("code"), text, language));
  return h("div.code", null, h("div.bar", null, h("span", null, language), copy), body);
}

function table(lines) {
  const [head, , ...rows] = lines.map(cells);
  const row = (name, some) => h("tr", null, ...head.map((_, at) => h(name, null, ...inline(some[at] ?? ""))));
  return h("div.wide", scrolls("Table"), h("table", null, h("thead", null, row("th", head)),
    h("tbody", null, ...rows.slice(0, 500).map((some) => row("td", some)))));
}

function list(lines) {
  const first = ITEM.exec(lines[0]);
  const top = h(/\d/.test(first[2]) ? "ol" : "ul");
  const stack = [{ indent: first[1].length, element: top }];
  for (const line of lines) {
    const item = ITEM.exec(line);
    const { element } = stack[stack.length - 1];
    if (!item) {
      element.lastChild?.append("\n", ...inline(line.trim()));
      continue;
    }
    const indent = item[1].length;
    while (stack.length > 1 && indent < stack[stack.length - 1].indent) stack.pop();
    if (indent > stack[stack.length - 1].indent + 1 && element.lastChild && stack.length < 8) {
      const inner = h(/\d/.test(item[2]) ? "ol" : "ul");
      element.lastChild.append(inner);
      stack.push({ indent, element: inner });
    }
    const task = /^\[([ xX])\]\s+(.*)$/.exec(item[3]);
    const box = task && h("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "open" : "done" });
    stack[stack.length - 1].element.append(h("li", { class: task ? "task" : "" }, box, ...inline(task ? task[2] : item[3])));
  }
  return top;
}

const TAGS = { strong: "strong", em: "em", strike: "s" };

function inline(text) {
  return spans(text).map(span);
}

function span({ kind, text, href, children }) {
  if (kind === "text") return text;
  if (kind === "code") return h("code", null, text);
  if (kind === "link") return link(text, href);
  return h(TAGS[kind], null, ...children.map(span));
}

/** A link to the web. It shows its host, so that its text cannot deceive. */
export function link(text, href) {
  const shown = webAddress(text) === href ? text : `${text} (${new URL(href).host})`;
  return h("a", { href, rel: "noopener noreferrer nofollow", target: "_blank", title: href }, shown);
}
