"""`python -m multibranch` is the command `multibranch`; torchrun starts it this way."""

import sys

from multibranch.cli import main

if __name__ == "__main__":
    sys.exit(main())
