from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ShowRequest(_message.Message):
    __slots__ = ("agent", "what", "field")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    agent: str
    what: str
    field: str
    def __init__(self, agent: _Optional[str] = ..., what: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class ShowReply(_message.Message):
    __slots__ = ("json", "more", "retry")
    JSON_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    more: bool
    retry: str
    def __init__(self, json: _Optional[bytes] = ..., more: bool = ..., retry: _Optional[str] = ...) -> None: ...
