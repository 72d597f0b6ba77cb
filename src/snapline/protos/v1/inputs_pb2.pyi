from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OfferRequest(_message.Message):
    __slots__ = ("client", "inputs", "more")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    client: str
    inputs: _containers.RepeatedCompositeFieldContainer[GivenInput]
    more: bool
    def __init__(self, client: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[GivenInput, _Mapping]]] = ..., more: bool = ...) -> None: ...

class GivenInput(_message.Message):
    __slots__ = ("agent", "key", "type", "payload", "more", "public_only")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_ONLY_FIELD_NUMBER: _ClassVar[int]
    agent: str
    key: str
    type: str
    payload: bytes
    more: bool
    public_only: bool
    def __init__(self, agent: _Optional[str] = ..., key: _Optional[str] = ..., type: _Optional[str] = ..., payload: _Optional[bytes] = ..., more: bool = ..., public_only: bool = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[InputOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[InputOutcome, _Mapping]]] = ...) -> None: ...

class InputOutcome(_message.Message):
    __slots__ = ("status", "number", "reason", "host", "address")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    status: str
    number: int
    reason: str
    host: str
    address: str
    def __init__(self, status: _Optional[str] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("agent", "key", "early")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    agent: str
    key: str
    early: bool
    def __init__(self, agent: _Optional[str] = ..., key: _Optional[str] = ..., early: bool = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("status", "number", "type", "body", "reason", "host", "address", "more")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    status: str
    number: int
    type: str
    body: bytes
    reason: str
    host: str
    address: str
    more: bool
    def __init__(self, status: _Optional[str] = ..., number: _Optional[int] = ..., type: _Optional[str] = ..., body: _Optional[bytes] = ..., reason: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., more: bool = ...) -> None: ...
