"""Build steps that pyproject.toml cannot express. If SNAPLINE_COMPILE is 1, the modules in its section [tool.snapline] are compiled to
machine code (docs/compiled.md).

If SNAPLINE_COMPILE is not set, nothing is compiled, and one wheel fits every Python version and machine.
"""

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup

LIBRARY = "snapline_compiled"
"""mypyc puts all the code into one library, `snapline_compiled__mypyc`; each module's own file only leads there."""


def extensions() -> list[Extension]:
    if os.environ.get("SNAPLINE_COMPILE", "") in ("", "0"):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise SystemExit(
            "SNAPLINE_COMPILE needs mypy and what snapline imports: in an environment with snapline[dev], "
            "build with --no-isolation (pip: --no-build-isolation)"
        ) from error
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    modules = settings["tool"]["snapline"]["compiled"]
    return mypycify(
        [f"src/{name.replace('.', '/')}.py" for name in modules],
        group_name=LIBRARY,
        target_dir="build/mypyc",
        debug_level="0",
    )


setup(ext_modules=extensions())
