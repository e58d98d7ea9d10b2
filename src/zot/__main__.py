"""`python -m zot`."""

from zot.cli import main

main()
