"""The daemon: sessions for many clients over JSON-RPC."""
