"""Facts drawn from public test suites, read from the case files; see tests/support.py."""
