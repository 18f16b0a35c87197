"""``python -m cacheprefix`` is the command ``cacheprefix``."""

import sys

from cacheprefix.cli import main

if __name__ == "__main__":
    sys.exit(main())
