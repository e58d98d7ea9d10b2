"""Guardian program, which runs beside zot as its own process. It imports no other part of zot."""
