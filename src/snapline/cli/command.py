"""Wrapper of every command: groups of shared options, and the translation of errors for the user.

A command may take a dataclass such as `Connection` as a parameter. Its fields become options of the command, and the command gets the
filled dataclass. So options shared by many commands are defined once.

The wrapper turns an error into one sentence on stderr and an exit code (docs/cli.md); it prints a traceback only on request.
"""

import dataclasses
import errno
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import typer

from snapline.errors import SnaplineError, UsageError
from snapline.security.printable import printable

INTERRUPTED = 130

PARTIAL = 3
"""Exit code of a partial success: some items could not be read or handled."""

WRONG_PLACE = (
    *(errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG),
)
"""System errors that another path would fix; they count as usage errors. Others, such as a full disk, are external failures."""

TRACEBACK_VARIABLE = "SNAPLINE_TRACEBACK"


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command of `function`: replace its dataclass parameters by options, and handle its errors."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint) and isinstance(hint, type)}

    def run(**values: object) -> None:
        with_groups = {name: _fill(group, values) for name, group in groups.items()}
        try:
            function(**values, **with_groups)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except SnaplineError as error:
            _print_error(str(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except ModuleNotFoundError as error:
            _print_error(f"that needs {error.name!r}, which is not installed")
            raise typer.Exit(UsageError.exit_code) from error
        except OSError as error:
            _print_error(describe_path_failure(error))
            raise typer.Exit(UsageError.exit_code if error.errno in WRONG_PLACE else 1) from error
        except Exception as error:
            _print_error(f"unexpected {type(error).__name__}: {error} (set {TRACEBACK_VARIABLE}=1 to see where)")
            raise typer.Exit(1) from error

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__dict__["__signature__"] = _unfold(inspect.signature(function), hints, groups)
    run.__annotations__ = {}
    return run


def _unfold(
    signature: inspect.Signature, hints: Mapping[str, Any], groups: Mapping[str, type[Any]]
) -> inspect.Signature:
    """Return the signature for typer, with each group replaced by its fields. All parameters are keyword-only, so their order is free."""
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        types = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
                annotation=types[field.name],
            )
            for field in dataclasses.fields(group)
        ]
    return inspect.Signature(parameters)


def _fill(group: type[Any], values: dict[str, object]) -> object:
    return group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})


def describe_path_failure(error: OSError) -> str:
    """Return a message such as `/proc/x cannot be used: No such file or directory`."""
    path = error.filename2 or error.filename
    return f"{path or 'the system'} cannot be used: {error.strerror or error}"


def _print_error(sentence: str) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback

        print(printable(traceback.format_exc()), end="", file=sys.stderr)
    print(printable("snapline: " + " ".join(sentence.split())), file=sys.stderr)
