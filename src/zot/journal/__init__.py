"""The journal: sessions as rows in one SQLite file, stored before they are shown. See docs/explanation/journal.md."""
