"""Client of MCP servers: their processes, their tools, and the cache of their tool lists."""
