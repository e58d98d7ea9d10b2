"""A conversation as one HTML file: needs nothing else, reads well and prints well. Does no I/O."""
