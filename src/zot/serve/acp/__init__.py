"""Agent Client Protocol v1 for an editor: its connection, its sessions, and their backends."""
