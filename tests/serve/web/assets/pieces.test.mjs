import assert from "node:assert/strict";
import test from "node:test";
import { mention, unfinished } from "./composer.js";
import { ago, money, short, tail, visible } from "./dom.js";
import { plainWords } from "./list.js";
import { daysUpTo, metricOf } from "./overview.js";
import { panelKey } from "./panels.js";
import { about, cut } from "./tools.js";

test("numbers, times and paths are for people", () => {
  assert.deepEqual([money(1.239), money(0.00123), money(0), money(null)], ["$1.24", "$0.0012", "$0.00", ""]);
  assert.deepEqual([short(999), short(1500), short(25000), short(3_200_000)], ["999", "1.5k", "25k", "3.2M"]);
  const now = Date.parse("2026-01-02T00:00:00Z");
  assert.deepEqual(["2026-01-01T23:59:30Z", "2026-01-01T23:00:00Z", "2026-01-01T20:00:00Z", "2025-12-30T00:00:00Z", "x"].map((time) => ago(time, now)),
    ["now", "1 h", "4 h", "3 d", ""]);
  assert.deepEqual([tail("/a/b/c"), tail("/a"), tail("")], ["…/b/c", "/a", ""]);
  assert.equal(plainWords("## Done `x` is **good** | now"), "Done x is good now");
});

test("what cannot be seen is shown", () => {
  assert.equal(visible("a\u200bb\u202e\tc\n"), "a\\u{200b}b\\u{202e}\\u{9}c\n");
  assert.equal(visible("\ta", "\t"), "\ta");
});

test("the word before the cursor is completed", () => {
  assert.deepEqual(unfinished("/mo", 3), { word: "mo", from: 0, kind: "command" });
  assert.deepEqual(unfinished("see @src/a", 10), { word: "src/a", from: 4, kind: "file" });
  assert.deepEqual(unfinished('see @"my fi', 11), { word: "my fi", from: 4, kind: "file" });
  assert.equal(unfinished("a@b", 3), null);
  assert.equal(unfinished("say /mo", 7), null);
  assert.deepEqual([mention("a.py"), mention("my file"), mention('a "b')], ["@a.py", '@"my file"', '@"a \\"b"']);
});

test("keys have the names of the panel protocol", () => {
  assert.deepEqual(panelKey({ key: "ArrowUp" }), { key: "up" });
  assert.deepEqual(panelKey({ key: "é" }), { key: "rune", text: "é" });
  assert.equal(panelKey({ key: "Tab" }), null);
  assert.equal(panelKey({ key: "c", ctrlKey: true }), null);
});

test("spending is charted by day, in money if there is any", () => {
  assert.deepEqual(daysUpTo(Date.parse("2026-03-01T12:00:00Z"), 3), ["2026-02-27", "2026-02-28", "2026-03-01"]);
  assert.equal(metricOf({ sessionCostUsd: 0 }).of({ totalTokens: 5, costUsd: 0 }), 5);
  assert.equal(metricOf({ sessionCostUsd: 1 }).of({ totalTokens: 5, costUsd: 0.5 }), 0.5);
});

test("a call is summed up in a line, and a long text is cut", () => {
  assert.equal(about({ command: "a\nb" }), "a");
  assert.equal(about({ path: "x".repeat(200) }).length, 120);
  assert.equal(about(null), "");
  assert.match(cut("x".repeat(100001)), /… 1 more characters$/);
});
