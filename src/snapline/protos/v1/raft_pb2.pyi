from snapline.protos.v1 import link_pb2 as _link_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftBatch(_message.Message):
    __slots__ = ("hello", "messages")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    hello: RaftHello
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, hello: _Optional[_Union[RaftHello, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...

class RaftHello(_message.Message):
    __slots__ = ("cluster", "node", "boot", "stream", "version", "log", "address")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    node: str
    boot: int
    stream: int
    version: int
    log: str
    address: str
    def __init__(self, cluster: _Optional[str] = ..., node: _Optional[str] = ..., boot: _Optional[int] = ..., stream: _Optional[int] = ..., version: _Optional[int] = ..., log: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class RaftDone(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("request_vote", "response_vote", "timeout_now", "append_entries", "next_node_index", "apply_command", "apply_command_response")
    REQUEST_VOTE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_VOTE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    APPEND_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLY_COMMAND_FIELD_NUMBER: _ClassVar[int]
    APPLY_COMMAND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request_vote: RequestVote
    response_vote: ResponseVote
    timeout_now: TimeoutNow
    append_entries: AppendEntries
    next_node_index: NextNodeIndex
    apply_command: ApplyCommand
    apply_command_response: ApplyCommandResponse
    def __init__(self, request_vote: _Optional[_Union[RequestVote, _Mapping]] = ..., response_vote: _Optional[_Union[ResponseVote, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., append_entries: _Optional[_Union[AppendEntries, _Mapping]] = ..., next_node_index: _Optional[_Union[NextNodeIndex, _Mapping]] = ..., apply_command: _Optional[_Union[ApplyCommand, _Mapping]] = ..., apply_command_response: _Optional[_Union[ApplyCommandResponse, _Mapping]] = ...) -> None: ...

class RequestVote(_message.Message):
    __slots__ = ("term", "last_log_index", "last_log_term")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    last_log_index: int
    last_log_term: int
    def __init__(self, term: _Optional[int] = ..., last_log_index: _Optional[int] = ..., last_log_term: _Optional[int] = ...) -> None: ...

class ResponseVote(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...

class AppendEntries(_message.Message):
    __slots__ = ("term", "commit_index", "entries", "dump")
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    term: int
    commit_index: int
    entries: LogEntries
    dump: DumpPart
    def __init__(self, term: _Optional[int] = ..., commit_index: _Optional[int] = ..., entries: _Optional[_Union[LogEntries, _Mapping]] = ..., dump: _Optional[_Union[DumpPart, _Mapping]] = ...) -> None: ...

class LogEntries(_message.Message):
    __slots__ = ("prev_log_index", "prev_log_term", "command", "index", "term")
    PREV_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    prev_log_index: int
    prev_log_term: int
    command: _containers.RepeatedScalarFieldContainer[bytes]
    index: _containers.RepeatedScalarFieldContainer[int]
    term: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prev_log_index: _Optional[int] = ..., prev_log_term: _Optional[int] = ..., command: _Optional[_Iterable[bytes]] = ..., index: _Optional[_Iterable[int]] = ..., term: _Optional[_Iterable[int]] = ...) -> None: ...

class DumpPart(_message.Message):
    __slots__ = ("data", "is_first", "is_last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_FIRST_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    is_first: bool
    is_last: bool
    def __init__(self, data: _Optional[bytes] = ..., is_first: bool = ..., is_last: bool = ...) -> None: ...

class NextNodeIndex(_message.Message):
    __slots__ = ("next_node_index", "reset", "success", "term")
    NEXT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    next_node_index: int
    reset: bool
    success: bool
    term: int
    def __init__(self, next_node_index: _Optional[int] = ..., reset: bool = ..., success: bool = ..., term: _Optional[int] = ...) -> None: ...

class ApplyCommand(_message.Message):
    __slots__ = ("command", "request_id")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    command: bytes
    request_id: int
    def __init__(self, command: _Optional[bytes] = ..., request_id: _Optional[int] = ...) -> None: ...

class ApplyCommandResponse(_message.Message):
    __slots__ = ("request_id", "position", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    position: LogPosition
    error: int
    def __init__(self, request_id: _Optional[int] = ..., position: _Optional[_Union[LogPosition, _Mapping]] = ..., error: _Optional[int] = ...) -> None: ...

class LogPosition(_message.Message):
    __slots__ = ("index", "term")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...
