"""The journal in PostgreSQL: the same tables and rows as in SQLite, for many machines. Needs the extra `fleet`."""
