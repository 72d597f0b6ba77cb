"""`python -m snapline`, and the installed `snapline`."""

import os
import sys

from snapline.cli.collector import collect_seldom

LAUNCHING = ("run", "demo")
"""Commands that start a fleet on this machine: what its processes are forked from imports while they do."""


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported is no traceback either."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it logs from C what we say ourselves; children inherit it
    collect_seldom()
    try:
        if sys.argv[1:] and sys.argv[1] in LAUNCHING and "--help" not in sys.argv:
            from snapline.deploy.starting import begin_early

            begin_early()
        from snapline.cli.groups import NOUNS, WORDS, command_of

        if sys.argv[1:] and sys.argv[1] in {*NOUNS, *WORDS}:
            command_of(sys.argv[1])(prog_name="snapline")
        else:
            from snapline.cli.main import app

            app(prog_name="snapline")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
