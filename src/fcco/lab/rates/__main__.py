"""``python -m fcco.lab.rates``."""

import sys

from fcco.lab.rates.runner import main

if __name__ == "__main__":
    sys.exit(main())
