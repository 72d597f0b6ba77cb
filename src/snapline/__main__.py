"""`python -m snapline`, and the installed `snapline`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported is no traceback either."""
    try:
        from snapline.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
