"""`python -m snapline`, and the installed `snapline`."""

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported is no traceback either."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs from C what we say ourselves; children inherit it
    try:
        from snapline.cli.nouns import NOUNS, WORDS, app_of

        if sys.argv[1:] and sys.argv[1] in {*NOUNS, *WORDS}:
            app = app_of(sys.argv[1])
        else:
            from snapline.cli.main import app
        app(prog_name="snapline")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
