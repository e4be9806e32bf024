"""``python -m truecast``."""

import sys

from truecast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
