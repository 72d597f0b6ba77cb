"""`snapline version`."""

from snapline.cli.command import command
from snapline.cli.options import Display
from snapline.cli.output import document


@command
def version(display: Display) -> None:
    """Print the version."""
    import platform

    import snapline
    from snapline.compiled import is_compiled, version_text

    result = document(
        "Version", version=snapline.__version__, python=platform.python_version(), is_compiled=is_compiled()
    )
    display.printer().result(result, lambda _, tables: tables.line(f"snapline {version_text()}"))
