"""The command `python -m snapline.sim.script [--rewrite] FILE…`, which checks or rewrites the traces in scenario scripts."""

import sys
from pathlib import Path

from snapline.errors import SnaplineError
from snapline.sim.result import EXIT_CODES
from snapline.sim.script.script_runner import check_script, rewrite_script

USAGE_ERROR = 2


def main(arguments: list[str]) -> int:
    """Run the command. Return the exit code, which is 0 if all traces match or were rewritten."""
    is_rewriting = arguments[:1] == ["--rewrite"]
    paths = [Path(name) for name in arguments[is_rewriting:]]
    if not paths or any(name.startswith("-") for name in arguments[is_rewriting:]):
        print("usage: python -m snapline.sim.script [--rewrite] FILE…", file=sys.stderr)
        return USAGE_ERROR
    differences = ""
    try:
        for path in paths:
            if is_rewriting:
                print(f"{path}: {'written' if rewrite_script(path) else 'unchanged'}")
            else:
                differences += check_script(path)
    except (SnaplineError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE_ERROR
    print(differences, end="\n" if differences else "")
    return EXIT_CODES["violation"] if differences else EXIT_CODES["pass"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
