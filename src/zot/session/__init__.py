"""One session: its queue, worker, history, recovery and rewind."""
