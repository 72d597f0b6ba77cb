"""Inputs that a user gives a fleet under test: a list, a function that makes them, or a file with one input on each line.

An input is `(agent, message)` or `(agent, message, key)`, as in `snapline.Client.send_many`; a message may be `(type, fields)`.
A line of a file is a JSON object in the gateway's format: `{"agent": "till1", "type": "Order", "fields": {"number": 7}}`.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from snapline.client.input_outcomes import AgentInput, input_of
from snapline.errors import SnaplineError, UsageError
from snapline.messages.client_requests import GivenInput

Inputs = Sequence[AgentInput] | Callable[..., Iterable[AgentInput]] | Path | str
"""Inputs given by a test. A function takes no argument or a `random.Random`; a string is "module:name" or a file path."""

MakeInputs = Callable[[Random], Iterable[AgentInput]]

GENERATED_INPUTS_MAX = 100
"""Maximum number of inputs that a run takes from a function."""


class RecordedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Input on one line of a file."""

    agent: str
    type: str
    fields: Any = {}
    key: str | None = None


class GivenInputs:
    """Inputs of a fleet under test.

    Attributes:
        count: number of inputs; None: unknown, because a function makes them.
    """

    def __init__(self, inputs: Inputs) -> None:
        """Raises UsageError: `inputs` has no valid form."""
        self.count: int | None = None
        self._make: MakeInputs
        match inputs:
            case str() if ":" in inputs and not Path(inputs).exists():
                self._keep(_load_named(inputs))
            case str() | Path():
                self._keep(_read_recorded(Path(inputs)))
            case _:
                self._keep(inputs)

    def _keep(self, inputs: Any) -> None:  # Any: unchecked user input
        if callable(inputs):
            self._make = _maker_of(inputs)
        elif isinstance(inputs, Iterable):
            listed = [each for each in inputs]
            for each in listed:
                _check(each, "k")
            self.count, self._make = len(listed), lambda _: listed
        else:
            raise UsageError(
                f"inputs {inputs!r} cannot be given: use a list of (agent, message), a function that makes them, "
                "'module:name', or the path of a file with a JSON object on each line"
            )

    def inputs_of_run(self, chance: Random) -> Iterator[AgentInput]:
        """Yield the inputs of one run."""
        most = GENERATED_INPUTS_MAX if self.count is None else self.count
        return islice(iter(self._make(chance)), most)


def to_given_input(each: AgentInput, key: str) -> GivenInput:
    """Return an input in the form that a client sends. `key`: used if the input has no key.

    Raises:
        SnaplineError: the input cannot be sent.
    """
    return input_of(each[0], each[1], each[2] if len(each) > 2 and each[2] is not None else key)


def _check(each: object, key: str) -> None:
    try:
        if isinstance(each, tuple) and 2 <= len(each) <= 3 and isinstance(each[0], str):
            to_given_input(each, key)
            return
    except SnaplineError as error:
        raise UsageError(f"{each!r} is no input: {error}") from error
    raise UsageError(f"{each!r} is no input: write (agent, message) or (agent, message, key)")


def _maker_of(function: Callable[..., Iterable[AgentInput]]) -> MakeInputs:
    try:
        takes_chance = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        takes_chance = False
    return function if takes_chance else lambda _: function()


def _load_named(reference: str) -> object:
    module, _, name = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"inputs {reference!r} cannot be loaded: {error}") from error


def _read_recorded(place: Path) -> list[AgentInput]:
    try:
        lines = place.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"inputs {str(place)!r} cannot be read: {error.strerror or error}") from error
    inputs: list[AgentInput] = []
    for number, line in enumerate(lines, 1):
        try:
            record = msgspec.json.decode(line, type=RecordedInput) if line.strip() else None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(f"{place}:{number} is no input: {error}") from error
        if record is not None:
            inputs.append((record.agent, (record.type, record.fields), record.key))
    return inputs
