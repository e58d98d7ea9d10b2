"""Daemon: sessions for many clients over JSON-RPC."""
