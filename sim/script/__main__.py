"""`python -m snapline.sim.script [--rewrite] FILE…`: check scenario scripts, or renew their traces."""

import sys
from pathlib import Path

from snapline.errors import SnaplineError
from snapline.sim.result import EXIT_CODES
from snapline.sim.script.run import check_script, rewrite_script

USAGE_ERROR = 2


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 if all files are as they should be or were written."""
    is_rewriting = arguments[:1] == ["--rewrite"]
    paths = [Path(name) for name in arguments[is_rewriting:]]
    if not paths or any(name.startswith("-") for name in arguments[is_rewriting:]):
        print("usage: python -m snapline.sim.script [--rewrite] FILE…", file=sys.stderr)
        return USAGE_ERROR
    found = ""
    try:
        for path in paths:
            if is_rewriting:
                print(f"{path}: {'written' if rewrite_script(path) else 'unchanged'}")
            else:
                found += check_script(path)
    except (SnaplineError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    print(found, end="\n" if found else "")
    return EXIT_CODES["violation"] if found else EXIT_CODES["pass"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
