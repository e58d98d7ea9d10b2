"""zot: the agent runtime that other programs embed."""
