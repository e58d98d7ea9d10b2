"""Sessions that cannot be lost: their rows in one SQLite file, written before they are shown. See docs/journal.md."""
