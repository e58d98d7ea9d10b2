"""From a Config to a live Session: the only package that picks concrete parts."""
