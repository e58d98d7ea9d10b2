"""Flags, environment and config.toml resolved into one Config; credentials, trust, skills, instructions."""
