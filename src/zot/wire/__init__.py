"""Wire protocols: one module per protocol, from bytes to typed values and back. Does no I/O."""
