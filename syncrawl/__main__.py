"""`python -m syncrawl`: the same entry as the `syncrawl` console script."""

from __future__ import annotations

import sys

from syncrawl.cli import main

if __name__ == "__main__":
    sys.exit(main())
