// A subset of Markdown, built as DOM nodes: fences, headings, lists, quotes, paragraphs; code, emphasis, web links.
// Everything else, also HTML and images, stays text.

import { h } from "./dom.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;

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
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const from = at;
      const closes = (one) => one.trim().startsWith(fence[1]) && !one.trim().slice(fence[1].length).trim();
      at += 1;
      while (at < lines.length && !closes(lines[at])) at += 1;
      found.push({ kind: "code", source: lines.slice(from, at).join("\n"), closed: at < lines.length });
      at += 1;
    } else if (HEADING.test(line)) take("heading", () => false);
    else if (ITEM.test(line)) take("list", (one) => one.trim() && (ITEM.test(one) || /^\s/.test(one)));
    else if (QUOTE.test(line)) take("quote", (one) => QUOTE.test(one));
    else take("text", (one) => one.trim() && !FENCE.test(one) && !HEADING.test(one) && !ITEM.test(one) && !QUOTE.test(one));
  }
  return found;
}

/** Show text in an element; blocks that are as before keep their nodes. */
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

function node({ kind, source }) {
  const lines = source.split("\n");
  if (kind === "code") return h("pre", { tabIndex: 0 }, h("code", null, lines.slice(1).join("\n")));
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    return h(`h${Math.min(6, marks.length + 2)}`, null, ...inline(text));
  }
  if (kind === "list") return list(lines);
  if (kind === "quote") return h("blockquote", null, ...inline(lines.map((one) => QUOTE.exec(one)[1]).join("\n")));
  return h("p", null, ...inline(source));
}

function list(lines) {
  const first = ITEM.exec(lines[0]);
  const top = h(/\d/.test(first[2]) ? "ol" : "ul", null);
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
      const inner = h(/\d/.test(item[2]) ? "ol" : "ul", null);
      element.lastChild.append(inner);
      stack.push({ indent, element: inner });
    }
    stack[stack.length - 1].element.append(h("li", null, ...inline(item[3])));
  }
  return top;
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^*\s](?:[^*]*[^*\s])?)\*\*|\*([^*\s](?:[^*]*[^*\s])?)\*|\[([^\]\[]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()"'`]+[^\s<>()"'`.,;:!?])/g;

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[2] !== undefined) nodes.push(h("code", null, found[2]));
    else if (found[3] !== undefined) nodes.push(h("strong", null, found[3]));
    else if (found[4] !== undefined) nodes.push(h("em", null, found[4]));
    else nodes.push(link(found[5] ?? found[7], found[6] ?? found[7], found[0]));
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** A link to the web. Its address is shown in full, so that its text cannot deceive; any other scheme stays text. */
function link(text, address, source) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return source;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return source;
  const shown = text === address ? text : `${text} (${url.host})`;
  return h("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", title: url.href }, shown);
}
