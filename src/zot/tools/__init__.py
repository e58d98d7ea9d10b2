"""Built-in tools, and the processes, paths and sandbox they share."""
