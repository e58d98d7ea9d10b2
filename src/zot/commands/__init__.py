"""One file per command of the command line, imported only when it is the one."""
