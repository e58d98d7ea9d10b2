"""What the bytes of each dialect mean. Nothing here does I/O."""
