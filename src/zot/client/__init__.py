"""Client of the daemon: a connection that resumes, sessions, single calls."""
