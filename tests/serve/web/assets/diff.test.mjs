import assert from "node:assert/strict";
import test from "node:test";
import { diff, unified } from "./diff.js";

const text = (rows) => rows.map(({ kind, text: line }) => kind + line);

test("changed lines stand between a few equal ones", () => {
  const before = Array.from({ length: 20 }, (_, at) => `line ${at}`);
  const after = [...before.slice(0, 10), "new", ...before.slice(11)];
  assert.deepEqual(text(diff(before.join("\n"), after.join("\n"))), [
    "…7 equal lines", " line 7", " line 8", " line 9", "-line 10", "+new", " line 11", " line 12", " line 13", "…6 equal lines"]);
  assert.deepEqual(text(diff("", "a\nb\n")), ["+a", "+b"]);
  assert.deepEqual(text(diff("a", "")), ["-a"]);
  assert.deepEqual(diff("same", "same").map(({ kind }) => kind), ["…"]);
});

test("the rows give both texts back", () => {
  let seed = 7;
  const random = (below) => (seed = (seed * 1103515245 + 12345) % 2147483648) % below;
  for (let round = 0; round < 200; round += 1) {
    const make = () => Array.from({ length: random(6) + 1 }, () => "abc"[random(3)]);
    const [a, b] = [make(), make()];
    const rows = diff(a.join("\n"), b.join("\n"));
    if (rows.some(({ kind }) => kind === "…")) continue;
    const side = (kind) => rows.filter((row) => row.kind === " " || row.kind === kind).map((row) => row.text);
    assert.deepEqual([side("-"), side("+")], [a, b]);
  }
});

test("very different texts take no time", () => {
  const started = performance.now();
  const many = (word) => Array.from({ length: 20000 }, (_, at) => `${word}${at}`).join("\n");
  assert.equal(diff(many("a"), many("b")).length, 40000);
  assert.ok(performance.now() - started < 5000);
});

test("a unified diff has rows, and another text has none", () => {
  assert.deepEqual(text(unified("@@ -1,2 +1,2 @@\n a\n-b\n+c\n")), ["…@@ -1,2 +1,2 @@", " a", "-b", "+c"]);
  assert.equal(unified("done"), null);
});
