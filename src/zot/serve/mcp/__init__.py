"""Model Context Protocol: zot as a server."""
