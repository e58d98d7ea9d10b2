"""Attacks by a hostile repository, model, extension or stranger: each worked once, or is of a class that must not.

A file is a boundary: private paths, protected paths, the sandbox, trust, guards. `make test` runs all but those that
are slow or need root; `make attacks` runs these, too, and started by root runs all a second time without rights.
Attacks on one part alone are tested with it: links and races in tests/tools/test_lock.py, smuggling and floods in
tests/serve/web and tests/serve/daemon/test_hostile.py, floods by extensions in tests/extensions/test_zoo.py, escapes in
tests/ui.
"""
