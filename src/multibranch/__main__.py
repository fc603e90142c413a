"""The command `multibranch`, also as `python -m multibranch`, which is how torchrun starts it."""

import sys


def main() -> int:
    """Run the command; Ctrl-C ends it in silence while what could answer is being imported."""
    try:
        from multibranch.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
