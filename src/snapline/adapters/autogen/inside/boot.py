"""Entry point of AutoGen's process: `python boot.py FOLDER_OF_SNAPLINE PROGRAM`. The host runs this file by its path, in an environment
without snapline.

The file registers its parent packages without running their `__init__` modules, which would import missing dependencies.
"""

import sys
import types
from pathlib import Path


def main(folder: str, program: str) -> None:
    path = Path(folder)
    for package in ("snapline", "snapline.adapters", "snapline.adapters.autogen"):
        module = types.ModuleType(package)
        module.__path__ = [str(path.joinpath(*package.split(".")[1:]))]
        sys.modules[package] = module
    sys.path[0] = ""  # replaces this file's folder, so that programs are found as with `python -m`
    from snapline.adapters.autogen.inside.runtime import serve_program

    serve_program(program)


if __name__ == "__main__":
    main(*sys.argv[1:])
