"""Programs in a forked child of this process: no interpreter has to start, and nothing has to be imported."""

import os
import signal
import sys
import tempfile
import traceback
from subprocess import CompletedProcess


def run_forked(program: str, *arguments: str) -> CompletedProcess[str]:
    """Run `program` as `python -c` would; return how it ended and what it said."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            _run(program, arguments, out.fileno(), err.fileno())
        try:
            _, status = os.waitpid(pid, 0)
        except BaseException:  # the test has taken too long
            os.kill(pid, signal.SIGKILL)
            raise
        out.seek(0)
        err.seek(0)
        return CompletedProcess(arguments, os.waitstatus_to_exitcode(status), out.read(), err.read())


def _run(program: str, arguments: tuple[str, ...], out: int, err: int) -> None:
    """Never return: the child would go on with the tests."""
    status = 1
    try:
        sys.stdout, sys.stderr = os.fdopen(out, "w", closefd=False), os.fdopen(err, "w", closefd=False)
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<forked>", "exec"), {"__name__": "__main__"})  # noqa: S102  # the test's own program
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
