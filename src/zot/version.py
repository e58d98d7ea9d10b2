"""The version, as a constant: reading package metadata would cost 20 ms at every start."""

__version__ = "0.1.0"
