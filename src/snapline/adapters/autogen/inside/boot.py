"""Starts AutoGen's process: `python boot.py FOLDER_OF_SNAPLINE PROGRAM`. Run by its path, in an environment that has no snapline.

Of snapline only the packages down to this one are made known, and without their `__init__`: those import what is not there.
"""

import sys
import types
from pathlib import Path


def main(folder: str, program: str) -> None:
    path = Path(folder)
    for package in ("snapline", "snapline.adapters", "snapline.adapters.autogen"):
        known = types.ModuleType(package)
        known.__path__ = [str(path.joinpath(*package.split(".")[1:]))]
        sys.modules[package] = known
    sys.path[0] = ""  # in place of this file's folder: programs are found as by `python -m`
    from snapline.adapters.autogen.inside.serve import serve_program

    serve_program(program)


if __name__ == "__main__":
    main(*sys.argv[1:])
