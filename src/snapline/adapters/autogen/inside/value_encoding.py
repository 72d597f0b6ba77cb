"""Encodes AutoGen's messages and states. An encoded value consists of a text and the name of its encoding.

Values that JSON can reproduce exactly are encoded in JSON, so that they are readable in snapshots. Messages may be encoded by AutoGen's own
serializer. All other values are pickled. `AgentStateCodec` selects the attributes that make up an agent's state.
"""

import base64
import json
import math
import pickle
from collections.abc import Mapping
from typing import Any

from autogen_core import JSON_DATA_CONTENT_TYPE, BaseAgent
from autogen_core._serialization import SerializationRegistry

JSON_FORM, MESSAGE_FORM, PICKLE_FORM = "json", "message", "pickle"
"""Names of the encodings. "json" is for plain values, "message" for messages that AutoGen's serializer for their type can reproduce, and
"pickle" for all other objects."""

EncodedValue = dict[str, str]
"""A dictionary with the keys `form` and `body`, and for a message also `type`."""

OF_AUTOGEN = frozenset({"_id", "_runtime", "_description", "_handlers"})
"""Attributes that AutoGen's base classes set. They are not saved, since they are recreated with the object."""


class NotSerializableError(ValueError):
    """A message or state cannot be saved. The error text names the message or state, and explains how to proceed."""


def keep(value: object, what: str) -> EncodedValue:
    """Encode a value in JSON if JSON reproduces the value exactly, otherwise as a pickle.

    Raises:
        NotSerializableError: the value cannot be pickled.
    """
    if is_json(value, set()):
        return {"form": JSON_FORM, "body": json.dumps(value)}
    try:
        return {"form": PICKLE_FORM, "body": base64.b64encode(pickle.dumps(value)).decode()}
    except Exception as error:
        raise NotSerializableError(
            f"{what} cannot be kept ({error!r}): it has to be something that pickle takes"
        ) from error


def decode_encoded_value(kept: EncodedValue, serializers: SerializationRegistry) -> Any:  # the value that was encoded
    """Decode a value encoded by `keep` or `encode_autogen_message`."""
    form, body = kept["form"], kept["body"]
    if form == JSON_FORM:
        return json.loads(body)
    if form == PICKLE_FORM:
        return pickle.loads(base64.b64decode(body))
    return serializers.deserialize(body.encode(), type_name=kept["type"], data_content_type=JSON_DATA_CONTENT_TYPE)


def encode_autogen_message(message: object, serializers: SerializationRegistry) -> EncodedValue:
    """Encode a message with AutoGen's serializer for its type if that serializer reproduces the message exactly. Otherwise, encode it like
    `keep`.

    Raises:
        NotSerializableError: the message can be encoded neither by AutoGen's serializer nor in JSON, and it cannot be pickled.
    """
    name = type(message).__name__
    if not is_json(message, set()) and serializers.is_registered(
        serializers.type_name(message), JSON_DATA_CONTENT_TYPE
    ):
        name = serializers.type_name(message)
        body = serializers.serialize(message, type_name=name, data_content_type=JSON_DATA_CONTENT_TYPE)
        back = serializers.deserialize(body, type_name=name, data_content_type=JSON_DATA_CONTENT_TYPE)
        if type(back) is type(message) and back == message:
            return {"type": name, "form": MESSAGE_FORM, "body": body.decode()}
    return {"type": name, **keep(message, f"a message of type {name!r}")}


def encode_handler_error(error: BaseException) -> EncodedValue:
    """Encode an error that a handler has raised, for the caller that waits for the reply."""
    try:
        kept = keep(error, "an error")
        pickle.loads(base64.b64decode(kept["body"]))
    except Exception:  # the error's class may raise anything
        kept = keep(RuntimeError(f"{type(error).__qualname__}: {error}"), "an error")
    return {"type": type(error).__qualname__, **kept}


def is_json(value: object, seen: set[int]) -> bool:
    """Return whether decoding the value's JSON yields exactly the same value. For example, the result is False if the same list occurs in
    two places, because decoding yields two lists."""
    if value is None or type(value) in (bool, int, str):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) not in (dict, list) or id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, dict):
        return all(type(key) is str and is_json(each, seen) for key, each in value.items())
    return isinstance(value, list) and all(is_json(each, seen) for each in value)


class AgentStateCodec:
    """Encodes an agent's state, except for attributes that the factory recreates with the object.

    If an agent defines both `save_state` and `load_state`, its state is saved and loaded with these methods. If an agent lacks one of these
    two methods, its attributes are saved, except those of AutoGen's base classes. Attributes that the factory creates and that cannot be
    pickled, such as clients, locks and queues, are not saved.
    """

    def __init__(self, made: Any) -> None:
        """Create the codec. `made` is the object as its factory has created it."""
        self._agent = made
        kind = type(made)
        methods = [(getattr(kind, name), getattr(BaseAgent, name)) for name in ("save_state", "load_state")]
        self._saves_itself = all(own is not inherited for own, inherited in methods)
        made_anew = set() if self._saves_itself else {name for name in vars(made) if not _is_kept(made, name)}
        self._made_anew = OF_AUTOGEN | made_anew

    async def save(self) -> EncodedValue:
        """Return the object's current state.

        Raises:
            NotSerializableError: the state cannot be saved. The error names the attribute that cannot be saved.
        """
        description = f"the state of agent {self._agent.id}"
        if self._saves_itself:
            return keep(dict(await self._agent.save_state()), description)
        attributes = {name: value for name, value in vars(self._agent).items() if name not in self._made_anew}
        try:
            return keep(attributes, description)
        except NotSerializableError as error:
            name = next((name for name in attributes if not _is_kept(self._agent, name)), "")
            raise NotSerializableError(
                f"attribute {name!r} of agent {self._agent.id} cannot be kept ({error.__cause__!r}): keep what pickle takes there, "
                "make it in the constructor if it is no state, or write save_state and load_state"
            ) from error

    async def load(self, state: Mapping[str, Any]) -> None:
        """Load a state into the object."""
        if self._saves_itself:
            await self._agent.load_state(state)
            return
        attributes = vars(self._agent)
        for name in [name for name in attributes if name not in self._made_anew and name not in state]:
            del attributes[name]
        attributes.update(state)


def _is_kept(made: object, name: str) -> bool:
    try:
        pickle.dumps(vars(made)[name])
    except Exception:  # a user's class may raise anything
        return False
    return True
