"""`python -m fcco`: the same as `fcco`."""

import sys

from fcco.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
