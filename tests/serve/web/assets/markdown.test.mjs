import assert from "node:assert/strict";
import test from "node:test";
import { blocks, cells, spans, webAddress } from "./markdown.js";

const kinds = (text) => blocks(text).map(({ kind }) => kind);
const flat = (some) => some.map((one) => (one.kind === "text" ? one.text : { [one.kind]: one.children ? flat(one.children) : one.text }));

test("text is cut into blocks", () => {
  assert.deepEqual(kinds("# One\n\ntext\nmore\n- a\n- b\n\n> said\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n---\n```py\nx\n```"),
    ["heading", "text", "list", "quote", "table", "rule", "code"]);
  assert.deepEqual(blocks("```js\nlet a;\n\n# no heading\n```\nafter").map(({ source }) => source), ["```js\nlet a;\n\n# no heading", "after"]);
});

test("a fence that is still open is code already, and stays the same block", () => {
  assert.equal(blocks("```py\nprint(1)")[0].kind, "code");
  assert.equal(blocks("```py\nprint(1)\n```\n")[0].source, "```py\nprint(1)");
});

test("blocks joined have every line that is not blank", () => {
  const text = "a\n  b\n* c\n  d\n\n1. e\n#f\n# g\n> h\n|\n";
  assert.deepEqual(blocks(text).flatMap(({ source }) => source.split("\n")).filter((line) => line.trim()), text.split("\n").filter((line) => line.trim()));
});

test("emphasis, code and links are spans, and what is none stays text", () => {
  assert.deepEqual(flat(spans("a **b *c*** `d*` ~~e~~ _f_ g_h_i 2 * 3 * 4")),
    ["a ", { strong: ["b ", { em: ["c"] }] }, " ", { code: "d*" }, " ", { strike: ["e"] }, " ", { em: ["f"] }, " g_h_i 2 * 3 * 4"]);
  assert.deepEqual(spans("[a](https://example.org/x) and https://example.org/y."), [
    { kind: "link", text: "a", href: "https://example.org/x" }, { kind: "text", text: " and " },
    { kind: "link", text: "https://example.org/y", href: "https://example.org/y" }, { kind: "text", text: "." }]);
  assert.deepEqual(flat(spans("\\*no\\* ``a`b`` `open")), ["*no* ", { code: "a`b" }, " `open"]);
});

test("only addresses of the web become links", () => {
  for (const address of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x", "//host", "blob:x", "x"]) {
    assert.equal(webAddress(address), null);
    assert.deepEqual(spans(`[a](${address})`).filter(({ kind }) => kind === "link"), []);
  }
});

test("nothing takes long, whatever a model writes", () => {
  const started = performance.now();
  for (const piece of ["*", "**a", "`", "[", "[a](", "_a ", "~~", "<", "\\", "a*b_c`", "| ", "- ", "> ", "https://", "![", "`a``b```"]) {
    const text = piece.repeat(19000 / piece.length);
    assert.equal(spans(text).length > 0, true);
    for (const { source } of blocks(piece.repeat(100000))) assert.equal(typeof source, "string");
    cells(text);
  }
  assert.ok(performance.now() - started < 10000);
});

test("cells keep an escaped bar", () => {
  assert.deepEqual(cells("| a | b\\|c |  |"), ["a", "b|c", ""]);
});
