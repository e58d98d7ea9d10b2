"""Host protocol v1: one request in, one response out."""
