// Differences between two texts, line by line.

import { count } from "./dom.js";

const MOST_CELLS = 250000;
const AROUND = 3;

/** Return rows {kind: " ", "+", "-" or "…", text} that turn `before` into `after`; equal parts far from a change are only counted. */
export function diff(before, after) {
  const a = lines(before);
  const b = lines(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let end = 0;
  while (end < a.length - head && end < b.length - head && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const rows = [
    ...a.slice(0, head).map((text) => ({ kind: " ", text })),
    ...middle(a.slice(head, a.length - end), b.slice(head, b.length - end)),
    ...a.slice(a.length - end).map((text) => ({ kind: " ", text })),
  ];
  return trimmed(rows);
}

function lines(text) {
  if (!text) return [];
  const all = text.split("\n");
  if (all[all.length - 1] === "") all.pop();
  return all;
}

/** The longest common subsequence by dynamic programming; without it if that would take long. */
function middle(a, b) {
  const gone = (some) => some.map((text) => ({ kind: "-", text }));
  const come = (some) => some.map((text) => ({ kind: "+", text }));
  if (!a.length || !b.length || a.length * b.length > MOST_CELLS) return [...gone(a), ...come(b)];
  const width = b.length + 1;
  const best = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1
        : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  const rows = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      rows.push({ kind: " ", text: a[i] });
      i += 1;
      j += 1;
    } else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) {
      rows.push({ kind: "-", text: a[i] });
      i += 1;
    } else {
      rows.push({ kind: "+", text: b[j] });
      j += 1;
    }
  }
  return [...rows, ...gone(a.slice(i)), ...come(b.slice(j))];
}

function trimmed(rows) {
  const near = new Uint8Array(rows.length);
  rows.forEach(({ kind }, at) => {
    if (kind !== " ") near.fill(1, Math.max(0, at - AROUND), at + AROUND + 1);
  });
  const found = [];
  let skipped = 0;
  const leave = () => {
    if (skipped) found.push({ kind: "…", text: count(skipped, "equal line") });
    skipped = 0;
  };
  rows.forEach((row, at) => {
    if (near[at]) {
      leave();
      found.push(row);
    } else skipped += 1;
  });
  leave();
  return found;
}

/** Return the rows of a unified diff; null if a text is none. */
export function unified(text) {
  const all = text.split("\n");
  if (!all.some((line) => line.startsWith("@@ "))) return null;
  return all.filter((line, at) => line || at < all.length - 1).map((line) => {
    if (/^(?:@@ |--- |\+\+\+ )/.test(line)) return { kind: "…", text: line };
    if (line[0] === "+" || line[0] === "-" || line[0] === " ") return { kind: line[0], text: line.slice(1) };
    return { kind: "…", text: line };
  });
}
