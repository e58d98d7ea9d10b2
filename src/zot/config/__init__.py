"""Flags, environment variables and config.toml, resolved into one Config; credentials, trust, skills and instructions."""
