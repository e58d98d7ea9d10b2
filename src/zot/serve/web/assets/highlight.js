// Code with colours: a few kinds of tokens, found by one pass of a regular expression for each family of languages.

const LONGEST = 40000;
const words = (text) => text.split(" ");

const C_WORDS = words("abstract as async await bool boolean break byte case catch char class const constexpr continue "
  + "crate debugger default defer delete do double else enum export extends extern false final finally float fn for from "
  + "func function get go goto if impl implements import in instanceof int interface let long loop map match mod module mut "
  + "namespace new nil null nullptr of override package private protected pub public range readonly return self set short "
  + "signed sizeof static string struct super switch template this throw throws trait true try type typeof undefined union "
  + "unsafe unsigned use using val var virtual void volatile when where while with yield");
const PY_WORDS = words("False None True and as assert async await break case class continue def del elif else except finally "
  + "for from global if import in is lambda match nonlocal not or pass raise return self try while with yield");
const SH_WORDS = words("case do done elif else esac exit export fi for function if in local read return set shift source then "
  + "unset until while cd echo");
const RUBY_WORDS = words("alias and begin break case class def do else elsif end ensure false for if in module next nil not or "
  + "redo rescue retry return self super then true unless until when while yield");
const SQL_WORDS = words("add all alter and as asc begin between by case commit constraint create cross default delete desc "
  + "distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit "
  + "not null offset on or order outer primary references right rollback select set table then union unique update using "
  + "values view when where with");

const DOUBLE = String.raw`"(?:\\[\s\S]|[^"\\\n])*"?`;
const SINGLE = String.raw`'(?:\\[\s\S]|[^'\\\n])*'?`;
const TICK = "`(?:\\\\[\\s\\S]|[^`\\\\])*`?";
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*\b`;
const C_COMMENT = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![^]))`;
const NAME = String.raw`[A-Za-z_$][\w$]*`;

/** Families: [comment, string, other] patterns, keywords, and whether case counts. */
const FAMILIES = {
  c: [C_COMMENT, `${DOUBLE}|${SINGLE}|${TICK}`, C_WORDS],
  python: ["#[^\\n]*", `"""[\\s\\S]*?(?:"""|(?![^]))|'''[\\s\\S]*?(?:'''|(?![^]))|${DOUBLE}|${SINGLE}`, PY_WORDS],
  shell: ["(?<![^\\s;(])#[^\\n]*", `"(?:\\\\[\\s\\S]|[^"\\\\])*"?|'[^']*'?`, SH_WORDS],
  ruby: ["#[^\\n]*", `${DOUBLE}|${SINGLE}`, RUBY_WORDS],
  sql: [String.raw`--[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![^]))`, `${SINGLE}|${DOUBLE}`, SQL_WORDS, "i"],
  data: ["#[^\\n]*", `${DOUBLE}|${SINGLE}`, words("true false null yes no on off")],
  css: [String.raw`\/\*[\s\S]*?(?:\*\/|(?![^]))`, `${DOUBLE}|${SINGLE}`, words("important media supports keyframes from to")],
  markup: ["<!--[\\s\\S]*?(?:-->|(?![^]))", `${DOUBLE}|${SINGLE}`, []],
};
const LANGUAGES = new Map(Object.entries({
  c: "js javascript jsx mjs ts typescript tsx java c h cpp c++ cc hpp cs csharp go rust rs swift kotlin kt php scala dart zig proto",
  python: "python py", shell: "sh bash zsh shell console dockerfile makefile", ruby: "ruby rb lua", sql: "sql", data: "json jsonc yaml yml toml ini",
  css: "css scss", markup: "html xml svg", diff: "diff patch",
}).flatMap(([family, names]) => words(names).map((name) => [name, family])));
const compiled = new Map();

function family(name) {
  if (!compiled.has(name)) {
    const [comment, string, keywords, flags = ""] = FAMILIES[name];
    const word = keywords.length ? `\\b(?:${keywords.join("|")})\\b(?!\\s*:)` : "(?!)";
    const tag = name === "markup" ? String.raw`<\/?[\w:-]+|\/?>` : name === "data" ? String.raw`^[ \t]{0,80}(?:- )?[\w."-]{1,80}(?=\s{0,9}[:=])` : name === "shell"
      ? String.raw`\$(?:\w+|\{[^}\n]{0,200}\})|(?<=\s)--?[\w-]+` : `${NAME}(?=\\()`;
    compiled.set(name, new RegExp(`(${comment})|(${string})|(${word})|(${NUMBER})|(${tag})`, `gm${flags}`));
  }
  return compiled.get(name);
}

const KINDS = [null, "comment", "string", "word", "number", "name"];

/** Return the family of a language, or of a file by its name; undefined if it has no colours. */
export function languageOf(name) {
  const base = name.toLowerCase().split("/").pop();
  return [base, base.split(".").pop()].find((one) => LANGUAGES.has(one));
}

/** Cut code into [kind, text] pieces, which joined are the code. Kind is null for what has no colour. */
export function tokens(text, language) {
  const name = LANGUAGES.get(language?.toLowerCase());
  if (!name || text.length > LONGEST) return [[null, text]];
  if (name === "diff") return diffTokens(text);
  const found = [];
  let from = 0;
  for (const match of text.matchAll(family(name))) {
    if (!match[0]) continue;
    if (match.index > from) found.push([null, text.slice(from, match.index)]);
    found.push([KINDS[match.findIndex((group, at) => at > 0 && group !== undefined)], match[0]]);
    from = match.index + match[0].length;
  }
  if (from < text.length) found.push([null, text.slice(from)]);
  return found;
}

function diffTokens(text) {
  return text.split(/(?<=\n)/).map((line) => [line[0] === "+" ? "added" : line[0] === "-" ? "removed" : line[0] === "@" ? "name" : null, line]);
}

/** Fill an element with code in colours; return it. */
export function paint(element, text, language) {
  element.replaceChildren(...tokens(text, language).map(([kind, piece]) => {
    if (!kind) return piece;
    const span = document.createElement("span");
    span.className = `t-${kind}`;
    span.textContent = piece;
    return span;
  }));
  return element;
}
