"""`python -m samplewise`: the command line."""

import sys

from samplewise.cli import main

if __name__ == "__main__":
    sys.exit(main())
