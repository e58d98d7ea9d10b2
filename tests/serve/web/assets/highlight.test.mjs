import assert from "node:assert/strict";
import test from "node:test";
import { languageOf, tokens } from "./highlight.js";

const of = (kind, text, language) => tokens(text, language).filter(([one]) => one === kind).map(([, piece]) => piece);

test("words, strings, numbers, comments and names have kinds", () => {
  const code = 'def go(x):  # why\n    return "a # b" + f(0x1F)\n';
  assert.deepEqual(of("word", code, "python"), ["def", "return"]);
  assert.deepEqual(of("string", code, "python"), ['"a # b"']);
  assert.deepEqual(of("comment", code, "python"), ["# why"]);
  assert.deepEqual(of("number", code, "python"), ["0x1F"]);
  assert.deepEqual(of("name", code, "python"), ["go", "f"]);
  assert.deepEqual(of("comment", "a // b\n/* c\nd */ e", "js"), ["// b", "/* c\nd */"]);
  assert.deepEqual(of("name", "echo --all $HOME", "bash"), ["--all", "$HOME"]);
  assert.deepEqual(of("word", "SELECT a FROM b", "sql"), ["SELECT", "FROM"]);
  for (const odd of ["constructor", "__proto__"]) assert.deepEqual([tokens("a", odd), languageOf(odd)], [[[null, "a"]], undefined]);
  assert.deepEqual(of("added", "+a\n-b\n c", "diff"), ["+a\n"]);
});

test("pieces joined are the code, for every language and whatever it contains", () => {
  const odd = "'\"`\\ /* # -- <!-- \n\t\u2028 ${a `b` } \"\"\" 'x\n// 0x 1e5 @@ é 😀";
  for (const language of ["js", "py", "sh", "ruby", "sql", "json", "css", "html", "diff", "none", ""]) {
    assert.equal(tokens(odd, language).map(([, piece]) => piece).join(""), odd);
  }
});

test("nothing takes long", () => {
  const started = performance.now();
  for (const language of ["js", "py", "sh", "ruby", "sql", "json", "css", "html", "diff"]) {
    for (const piece of ["/*", '"', "'", "`", "#", "<!--", "\\", "${", "a(", "--", "1e", '"""']) tokens(piece.repeat(40000 / piece.length), language);
  }
  assert.ok(performance.now() - started < 15000);
});

test("files have the language of their ending", () => {
  assert.deepEqual(["a/b.py", "Makefile", "x.tar.TS", "none", "a.xyz"].map(languageOf), ["py", "makefile", "ts", undefined, undefined]);
});
