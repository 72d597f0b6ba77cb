"""Run the command line, for `python -m snapline` and for the installed script `snapline`."""

import os
import sys

from snapline import package_stamp  # noqa: F401  now, because its check compares later files with this moment
from snapline.cli.garbage_collection import collect_rarely

LAUNCH_COMMANDS = ("run", "demo")
"""Commands that start a fleet on this machine. For these, a fork server is started first, so that it imports modules at the same time."""


def main() -> None:
    """Run the command line. Pressing Ctrl-C during the imports prints no traceback."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # snapline reports gRPC's errors itself; children inherit this setting
    collect_rarely()
    try:
        if sys.argv[1:] and sys.argv[1] in LAUNCH_COMMANDS and "--help" not in sys.argv:
            from snapline.deploy.starting import start_fork_server_early

            start_fork_server_early()
        from snapline.cli.main import COMMANDS, GROUPS, command_of

        if sys.argv[1:] and sys.argv[1] in {*GROUPS, *COMMANDS}:
            command_of(sys.argv[1])(prog_name="snapline")
        else:
            from snapline.cli.main import app

            app(prog_name="snapline")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
