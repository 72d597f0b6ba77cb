from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallIds(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Items(_message.Message):
    __slots__ = ("channel", "payload", "epoch", "piggyback", "more")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    channel: _containers.RepeatedScalarFieldContainer[int]
    payload: _containers.RepeatedScalarFieldContainer[bytes]
    epoch: _containers.RepeatedScalarFieldContainer[int]
    piggyback: _containers.RepeatedScalarFieldContainer[bytes]
    more: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, channel: _Optional[_Iterable[int]] = ..., payload: _Optional[_Iterable[bytes]] = ..., epoch: _Optional[_Iterable[int]] = ..., piggyback: _Optional[_Iterable[bytes]] = ..., more: _Optional[_Iterable[int]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("first_number", "ack", "grant_items", "grant_bytes", "credit_channel", "credit_number", "items", "items_lz4", "hello", "refused", "bye")
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    GRANT_ITEMS_FIELD_NUMBER: _ClassVar[int]
    GRANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CREDIT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_LZ4_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    first_number: int
    ack: int
    grant_items: int
    grant_bytes: int
    credit_channel: _containers.RepeatedScalarFieldContainer[int]
    credit_number: _containers.RepeatedScalarFieldContainer[int]
    items: Items
    items_lz4: bytes
    hello: Hello
    refused: Refused
    bye: Bye
    def __init__(self, first_number: _Optional[int] = ..., ack: _Optional[int] = ..., grant_items: _Optional[int] = ..., grant_bytes: _Optional[int] = ..., credit_channel: _Optional[_Iterable[int]] = ..., credit_number: _Optional[_Iterable[int]] = ..., items: _Optional[_Union[Items, _Mapping]] = ..., items_lz4: _Optional[bytes] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ...) -> None: ...

class OpenChannel(_message.Message):
    __slots__ = ("id", "to", "from_incarnation", "to_incarnation", "first_number")
    ID_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FROM_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TO_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    id: int
    to: str
    from_incarnation: int
    to_incarnation: int
    first_number: int
    def __init__(self, id: _Optional[int] = ..., to: _Optional[str] = ..., from_incarnation: _Optional[int] = ..., to_incarnation: _Optional[int] = ..., first_number: _Optional[int] = ..., **kwargs) -> None: ...

class Marker(_message.Message):
    __slots__ = ("epoch", "channel", "last_number", "more")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    channel: _containers.RepeatedScalarFieldContainer[int]
    last_number: _containers.RepeatedScalarFieldContainer[int]
    more: bool
    def __init__(self, epoch: _Optional[int] = ..., channel: _Optional[_Iterable[int]] = ..., last_number: _Optional[_Iterable[int]] = ..., more: bool = ...) -> None: ...

class CloseChannel(_message.Message):
    __slots__ = ("id", "by_receiver")
    ID_FIELD_NUMBER: _ClassVar[int]
    BY_RECEIVER_FIELD_NUMBER: _ClassVar[int]
    id: int
    by_receiver: bool
    def __init__(self, id: _Optional[int] = ..., by_receiver: bool = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("open", "marker", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenChannel
    marker: Marker
    close: CloseChannel
    def __init__(self, open: _Optional[_Union[OpenChannel, _Mapping]] = ..., marker: _Optional[_Union[Marker, _Mapping]] = ..., close: _Optional[_Union[CloseChannel, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster", "host", "host_start", "peer_start", "attempt", "plan", "received", "version", "floor")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PEER_START_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    host: str
    host_start: int
    peer_start: int
    attempt: int
    plan: int
    received: int
    version: int
    floor: int
    def __init__(self, cluster: _Optional[str] = ..., host: _Optional[str] = ..., host_start: _Optional[int] = ..., peer_start: _Optional[int] = ..., attempt: _Optional[int] = ..., plan: _Optional[int] = ..., received: _Optional[int] = ..., version: _Optional[int] = ..., floor: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "is_final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    is_final: bool
    def __init__(self, reason: _Optional[str] = ..., is_final: bool = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
