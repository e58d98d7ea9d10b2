"""The program beside zot that keeps its commands. It runs in a process of its own and loads nothing else of zot."""
