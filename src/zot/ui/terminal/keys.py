"""Which keys do what, for people."""

KEYS = """\
**Keys**

- `Enter` sends; `Ctrl+J`, `Shift+Enter`, `Alt+Enter` or `\\` `Enter` begin a new line
- `Esc` aborts what runs; `Ctrl+C` twice, or `Ctrl+D`, leaves; `Ctrl+Z` suspends, `Ctrl+_` undoes
- while the model is busy, `Enter` lets a message wait, `Ctrl+S` steers; `Up` takes back what waits, `Ctrl+R` removes it
- `Up`, `Down`: what you wrote before; `Tab` completes `/commands` and `@files`
- `PageUp`, `PageDown`, `Ctrl+Home`, `Ctrl+End` or the mouse wheel scroll
- `Ctrl+O` unfolds everything, a click one block; `Shift+Tab` goes to the transcript, where `j`, `k` and `Enter` do it
- a question about a call: `y` allows it, `a` for the rest of the session, `n` or `Esc` not at all
- in a panel all keys are the extension's, but `Esc` closes it; `Shift+Tab` enters and leaves it"""
