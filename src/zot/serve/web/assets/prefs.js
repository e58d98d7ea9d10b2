// Choices of the person at this browser, kept by it: never a token, a code or a text of a session.

const KEY = "zot";
const MOST = 500;

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

const kept = { notify: false, theme: "", seen: {}, ...load() };

function save() {
  try {
    localStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // A browser that keeps nothing forgets with the page.
  }
}

export const prefs = {
  /** Whether to notify when something waits or ends. */
  get notify() { return kept.notify; },
  set notify(value) { kept.notify = value; save(); },

  /** `light`, `dark`, or "" for that of the system. */
  get theme() { return kept.theme; },
  set theme(value) { kept.theme = value; save(); },

  /** The newest row of a session that was on the screen; undefined if the session was never listed. */
  seen(id) { return kept.seen[id]; },
  see(id, seq) {
    if (kept.seen[id] === seq) return;
    delete kept.seen[id];
    kept.seen[id] = seq;
    const ids = Object.keys(kept.seen);
    for (const old of ids.slice(0, Math.max(0, ids.length - MOST))) delete kept.seen[old];
    save();
  },
};

/** Apply the chosen theme. */
export function applyTheme() {
  if (prefs.theme) document.documentElement.dataset.theme = prefs.theme;
  else delete document.documentElement.dataset.theme;
}
