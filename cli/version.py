"""`snapline version`."""

from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import document


@command
def version(display: Display) -> None:
    """Print the version."""
    import platform

    import snapline

    result = document("Version", version=snapline.__version__, python=platform.python_version())
    display.printer().result(result, lambda shown, tables: tables.line(f"snapline {shown['version']}"))
