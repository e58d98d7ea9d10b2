"""Servers: one module or package per protocol, over any byte stream."""
