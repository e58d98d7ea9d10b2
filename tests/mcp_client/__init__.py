"""Sessions with MCP servers: good ones, bad ones, and the reference implementation."""
