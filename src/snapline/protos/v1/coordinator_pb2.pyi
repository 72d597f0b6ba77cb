from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HostMessage(_message.Message):
    __slots__ = ("join", "fleet_definition", "probe_read", "heartbeat", "epoch_report", "epoch_refused", "plan_applied", "plan_refused", "reserve_agents", "retire_agent", "locate_agents", "peer_suspected", "agent_failed", "stop_evaluated", "leave", "checkpoints_stored", "agents_frozen", "checkpoints_answered", "numbers_reported", "message_part", "open_log", "want_epoch", "want_rollback", "turn_survived", "quiesced", "want_leave")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    FLEET_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    PROBE_READ_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_REPORT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_REFUSED_FIELD_NUMBER: _ClassVar[int]
    PLAN_APPLIED_FIELD_NUMBER: _ClassVar[int]
    PLAN_REFUSED_FIELD_NUMBER: _ClassVar[int]
    RESERVE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    RETIRE_AGENT_FIELD_NUMBER: _ClassVar[int]
    LOCATE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    PEER_SUSPECTED_FIELD_NUMBER: _ClassVar[int]
    AGENT_FAILED_FIELD_NUMBER: _ClassVar[int]
    STOP_EVALUATED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_STORED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FROZEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_REPORTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_PART_FIELD_NUMBER: _ClassVar[int]
    OPEN_LOG_FIELD_NUMBER: _ClassVar[int]
    WANT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WANT_ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    TURN_SURVIVED_FIELD_NUMBER: _ClassVar[int]
    QUIESCED_FIELD_NUMBER: _ClassVar[int]
    WANT_LEAVE_FIELD_NUMBER: _ClassVar[int]
    join: Join
    fleet_definition: FleetDefinition
    probe_read: ProbeRead
    heartbeat: Heartbeat
    epoch_report: EpochReport
    epoch_refused: EpochRefused
    plan_applied: PlanApplied
    plan_refused: PlanRefused
    reserve_agents: ReserveAgents
    retire_agent: RetireAgent
    locate_agents: LocateAgents
    peer_suspected: PeerSuspected
    agent_failed: AgentFailed
    stop_evaluated: StopEvaluated
    leave: Leave
    checkpoints_stored: CheckpointsStored
    agents_frozen: AgentsFrozen
    checkpoints_answered: CheckpointsAnswered
    numbers_reported: NumbersReported
    message_part: MessagePart
    open_log: OpenLog
    want_epoch: WantEpoch
    want_rollback: WantRollback
    turn_survived: TurnSurvived
    quiesced: Quiesced
    want_leave: WantLeave
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., fleet_definition: _Optional[_Union[FleetDefinition, _Mapping]] = ..., probe_read: _Optional[_Union[ProbeRead, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., epoch_report: _Optional[_Union[EpochReport, _Mapping]] = ..., epoch_refused: _Optional[_Union[EpochRefused, _Mapping]] = ..., plan_applied: _Optional[_Union[PlanApplied, _Mapping]] = ..., plan_refused: _Optional[_Union[PlanRefused, _Mapping]] = ..., reserve_agents: _Optional[_Union[ReserveAgents, _Mapping]] = ..., retire_agent: _Optional[_Union[RetireAgent, _Mapping]] = ..., locate_agents: _Optional[_Union[LocateAgents, _Mapping]] = ..., peer_suspected: _Optional[_Union[PeerSuspected, _Mapping]] = ..., agent_failed: _Optional[_Union[AgentFailed, _Mapping]] = ..., stop_evaluated: _Optional[_Union[StopEvaluated, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., checkpoints_stored: _Optional[_Union[CheckpointsStored, _Mapping]] = ..., agents_frozen: _Optional[_Union[AgentsFrozen, _Mapping]] = ..., checkpoints_answered: _Optional[_Union[CheckpointsAnswered, _Mapping]] = ..., numbers_reported: _Optional[_Union[NumbersReported, _Mapping]] = ..., message_part: _Optional[_Union[MessagePart, _Mapping]] = ..., open_log: _Optional[_Union[OpenLog, _Mapping]] = ..., want_epoch: _Optional[_Union[WantEpoch, _Mapping]] = ..., want_rollback: _Optional[_Union[WantRollback, _Mapping]] = ..., turn_survived: _Optional[_Union[TurnSurvived, _Mapping]] = ..., quiesced: _Optional[_Union[Quiesced, _Mapping]] = ..., want_leave: _Optional[_Union[WantLeave, _Mapping]] = ...) -> None: ...

class MessagePart(_message.Message):
    __slots__ = ("data", "is_last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    is_last: bool
    def __init__(self, data: _Optional[bytes] = ..., is_last: bool = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("host", "instance", "address", "fleet", "definition_digest", "plan", "died", "died_in", "definition_parts", "dependencies")
    class DependenciesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    DIED_IN_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_PARTS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    host: str
    instance: str
    address: str
    fleet: str
    definition_digest: bytes
    plan: int
    died: str
    died_in: _containers.RepeatedCompositeFieldContainer[TurnDeath]
    definition_parts: _containers.RepeatedScalarFieldContainer[str]
    dependencies: _containers.ScalarMap[str, str]
    def __init__(self, host: _Optional[str] = ..., instance: _Optional[str] = ..., address: _Optional[str] = ..., fleet: _Optional[str] = ..., definition_digest: _Optional[bytes] = ..., plan: _Optional[int] = ..., died: _Optional[str] = ..., died_in: _Optional[_Iterable[_Union[TurnDeath, _Mapping]]] = ..., definition_parts: _Optional[_Iterable[str]] = ..., dependencies: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TurnDeath(_message.Message):
    __slots__ = ("agent", "what", "sender", "type", "digest", "limit", "is_beside", "times")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    IS_BESIDE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    agent: str
    what: str
    sender: str
    type: str
    digest: bytes
    limit: int
    is_beside: bool
    times: int
    def __init__(self, agent: _Optional[str] = ..., what: _Optional[str] = ..., sender: _Optional[str] = ..., type: _Optional[str] = ..., digest: _Optional[bytes] = ..., limit: _Optional[int] = ..., is_beside: bool = ..., times: _Optional[int] = ...) -> None: ...

class TurnSurvived(_message.Message):
    __slots__ = ("agent", "digest")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    agent: str
    digest: bytes
    def __init__(self, agent: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class FleetDefinition(_message.Message):
    __slots__ = ("name", "protocol", "period_ns", "epoch_timeout_ns", "agents", "never_stops", "policy", "log_bytes_max", "places", "rpo_ns", "rto_ns", "recovery")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NEVER_STOPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    RPO_NS_FIELD_NUMBER: _ClassVar[int]
    RTO_NS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    name: str
    protocol: str
    period_ns: int
    epoch_timeout_ns: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentKind]
    never_stops: bool
    policy: str
    log_bytes_max: int
    places: _containers.RepeatedCompositeFieldContainer[PlaceRule]
    rpo_ns: int
    rto_ns: int
    recovery: str
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[str] = ..., period_ns: _Optional[int] = ..., epoch_timeout_ns: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentKind, _Mapping]]] = ..., never_stops: bool = ..., policy: _Optional[str] = ..., log_bytes_max: _Optional[int] = ..., places: _Optional[_Iterable[_Union[PlaceRule, _Mapping]]] = ..., rpo_ns: _Optional[int] = ..., rto_ns: _Optional[int] = ..., recovery: _Optional[str] = ...) -> None: ...

class PlaceRule(_message.Message):
    __slots__ = ("agents", "hosts")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    agents: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agents: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class AgentKind(_message.Message):
    __slots__ = ("agent", "kind")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    agent: str
    kind: str
    def __init__(self, agent: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ProbeRead(_message.Message):
    __slots__ = ("path", "content", "error", "may_pass")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MAY_PASS_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    error: str
    may_pass: bool
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ..., error: _Optional[str] = ..., may_pass: bool = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "turns", "dead_letters", "parked", "busy", "log_messages", "log_bytes", "checkpoints", "forced", "piggyback_bytes", "piggybacked", "storing", "put_off", "store_problem", "is_standing", "plan", "steps_loaded", "unreached", "inputs_waiting", "outputs_waiting", "output_bytes_waiting", "agents_full", "standing", "agents_standing", "log_problem", "certificate_left_ns")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    LOG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACKED_FIELD_NUMBER: _ClassVar[int]
    STORING_FIELD_NUMBER: _ClassVar[int]
    PUT_OFF_FIELD_NUMBER: _ClassVar[int]
    STORE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IS_STANDING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STEPS_LOADED_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_WAITING_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FULL_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    AGENTS_STANDING_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    turns: int
    dead_letters: int
    parked: int
    busy: _containers.RepeatedCompositeFieldContainer[OpenTurn]
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    storing: int
    put_off: int
    store_problem: str
    is_standing: bool
    plan: int
    steps_loaded: int
    unreached: _containers.RepeatedCompositeFieldContainer[UnreachedPeer]
    inputs_waiting: int
    outputs_waiting: int
    output_bytes_waiting: int
    agents_full: int
    standing: _containers.RepeatedCompositeFieldContainer[StandingAgent]
    agents_standing: int
    log_problem: str
    certificate_left_ns: int
    def __init__(self, sequence: _Optional[int] = ..., turns: _Optional[int] = ..., dead_letters: _Optional[int] = ..., parked: _Optional[int] = ..., busy: _Optional[_Iterable[_Union[OpenTurn, _Mapping]]] = ..., log_messages: _Optional[int] = ..., log_bytes: _Optional[int] = ..., checkpoints: _Optional[int] = ..., forced: _Optional[int] = ..., piggyback_bytes: _Optional[int] = ..., piggybacked: _Optional[int] = ..., storing: _Optional[int] = ..., put_off: _Optional[int] = ..., store_problem: _Optional[str] = ..., is_standing: bool = ..., plan: _Optional[int] = ..., steps_loaded: _Optional[int] = ..., unreached: _Optional[_Iterable[_Union[UnreachedPeer, _Mapping]]] = ..., inputs_waiting: _Optional[int] = ..., outputs_waiting: _Optional[int] = ..., output_bytes_waiting: _Optional[int] = ..., agents_full: _Optional[int] = ..., standing: _Optional[_Iterable[_Union[StandingAgent, _Mapping]]] = ..., agents_standing: _Optional[int] = ..., log_problem: _Optional[str] = ..., certificate_left_ns: _Optional[int] = ...) -> None: ...

class StandingAgent(_message.Message):
    __slots__ = ("agent", "kind", "reason", "elapsed_ns")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    kind: str
    reason: str
    elapsed_ns: int
    def __init__(self, agent: _Optional[str] = ..., kind: _Optional[str] = ..., reason: _Optional[str] = ..., elapsed_ns: _Optional[int] = ...) -> None: ...

class UnreachedPeer(_message.Message):
    __slots__ = ("host", "host_start", "elapsed_ns", "is_waited")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    IS_WAITED_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    elapsed_ns: int
    is_waited: bool
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., elapsed_ns: _Optional[int] = ..., is_waited: bool = ...) -> None: ...

class OpenTurn(_message.Message):
    __slots__ = ("agent", "elapsed_ns")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    elapsed_ns: int
    def __init__(self, agent: _Optional[str] = ..., elapsed_ns: _Optional[int] = ...) -> None: ...

class ReportedPack(_message.Message):
    __slots__ = ("path", "size_bytes", "index_digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INDEX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    index_digest: bytes
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., index_digest: _Optional[bytes] = ...) -> None: ...

class EpochReport(_message.Message):
    __slots__ = ("epoch", "host_start", "pack", "names", "agents", "unborn", "sent_from", "sent_to", "sent_number", "received_from", "received_to", "received_number", "recorded_count", "capture_ns", "state_bytes", "channel_state_bytes", "channel_state_messages", "input_of", "input_number", "output_of", "output_number", "durable_of", "durable_number", "captures_ns", "slowest", "start_delay_ns", "slowest_capture_ns", "alignment_ns", "store_ns", "new_bytes", "since", "log_floor", "log_start")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    UNBORN_FIELD_NUMBER: _ClassVar[int]
    SENT_FROM_FIELD_NUMBER: _ClassVar[int]
    SENT_TO_FIELD_NUMBER: _ClassVar[int]
    SENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FROM_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TO_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECORDED_COUNT_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INPUT_OF_FIELD_NUMBER: _ClassVar[int]
    INPUT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_OF_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OF_FIELD_NUMBER: _ClassVar[int]
    DURABLE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    CAPTURES_NS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    START_DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_CAPTURE_NS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_NS_FIELD_NUMBER: _ClassVar[int]
    STORE_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LOG_FLOOR_FIELD_NUMBER: _ClassVar[int]
    LOG_START_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    host_start: int
    pack: ReportedPack
    names: _containers.RepeatedScalarFieldContainer[str]
    agents: _containers.RepeatedScalarFieldContainer[int]
    unborn: _containers.RepeatedScalarFieldContainer[bool]
    sent_from: _containers.RepeatedScalarFieldContainer[int]
    sent_to: _containers.RepeatedScalarFieldContainer[int]
    sent_number: _containers.RepeatedScalarFieldContainer[int]
    received_from: _containers.RepeatedScalarFieldContainer[int]
    received_to: _containers.RepeatedScalarFieldContainer[int]
    received_number: _containers.RepeatedScalarFieldContainer[int]
    recorded_count: _containers.RepeatedScalarFieldContainer[int]
    capture_ns: int
    state_bytes: int
    channel_state_bytes: int
    channel_state_messages: int
    input_of: _containers.RepeatedScalarFieldContainer[int]
    input_number: _containers.RepeatedScalarFieldContainer[int]
    output_of: _containers.RepeatedScalarFieldContainer[int]
    output_number: _containers.RepeatedScalarFieldContainer[int]
    durable_of: _containers.RepeatedScalarFieldContainer[int]
    durable_number: _containers.RepeatedScalarFieldContainer[int]
    captures_ns: int
    slowest: str
    start_delay_ns: int
    slowest_capture_ns: int
    alignment_ns: int
    store_ns: int
    new_bytes: int
    since: int
    log_floor: int
    log_start: int
    def __init__(self, epoch: _Optional[int] = ..., host_start: _Optional[int] = ..., pack: _Optional[_Union[ReportedPack, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., agents: _Optional[_Iterable[int]] = ..., unborn: _Optional[_Iterable[bool]] = ..., sent_from: _Optional[_Iterable[int]] = ..., sent_to: _Optional[_Iterable[int]] = ..., sent_number: _Optional[_Iterable[int]] = ..., received_from: _Optional[_Iterable[int]] = ..., received_to: _Optional[_Iterable[int]] = ..., received_number: _Optional[_Iterable[int]] = ..., recorded_count: _Optional[_Iterable[int]] = ..., capture_ns: _Optional[int] = ..., state_bytes: _Optional[int] = ..., channel_state_bytes: _Optional[int] = ..., channel_state_messages: _Optional[int] = ..., input_of: _Optional[_Iterable[int]] = ..., input_number: _Optional[_Iterable[int]] = ..., output_of: _Optional[_Iterable[int]] = ..., output_number: _Optional[_Iterable[int]] = ..., durable_of: _Optional[_Iterable[int]] = ..., durable_number: _Optional[_Iterable[int]] = ..., captures_ns: _Optional[int] = ..., slowest: _Optional[str] = ..., start_delay_ns: _Optional[int] = ..., slowest_capture_ns: _Optional[int] = ..., alignment_ns: _Optional[int] = ..., store_ns: _Optional[int] = ..., new_bytes: _Optional[int] = ..., since: _Optional[int] = ..., log_floor: _Optional[int] = ..., log_start: _Optional[int] = ...) -> None: ...

class EpochRefused(_message.Message):
    __slots__ = ("epoch", "reason", "is_final")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reason: str
    is_final: bool
    def __init__(self, epoch: _Optional[int] = ..., reason: _Optional[str] = ..., is_final: bool = ...) -> None: ...

class PlanApplied(_message.Message):
    __slots__ = ("plan", "host_start")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    plan: int
    host_start: int
    def __init__(self, plan: _Optional[int] = ..., host_start: _Optional[int] = ...) -> None: ...

class PlanRefused(_message.Message):
    __slots__ = ("plan", "host_start", "damaged_epoch", "path", "reason", "may_pass")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MAY_PASS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    host_start: int
    damaged_epoch: int
    path: str
    reason: str
    may_pass: bool
    def __init__(self, plan: _Optional[int] = ..., host_start: _Optional[int] = ..., damaged_epoch: _Optional[int] = ..., path: _Optional[str] = ..., reason: _Optional[str] = ..., may_pass: bool = ...) -> None: ...

class ReserveAgents(_message.Message):
    __slots__ = ("request", "plan", "agents", "parent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    request: int
    plan: int
    agents: _containers.RepeatedCompositeFieldContainer[AgentKind]
    parent: str
    def __init__(self, request: _Optional[int] = ..., plan: _Optional[int] = ..., agents: _Optional[_Iterable[_Union[AgentKind, _Mapping]]] = ..., parent: _Optional[str] = ...) -> None: ...

class RetireAgent(_message.Message):
    __slots__ = ("request", "plan", "agent")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    request: int
    plan: int
    agent: str
    def __init__(self, request: _Optional[int] = ..., plan: _Optional[int] = ..., agent: _Optional[str] = ...) -> None: ...

class OpenLog(_message.Message):
    __slots__ = ("plan", "key", "newest")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    plan: int
    key: bytes
    newest: int
    def __init__(self, plan: _Optional[int] = ..., key: _Optional[bytes] = ..., newest: _Optional[int] = ...) -> None: ...

class WantEpoch(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: int
    def __init__(self, plan: _Optional[int] = ...) -> None: ...

class LocateAgents(_message.Message):
    __slots__ = ("request", "agents")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    request: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ...) -> None: ...

class PeerSuspected(_message.Message):
    __slots__ = ("host", "host_start", "reason")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    reason: str
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AgentFailed(_message.Message):
    __slots__ = ("agent", "incarnation", "reason")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    agent: str
    incarnation: int
    reason: str
    def __init__(self, agent: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class WantRollback(_message.Message):
    __slots__ = ("agent", "incarnation", "snapshot", "reason", "place", "done", "turn", "at_most")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_FIELD_NUMBER: _ClassVar[int]
    agent: str
    incarnation: int
    snapshot: str
    reason: str
    place: str
    done: bytes
    turn: int
    at_most: int
    def __init__(self, agent: _Optional[str] = ..., incarnation: _Optional[int] = ..., snapshot: _Optional[str] = ..., reason: _Optional[str] = ..., place: _Optional[str] = ..., done: _Optional[bytes] = ..., turn: _Optional[int] = ..., at_most: _Optional[int] = ...) -> None: ...

class StopEvaluated(_message.Message):
    __slots__ = ("epoch", "reached", "error", "open_effects")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OPEN_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reached: bool
    error: str
    open_effects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., reached: bool = ..., error: _Optional[str] = ..., open_effects: _Optional[_Iterable[str]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Quiesced(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class WantLeave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CheckpointsStored(_message.Message):
    __slots__ = ("host_start", "plan", "sequence", "pack", "names", "agents", "numbers", "bases", "epoch", "sent_of", "sent_to", "sent_number", "received_of", "received_from", "received_number", "turns", "log_messages", "log_bytes", "state_bytes", "capture_ns", "captures_ns")
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PACK_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SENT_OF_FIELD_NUMBER: _ClassVar[int]
    SENT_TO_FIELD_NUMBER: _ClassVar[int]
    SENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OF_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FROM_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    LOG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_NS_FIELD_NUMBER: _ClassVar[int]
    CAPTURES_NS_FIELD_NUMBER: _ClassVar[int]
    host_start: int
    plan: int
    sequence: int
    pack: ReportedPack
    names: _containers.RepeatedScalarFieldContainer[str]
    agents: _containers.RepeatedScalarFieldContainer[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    bases: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    sent_of: _containers.RepeatedScalarFieldContainer[int]
    sent_to: _containers.RepeatedScalarFieldContainer[int]
    sent_number: _containers.RepeatedScalarFieldContainer[int]
    received_of: _containers.RepeatedScalarFieldContainer[int]
    received_from: _containers.RepeatedScalarFieldContainer[int]
    received_number: _containers.RepeatedScalarFieldContainer[int]
    turns: _containers.RepeatedScalarFieldContainer[int]
    log_messages: int
    log_bytes: int
    state_bytes: int
    capture_ns: int
    captures_ns: int
    def __init__(self, host_start: _Optional[int] = ..., plan: _Optional[int] = ..., sequence: _Optional[int] = ..., pack: _Optional[_Union[ReportedPack, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., agents: _Optional[_Iterable[int]] = ..., numbers: _Optional[_Iterable[int]] = ..., bases: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., sent_of: _Optional[_Iterable[int]] = ..., sent_to: _Optional[_Iterable[int]] = ..., sent_number: _Optional[_Iterable[int]] = ..., received_of: _Optional[_Iterable[int]] = ..., received_from: _Optional[_Iterable[int]] = ..., received_number: _Optional[_Iterable[int]] = ..., turns: _Optional[_Iterable[int]] = ..., log_messages: _Optional[int] = ..., log_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., capture_ns: _Optional[int] = ..., captures_ns: _Optional[int] = ...) -> None: ...

class AgentsFrozen(_message.Message):
    __slots__ = ("plan", "number", "host_start", "running")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    plan: int
    number: int
    host_start: int
    running: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, plan: _Optional[int] = ..., number: _Optional[int] = ..., host_start: _Optional[int] = ..., running: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointsAnswered(_message.Message):
    __slots__ = ("epoch", "plan", "host_start", "agents", "willing", "participants", "numbers", "request_of", "request_to", "request_number", "askers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    WILLING_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_OF_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TO_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ASKERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    plan: int
    host_start: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    willing: _containers.RepeatedScalarFieldContainer[bool]
    participants: _containers.RepeatedScalarFieldContainer[bool]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    request_of: _containers.RepeatedScalarFieldContainer[int]
    request_to: _containers.RepeatedScalarFieldContainer[str]
    request_number: _containers.RepeatedScalarFieldContainer[int]
    askers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[int] = ..., host_start: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ..., willing: _Optional[_Iterable[bool]] = ..., participants: _Optional[_Iterable[bool]] = ..., numbers: _Optional[_Iterable[int]] = ..., request_of: _Optional[_Iterable[int]] = ..., request_to: _Optional[_Iterable[str]] = ..., request_number: _Optional[_Iterable[int]] = ..., askers: _Optional[_Iterable[str]] = ...) -> None: ...

class NumbersReported(_message.Message):
    __slots__ = ("request", "plan", "names", "agents", "received_of", "received_from", "received_number", "turns")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OF_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FROM_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_NUMBER_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    request: int
    plan: int
    names: _containers.RepeatedScalarFieldContainer[str]
    agents: _containers.RepeatedScalarFieldContainer[int]
    received_of: _containers.RepeatedScalarFieldContainer[int]
    received_from: _containers.RepeatedScalarFieldContainer[int]
    received_number: _containers.RepeatedScalarFieldContainer[int]
    turns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[int] = ..., plan: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., agents: _Optional[_Iterable[int]] = ..., received_of: _Optional[_Iterable[int]] = ..., received_from: _Optional[_Iterable[int]] = ..., received_number: _Optional[_Iterable[int]] = ..., turns: _Optional[_Iterable[int]] = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("welcome", "roster", "plan", "begin_epoch", "end_epoch", "agents_reserved", "agent_retired", "agents_located", "evaluate_stop", "finish", "turned_away", "checkpoints_known", "freeze_agents", "thaw_agents", "request_checkpoints", "report_numbers", "read_probe", "log_opened", "outputs_watched", "rollback_refused", "quiesce", "may_leave")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGENTS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    AGENT_RETIRED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_LOCATED_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_STOP_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    TURNED_AWAY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    FREEZE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    THAW_AGENTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    REPORT_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    READ_PROBE_FIELD_NUMBER: _ClassVar[int]
    LOG_OPENED_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_WATCHED_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_REFUSED_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_FIELD_NUMBER: _ClassVar[int]
    MAY_LEAVE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    roster: Roster
    plan: Plan
    begin_epoch: BeginEpoch
    end_epoch: EndEpoch
    agents_reserved: AgentsReserved
    agent_retired: AgentRetired
    agents_located: AgentsLocated
    evaluate_stop: EvaluateStop
    finish: Finish
    turned_away: TurnedAway
    checkpoints_known: CheckpointsKnown
    freeze_agents: FreezeAgents
    thaw_agents: ThawAgents
    request_checkpoints: RequestCheckpoints
    report_numbers: ReportNumbers
    read_probe: ReadProbe
    log_opened: LogOpened
    outputs_watched: OutputsWatched
    rollback_refused: RollbackRefused
    quiesce: Quiesce
    may_leave: MayLeave
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., begin_epoch: _Optional[_Union[BeginEpoch, _Mapping]] = ..., end_epoch: _Optional[_Union[EndEpoch, _Mapping]] = ..., agents_reserved: _Optional[_Union[AgentsReserved, _Mapping]] = ..., agent_retired: _Optional[_Union[AgentRetired, _Mapping]] = ..., agents_located: _Optional[_Union[AgentsLocated, _Mapping]] = ..., evaluate_stop: _Optional[_Union[EvaluateStop, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., turned_away: _Optional[_Union[TurnedAway, _Mapping]] = ..., checkpoints_known: _Optional[_Union[CheckpointsKnown, _Mapping]] = ..., freeze_agents: _Optional[_Union[FreezeAgents, _Mapping]] = ..., thaw_agents: _Optional[_Union[ThawAgents, _Mapping]] = ..., request_checkpoints: _Optional[_Union[RequestCheckpoints, _Mapping]] = ..., report_numbers: _Optional[_Union[ReportNumbers, _Mapping]] = ..., read_probe: _Optional[_Union[ReadProbe, _Mapping]] = ..., log_opened: _Optional[_Union[LogOpened, _Mapping]] = ..., outputs_watched: _Optional[_Union[OutputsWatched, _Mapping]] = ..., rollback_refused: _Optional[_Union[RollbackRefused, _Mapping]] = ..., quiesce: _Optional[_Union[Quiesce, _Mapping]] = ..., may_leave: _Optional[_Union[MayLeave, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("host_start", "cluster", "wants_definition", "heartbeat_ns", "refuses_effects")
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    WANTS_DEFINITION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_NS_FIELD_NUMBER: _ClassVar[int]
    REFUSES_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    host_start: int
    cluster: str
    wants_definition: bool
    heartbeat_ns: int
    refuses_effects: bool
    def __init__(self, host_start: _Optional[int] = ..., cluster: _Optional[str] = ..., wants_definition: bool = ..., heartbeat_ns: _Optional[int] = ..., refuses_effects: bool = ...) -> None: ...

class ReadProbe(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class RosterEntry(_message.Message):
    __slots__ = ("host", "address", "host_start")
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    host: str
    address: str
    host_start: int
    def __init__(self, host: _Optional[str] = ..., address: _Optional[str] = ..., host_start: _Optional[int] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[RosterEntry]
    def __init__(self, hosts: _Optional[_Iterable[_Union[RosterEntry, _Mapping]]] = ...) -> None: ...

class PlacedAgent(_message.Message):
    __slots__ = ("agent", "kind", "host", "incarnation", "is_unborn", "ordinal")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IS_UNBORN_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    agent: str
    kind: str
    host: int
    incarnation: int
    is_unborn: bool
    ordinal: int
    def __init__(self, agent: _Optional[str] = ..., kind: _Optional[str] = ..., host: _Optional[int] = ..., incarnation: _Optional[int] = ..., is_unborn: bool = ..., ordinal: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("number", "line_epoch", "line_root", "begun_epoch", "hosts", "agents", "logs", "drop_before", "deaths", "era", "sources", "sources_since", "rollbacks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LINE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LINE_ROOT_FIELD_NUMBER: _ClassVar[int]
    BEGUN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    DROP_BEFORE_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_SINCE_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    line_epoch: int
    line_root: str
    begun_epoch: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    agents: _containers.RepeatedCompositeFieldContainer[PlacedAgent]
    logs: _containers.RepeatedCompositeFieldContainer[HostLog]
    drop_before: int
    deaths: _containers.RepeatedCompositeFieldContainer[TurnDeath]
    era: int
    sources: _containers.RepeatedScalarFieldContainer[str]
    sources_since: int
    rollbacks: _containers.RepeatedCompositeFieldContainer[PastRollback]
    def __init__(self, number: _Optional[int] = ..., line_epoch: _Optional[int] = ..., line_root: _Optional[str] = ..., begun_epoch: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., agents: _Optional[_Iterable[_Union[PlacedAgent, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[HostLog, _Mapping]]] = ..., drop_before: _Optional[int] = ..., deaths: _Optional[_Iterable[_Union[TurnDeath, _Mapping]]] = ..., era: _Optional[int] = ..., sources: _Optional[_Iterable[str]] = ..., sources_since: _Optional[int] = ..., rollbacks: _Optional[_Iterable[_Union[PastRollback, _Mapping]]] = ...) -> None: ...

class PastRollback(_message.Message):
    __slots__ = ("number", "epoch", "agent", "place", "reason", "done")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    number: int
    epoch: int
    agent: str
    place: str
    reason: str
    done: bytes
    def __init__(self, number: _Optional[int] = ..., epoch: _Optional[int] = ..., agent: _Optional[str] = ..., place: _Optional[str] = ..., reason: _Optional[str] = ..., done: _Optional[bytes] = ...) -> None: ...

class HostLog(_message.Message):
    __slots__ = ("plan", "host", "host_start", "newest")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    plan: int
    host: str
    host_start: int
    newest: int
    def __init__(self, plan: _Optional[int] = ..., host: _Optional[str] = ..., host_start: _Optional[int] = ..., newest: _Optional[int] = ...) -> None: ...

class LogOpened(_message.Message):
    __slots__ = ("plan", "certificate", "newest")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    plan: int
    certificate: bytes
    newest: int
    def __init__(self, plan: _Optional[int] = ..., certificate: _Optional[bytes] = ..., newest: _Optional[int] = ...) -> None: ...

class BeginEpoch(_message.Message):
    __slots__ = ("epoch", "plan", "hosts", "base", "told", "again")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    plan: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    base: int
    told: int
    again: bool
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., base: _Optional[int] = ..., told: _Optional[int] = ..., again: bool = ...) -> None: ...

class EndEpoch(_message.Message):
    __slots__ = ("epoch", "is_complete", "reason", "agents", "inputs", "emitters", "outputs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    EMITTERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    is_complete: bool
    reason: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    emitters: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., is_complete: bool = ..., reason: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., inputs: _Optional[_Iterable[int]] = ..., emitters: _Optional[_Iterable[str]] = ..., outputs: _Optional[_Iterable[int]] = ...) -> None: ...

class RollbackRefused(_message.Message):
    __slots__ = ("agent", "incarnation", "reason")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    agent: str
    incarnation: int
    reason: str
    def __init__(self, agent: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class OutputsWatched(_message.Message):
    __slots__ = ("is_watched",)
    IS_WATCHED_FIELD_NUMBER: _ClassVar[int]
    is_watched: bool
    def __init__(self, is_watched: bool = ...) -> None: ...

class Quiesce(_message.Message):
    __slots__ = ("number", "holds_inputs", "holds_effects", "frozen")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HOLDS_INPUTS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    holds_inputs: bool
    holds_effects: bool
    frozen: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., holds_inputs: bool = ..., holds_effects: bool = ..., frozen: _Optional[_Iterable[str]] = ...) -> None: ...

class MayLeave(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class AgentsReserved(_message.Message):
    __slots__ = ("request", "recorded", "open_epochs", "incarnation", "refused", "ordinals")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ORDINALS_FIELD_NUMBER: _ClassVar[int]
    request: int
    recorded: int
    open_epochs: _containers.RepeatedScalarFieldContainer[int]
    incarnation: int
    refused: str
    ordinals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[int] = ..., recorded: _Optional[int] = ..., open_epochs: _Optional[_Iterable[int]] = ..., incarnation: _Optional[int] = ..., refused: _Optional[str] = ..., ordinals: _Optional[_Iterable[int]] = ...) -> None: ...

class AgentRetired(_message.Message):
    __slots__ = ("request", "open_epochs", "refused")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    OPEN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    request: int
    open_epochs: _containers.RepeatedScalarFieldContainer[int]
    refused: str
    def __init__(self, request: _Optional[int] = ..., open_epochs: _Optional[_Iterable[int]] = ..., refused: _Optional[str] = ...) -> None: ...

class AgentsLocated(_message.Message):
    __slots__ = ("request", "agents", "hosts", "incarnations", "ordinals")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    ORDINALS_FIELD_NUMBER: _ClassVar[int]
    request: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    ordinals: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[str]] = ..., incarnations: _Optional[_Iterable[int]] = ..., ordinals: _Optional[_Iterable[int]] = ...) -> None: ...

class EvaluateStop(_message.Message):
    __slots__ = ("epoch", "root", "is_decided")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    IS_DECIDED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    root: str
    is_decided: bool
    def __init__(self, epoch: _Optional[int] = ..., root: _Optional[str] = ..., is_decided: bool = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("epoch", "outcome", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcome: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TurnedAway(_message.Message):
    __slots__ = ("reason", "is_final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    is_final: bool
    def __init__(self, reason: _Optional[str] = ..., is_final: bool = ...) -> None: ...

class CheckpointsKnown(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class FreezeAgents(_message.Message):
    __slots__ = ("plan", "number")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    plan: int
    number: int
    def __init__(self, plan: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ThawAgents(_message.Message):
    __slots__ = ("plan", "number")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    plan: int
    number: int
    def __init__(self, plan: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class RequestCheckpoints(_message.Message):
    __slots__ = ("epoch", "plan", "agents", "askers", "numbers")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    ASKERS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    plan: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    askers: _containers.RepeatedScalarFieldContainer[str]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., plan: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ..., askers: _Optional[_Iterable[str]] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class ReportNumbers(_message.Message):
    __slots__ = ("request", "plan")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    request: int
    plan: int
    def __init__(self, request: _Optional[int] = ..., plan: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("stale", "unconfirmed")
    STALE_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    stale: bool
    unconfirmed: bool
    def __init__(self, stale: bool = ..., unconfirmed: bool = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("host", "address", "host_start", "state", "agents", "turns", "dead_letters", "parked", "busy", "log_messages", "log_bytes", "checkpoints", "forced", "piggyback_bytes", "piggybacked", "inputs_waiting", "outputs_waiting", "output_bytes_waiting", "agents_full", "is_drained", "agents_standing")
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    LOG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACKED_FIELD_NUMBER: _ClassVar[int]
    INPUTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_WAITING_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FULL_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_STANDING_FIELD_NUMBER: _ClassVar[int]
    host: str
    address: str
    host_start: int
    state: str
    agents: int
    turns: int
    dead_letters: int
    parked: int
    busy: _containers.RepeatedCompositeFieldContainer[OpenTurn]
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    inputs_waiting: int
    outputs_waiting: int
    output_bytes_waiting: int
    agents_full: int
    is_drained: bool
    agents_standing: int
    def __init__(self, host: _Optional[str] = ..., address: _Optional[str] = ..., host_start: _Optional[int] = ..., state: _Optional[str] = ..., agents: _Optional[int] = ..., turns: _Optional[int] = ..., dead_letters: _Optional[int] = ..., parked: _Optional[int] = ..., busy: _Optional[_Iterable[_Union[OpenTurn, _Mapping]]] = ..., log_messages: _Optional[int] = ..., log_bytes: _Optional[int] = ..., checkpoints: _Optional[int] = ..., forced: _Optional[int] = ..., piggyback_bytes: _Optional[int] = ..., piggybacked: _Optional[int] = ..., inputs_waiting: _Optional[int] = ..., outputs_waiting: _Optional[int] = ..., output_bytes_waiting: _Optional[int] = ..., agents_full: _Optional[int] = ..., is_drained: bool = ..., agents_standing: _Optional[int] = ...) -> None: ...

class FleetStatus(_message.Message):
    __slots__ = ("fleet", "phase", "protocol", "plan", "line_epoch", "hosts", "agents", "epochs_begun", "epochs_completed", "epochs_aborted", "epochs_open", "triggers_skipped", "last_complete_epoch", "reason", "hosts_expected", "mode", "log_messages", "log_bytes", "checkpoints", "forced", "piggyback_bytes", "piggybacked", "stored_log_bytes", "leader", "term", "replicas", "store", "concerns", "fork", "loss", "interval", "caller_role", "recovery")
    FLEET_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LINE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_ABORTED_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_OPEN_FIELD_NUMBER: _ClassVar[int]
    TRIGGERS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LAST_COMPLETE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOSTS_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LOG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIGGYBACKED_FIELD_NUMBER: _ClassVar[int]
    STORED_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    CONCERNS_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CALLER_ROLE_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    fleet: str
    phase: str
    protocol: str
    plan: int
    line_epoch: int
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    agents: int
    epochs_begun: int
    epochs_completed: int
    epochs_aborted: int
    epochs_open: int
    triggers_skipped: int
    last_complete_epoch: int
    reason: str
    hosts_expected: int
    mode: str
    log_messages: int
    log_bytes: int
    checkpoints: int
    forced: int
    piggyback_bytes: int
    piggybacked: int
    stored_log_bytes: int
    leader: str
    term: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    store: StoreStatus
    concerns: _containers.RepeatedCompositeFieldContainer[Concern]
    fork: ForkedFrom
    loss: LossStatus
    interval: IntervalStatus
    caller_role: str
    recovery: str
    def __init__(self, fleet: _Optional[str] = ..., phase: _Optional[str] = ..., protocol: _Optional[str] = ..., plan: _Optional[int] = ..., line_epoch: _Optional[int] = ..., hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., agents: _Optional[int] = ..., epochs_begun: _Optional[int] = ..., epochs_completed: _Optional[int] = ..., epochs_aborted: _Optional[int] = ..., epochs_open: _Optional[int] = ..., triggers_skipped: _Optional[int] = ..., last_complete_epoch: _Optional[int] = ..., reason: _Optional[str] = ..., hosts_expected: _Optional[int] = ..., mode: _Optional[str] = ..., log_messages: _Optional[int] = ..., log_bytes: _Optional[int] = ..., checkpoints: _Optional[int] = ..., forced: _Optional[int] = ..., piggyback_bytes: _Optional[int] = ..., piggybacked: _Optional[int] = ..., stored_log_bytes: _Optional[int] = ..., leader: _Optional[str] = ..., term: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., store: _Optional[_Union[StoreStatus, _Mapping]] = ..., concerns: _Optional[_Iterable[_Union[Concern, _Mapping]]] = ..., fork: _Optional[_Union[ForkedFrom, _Mapping]] = ..., loss: _Optional[_Union[LossStatus, _Mapping]] = ..., interval: _Optional[_Union[IntervalStatus, _Mapping]] = ..., caller_role: _Optional[str] = ..., recovery: _Optional[str] = ...) -> None: ...

class LossStatus(_message.Message):
    __slots__ = ("at_risk_ns", "failures", "observed_ns", "recoveries", "rpo_ns", "rto_ns", "missed")
    AT_RISK_NS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_NS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    RPO_NS_FIELD_NUMBER: _ClassVar[int]
    RTO_NS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    at_risk_ns: int
    failures: int
    observed_ns: int
    recoveries: _containers.RepeatedCompositeFieldContainer[RecoveryTime]
    rpo_ns: int
    rto_ns: int
    missed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, at_risk_ns: _Optional[int] = ..., failures: _Optional[int] = ..., observed_ns: _Optional[int] = ..., recoveries: _Optional[_Iterable[_Union[RecoveryTime, _Mapping]]] = ..., rpo_ns: _Optional[int] = ..., rto_ns: _Optional[int] = ..., missed: _Optional[_Iterable[str]] = ...) -> None: ...

class RecoveryTime(_message.Message):
    __slots__ = ("plan", "is_failure", "plan_ns", "load_ns", "agents", "rolled_back", "lost_ns", "checkpoints_lost")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IS_FAILURE_FIELD_NUMBER: _ClassVar[int]
    PLAN_NS_FIELD_NUMBER: _ClassVar[int]
    LOAD_NS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    LOST_NS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_LOST_FIELD_NUMBER: _ClassVar[int]
    plan: int
    is_failure: bool
    plan_ns: int
    load_ns: int
    agents: int
    rolled_back: int
    lost_ns: int
    checkpoints_lost: int
    def __init__(self, plan: _Optional[int] = ..., is_failure: bool = ..., plan_ns: _Optional[int] = ..., load_ns: _Optional[int] = ..., agents: _Optional[int] = ..., rolled_back: _Optional[int] = ..., lost_ns: _Optional[int] = ..., checkpoints_lost: _Optional[int] = ...) -> None: ...

class IntervalStatus(_message.Message):
    __slots__ = ("period_ns", "policy", "epochs", "duration_ns", "duration_max_ns", "gap_ns", "pause_ns", "capture_ns", "new_bytes", "state_bytes", "channel_state_bytes")
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MAX_NS_FIELD_NUMBER: _ClassVar[int]
    GAP_NS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_NS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_NS_FIELD_NUMBER: _ClassVar[int]
    NEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    period_ns: int
    policy: str
    epochs: int
    duration_ns: int
    duration_max_ns: int
    gap_ns: int
    pause_ns: int
    capture_ns: int
    new_bytes: int
    state_bytes: int
    channel_state_bytes: int
    def __init__(self, period_ns: _Optional[int] = ..., policy: _Optional[str] = ..., epochs: _Optional[int] = ..., duration_ns: _Optional[int] = ..., duration_max_ns: _Optional[int] = ..., gap_ns: _Optional[int] = ..., pause_ns: _Optional[int] = ..., capture_ns: _Optional[int] = ..., new_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., channel_state_bytes: _Optional[int] = ...) -> None: ...

class ForkedFrom(_message.Message):
    __slots__ = ("name", "parent", "parent_name", "epoch", "is_live")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PARENT_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_LIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    parent: str
    parent_name: str
    epoch: int
    is_live: bool
    def __init__(self, name: _Optional[str] = ..., parent: _Optional[str] = ..., parent_name: _Optional[str] = ..., epoch: _Optional[int] = ..., is_live: bool = ...) -> None: ...

class Concern(_message.Message):
    __slots__ = ("kind", "hosts", "since_ns", "text", "agents", "remedy")
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    since_ns: int
    text: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    remedy: str
    def __init__(self, kind: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ..., since_ns: _Optional[int] = ..., text: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., remedy: _Optional[str] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("state", "since_ns", "reason", "next_try_ns", "skipped", "location")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_NS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    state: str
    since_ns: int
    reason: str
    next_try_ns: int
    skipped: int
    location: str
    def __init__(self, state: _Optional[str] = ..., since_ns: _Optional[int] = ..., reason: _Optional[str] = ..., next_try_ns: _Optional[int] = ..., skipped: _Optional[int] = ..., location: _Optional[str] = ...) -> None: ...

class CreateSnapshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SnapshotOutcome(_message.Message):
    __slots__ = ("epoch", "is_complete", "reason", "root", "elapsed_ns")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_NS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    is_complete: bool
    reason: str
    root: str
    elapsed_ns: int
    def __init__(self, epoch: _Optional[int] = ..., is_complete: bool = ..., reason: _Optional[str] = ..., root: _Optional[str] = ..., elapsed_ns: _Optional[int] = ...) -> None: ...

class ReadSnapshotsRequest(_message.Message):
    __slots__ = ("verb", "snapshot", "agent")
    VERB_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    verb: str
    snapshot: str
    agent: str
    def __init__(self, verb: _Optional[str] = ..., snapshot: _Optional[str] = ..., agent: _Optional[str] = ...) -> None: ...

class RecoveryLineRequest(_message.Message):
    __slots__ = ("failed", "each")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    failed: _containers.RepeatedScalarFieldContainer[str]
    each: bool
    def __init__(self, failed: _Optional[_Iterable[str]] = ..., each: bool = ...) -> None: ...

class RecoveryHistoryRequest(_message.Message):
    __slots__ = ("stale",)
    STALE_FIELD_NUMBER: _ClassVar[int]
    stale: bool
    def __init__(self, stale: bool = ...) -> None: ...

class ReadReplicaRequest(_message.Message):
    __slots__ = ("verb",)
    VERB_FIELD_NUMBER: _ClassVar[int]
    verb: str
    def __init__(self, verb: _Optional[str] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("to", "only_from")
    TO_FIELD_NUMBER: _ClassVar[int]
    ONLY_FROM_FIELD_NUMBER: _ClassVar[int]
    to: str
    only_from: str
    def __init__(self, to: _Optional[str] = ..., only_from: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupReply(_message.Message):
    __slots__ = ("image", "cluster")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    image: bytes
    cluster: str
    def __init__(self, image: _Optional[bytes] = ..., cluster: _Optional[str] = ...) -> None: ...

class Document(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class SnapshotsReply(_message.Message):
    __slots__ = ("snapshot_list", "store_verification", "document")
    SNAPSHOT_LIST_FIELD_NUMBER: _ClassVar[int]
    STORE_VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    snapshot_list: SnapshotList
    store_verification: StoreVerification
    document: Document
    def __init__(self, snapshot_list: _Optional[_Union[SnapshotList, _Mapping]] = ..., store_verification: _Optional[_Union[StoreVerification, _Mapping]] = ..., document: _Optional[_Union[Document, _Mapping]] = ...) -> None: ...

class SnapshotList(_message.Message):
    __slots__ = ("store", "snapshots", "pins", "tags", "tags_damage", "fork")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STORE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    TAGS_DAMAGE_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    store: str
    snapshots: _containers.RepeatedCompositeFieldContainer[SnapshotSummary]
    pins: _containers.RepeatedScalarFieldContainer[int]
    tags: _containers.ScalarMap[str, int]
    tags_damage: str
    fork: ForkedFrom
    def __init__(self, store: _Optional[str] = ..., snapshots: _Optional[_Iterable[_Union[SnapshotSummary, _Mapping]]] = ..., pins: _Optional[_Iterable[int]] = ..., tags: _Optional[_Mapping[str, int]] = ..., tags_damage: _Optional[str] = ..., fork: _Optional[_Union[ForkedFrom, _Mapping]] = ...) -> None: ...

class SnapshotSummary(_message.Message):
    __slots__ = ("epoch", "root", "created", "trigger", "fleet", "protocol", "plan", "hosts", "agent_count", "state_bytes", "channel_state_messages", "channel_state_bytes", "stored_bytes", "pack_count", "damage")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    FLEET_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AGENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACK_COUNT_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    root: str
    created: str
    trigger: str
    fleet: str
    protocol: str
    plan: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    agent_count: int
    state_bytes: int
    channel_state_messages: int
    channel_state_bytes: int
    stored_bytes: int
    pack_count: int
    damage: str
    def __init__(self, epoch: _Optional[int] = ..., root: _Optional[str] = ..., created: _Optional[str] = ..., trigger: _Optional[str] = ..., fleet: _Optional[str] = ..., protocol: _Optional[str] = ..., plan: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., agent_count: _Optional[int] = ..., state_bytes: _Optional[int] = ..., channel_state_messages: _Optional[int] = ..., channel_state_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., pack_count: _Optional[int] = ..., damage: _Optional[str] = ...) -> None: ...

class StoreVerification(_message.Message):
    __slots__ = ("store", "epoch", "is_whole", "checked_files", "checked_bytes", "findings", "unreferenced")
    STORE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FILES_FIELD_NUMBER: _ClassVar[int]
    CHECKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    UNREFERENCED_FIELD_NUMBER: _ClassVar[int]
    store: str
    epoch: int
    is_whole: bool
    checked_files: int
    checked_bytes: int
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    unreferenced: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, store: _Optional[str] = ..., epoch: _Optional[int] = ..., is_whole: bool = ..., checked_files: _Optional[int] = ..., checked_bytes: _Optional[int] = ..., findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., unreferenced: _Optional[_Iterable[str]] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("path", "epoch", "reason", "agent", "number")
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    path: str
    epoch: int
    reason: str
    agent: str
    number: int
    def __init__(self, path: _Optional[str] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ..., agent: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class RecoveryLineReply(_message.Message):
    __slots__ = ("coordinated_line", "coordinated_lines", "autonomous_line", "autonomous_lines")
    COORDINATED_LINE_FIELD_NUMBER: _ClassVar[int]
    COORDINATED_LINES_FIELD_NUMBER: _ClassVar[int]
    AUTONOMOUS_LINE_FIELD_NUMBER: _ClassVar[int]
    AUTONOMOUS_LINES_FIELD_NUMBER: _ClassVar[int]
    coordinated_line: CoordinatedLine
    coordinated_lines: CoordinatedLines
    autonomous_line: AutonomousLine
    autonomous_lines: AutonomousLines
    def __init__(self, coordinated_line: _Optional[_Union[CoordinatedLine, _Mapping]] = ..., coordinated_lines: _Optional[_Union[CoordinatedLines, _Mapping]] = ..., autonomous_line: _Optional[_Union[AutonomousLine, _Mapping]] = ..., autonomous_lines: _Optional[_Union[AutonomousLines, _Mapping]] = ...) -> None: ...

class CoordinatedLine(_message.Message):
    __slots__ = ("failed", "epoch", "root", "recovery_line", "unborn", "rolled_back", "messages_delivered_again")
    class RecoveryLineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_LINE_FIELD_NUMBER: _ClassVar[int]
    UNBORN_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DELIVERED_AGAIN_FIELD_NUMBER: _ClassVar[int]
    failed: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    root: str
    recovery_line: _containers.ScalarMap[str, int]
    unborn: _containers.RepeatedScalarFieldContainer[str]
    rolled_back: int
    messages_delivered_again: int
    def __init__(self, failed: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., root: _Optional[str] = ..., recovery_line: _Optional[_Mapping[str, int]] = ..., unborn: _Optional[_Iterable[str]] = ..., rolled_back: _Optional[int] = ..., messages_delivered_again: _Optional[int] = ...) -> None: ...

class CoordinatedLines(_message.Message):
    __slots__ = ("epoch", "failures", "rolled_back", "hosts")
    class HostsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    failures: _containers.RepeatedScalarFieldContainer[str]
    rolled_back: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.ScalarMap[str, str]
    def __init__(self, epoch: _Optional[int] = ..., failures: _Optional[_Iterable[str]] = ..., rolled_back: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AgentOnLine(_message.Message):
    __slots__ = ("agent", "to", "checkpoints", "turns")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    to: int
    checkpoints: int
    turns: int
    def __init__(self, agent: _Optional[str] = ..., to: _Optional[int] = ..., checkpoints: _Optional[int] = ..., turns: _Optional[int] = ...) -> None: ...

class AutonomousLine(_message.Message):
    __slots__ = ("failed", "epoch", "root", "agents", "in_transit", "silent_hosts")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    IN_TRANSIT_FIELD_NUMBER: _ClassVar[int]
    SILENT_HOSTS_FIELD_NUMBER: _ClassVar[int]
    failed: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    root: str
    agents: _containers.RepeatedCompositeFieldContainer[AgentOnLine]
    in_transit: int
    silent_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, failed: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ..., root: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[AgentOnLine, _Mapping]]] = ..., in_transit: _Optional[int] = ..., silent_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class FailureCost(_message.Message):
    __slots__ = ("failed", "agents")
    FAILED_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    failed: str
    agents: _containers.RepeatedCompositeFieldContainer[AgentOnLine]
    def __init__(self, failed: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[AgentOnLine, _Mapping]]] = ...) -> None: ...

class AutonomousLines(_message.Message):
    __slots__ = ("lines", "silent_hosts")
    LINES_FIELD_NUMBER: _ClassVar[int]
    SILENT_HOSTS_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[FailureCost]
    silent_hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[_Union[FailureCost, _Mapping]]] = ..., silent_hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class RecoveryHistoryReply(_message.Message):
    __slots__ = ("recoveries", "condemned_epochs")
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    recoveries: _containers.RepeatedCompositeFieldContainer[PastRecovery]
    condemned_epochs: _containers.RepeatedCompositeFieldContainer[CondemnedEpoch]
    def __init__(self, recoveries: _Optional[_Iterable[_Union[PastRecovery, _Mapping]]] = ..., condemned_epochs: _Optional[_Iterable[_Union[CondemnedEpoch, _Mapping]]] = ...) -> None: ...

class PastRecovery(_message.Message):
    __slots__ = ("plan", "line_epoch", "line_root", "reason", "lost_hosts", "hosts", "agents", "rolled_back", "checkpoints_lost", "messages_delivered_again", "condemned_epochs", "suspected", "committed", "done", "duration_s", "is_restore", "is_dropping_inputs", "void_epochs")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LINE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LINE_ROOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_HOSTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_LOST_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_DELIVERED_AGAIN_FIELD_NUMBER: _ClassVar[int]
    CONDEMNED_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SUSPECTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    IS_RESTORE_FIELD_NUMBER: _ClassVar[int]
    IS_DROPPING_INPUTS_FIELD_NUMBER: _ClassVar[int]
    VOID_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    line_epoch: int
    line_root: str
    reason: str
    lost_hosts: _containers.RepeatedScalarFieldContainer[str]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    agents: int
    rolled_back: int
    checkpoints_lost: int
    messages_delivered_again: int
    condemned_epochs: _containers.RepeatedScalarFieldContainer[int]
    suspected: str
    committed: str
    done: str
    duration_s: float
    is_restore: bool
    is_dropping_inputs: bool
    void_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan: _Optional[int] = ..., line_epoch: _Optional[int] = ..., line_root: _Optional[str] = ..., reason: _Optional[str] = ..., lost_hosts: _Optional[_Iterable[str]] = ..., hosts: _Optional[_Iterable[str]] = ..., agents: _Optional[int] = ..., rolled_back: _Optional[int] = ..., checkpoints_lost: _Optional[int] = ..., messages_delivered_again: _Optional[int] = ..., condemned_epochs: _Optional[_Iterable[int]] = ..., suspected: _Optional[str] = ..., committed: _Optional[str] = ..., done: _Optional[str] = ..., duration_s: _Optional[float] = ..., is_restore: bool = ..., is_dropping_inputs: bool = ..., void_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class PreviewRestoreRequest(_message.Message):
    __slots__ = ("snapshot", "drop_inputs")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DROP_INPUTS_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    drop_inputs: bool
    def __init__(self, snapshot: _Optional[str] = ..., drop_inputs: bool = ...) -> None: ...

class RestorePreview(_message.Message):
    __slots__ = ("epoch", "root", "created", "age_s", "void_epochs", "agents_gone", "agents_back", "is_dropping_inputs", "inputs", "outputs", "effects", "dependencies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    VOID_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_GONE_FIELD_NUMBER: _ClassVar[int]
    AGENTS_BACK_FIELD_NUMBER: _ClassVar[int]
    IS_DROPPING_INPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    root: str
    created: str
    age_s: float
    void_epochs: _containers.RepeatedScalarFieldContainer[int]
    agents_gone: _containers.RepeatedScalarFieldContainer[str]
    agents_back: _containers.RepeatedScalarFieldContainer[str]
    is_dropping_inputs: bool
    inputs: _containers.RepeatedCompositeFieldContainer[InputsAgain]
    outputs: _containers.RepeatedCompositeFieldContainer[TopicUndone]
    effects: _containers.RepeatedScalarFieldContainer[str]
    dependencies: _containers.RepeatedCompositeFieldContainer[DependencyChange]
    def __init__(self, epoch: _Optional[int] = ..., root: _Optional[str] = ..., created: _Optional[str] = ..., age_s: _Optional[float] = ..., void_epochs: _Optional[_Iterable[int]] = ..., agents_gone: _Optional[_Iterable[str]] = ..., agents_back: _Optional[_Iterable[str]] = ..., is_dropping_inputs: bool = ..., inputs: _Optional[_Iterable[_Union[InputsAgain, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TopicUndone, _Mapping]]] = ..., effects: _Optional[_Iterable[str]] = ..., dependencies: _Optional[_Iterable[_Union[DependencyChange, _Mapping]]] = ...) -> None: ...

class DependencyChange(_message.Message):
    __slots__ = ("name", "before", "now", "is_refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    IS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    before: _containers.RepeatedScalarFieldContainer[str]
    now: _containers.RepeatedScalarFieldContainer[str]
    is_refused: bool
    def __init__(self, name: _Optional[str] = ..., before: _Optional[_Iterable[str]] = ..., now: _Optional[_Iterable[str]] = ..., is_refused: bool = ...) -> None: ...

class InputsAgain(_message.Message):
    __slots__ = ("agent", "first", "count", "missing")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    agent: str
    first: int
    count: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, agent: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ...) -> None: ...

class TopicUndone(_message.Message):
    __slots__ = ("topic", "count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    count: int
    def __init__(self, topic: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("snapshot", "drop_inputs", "reason", "token", "accept_changes")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DROP_INPUTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_CHANGES_FIELD_NUMBER: _ClassVar[int]
    snapshot: str
    drop_inputs: bool
    reason: str
    token: str
    accept_changes: bool
    def __init__(self, snapshot: _Optional[str] = ..., drop_inputs: bool = ..., reason: _Optional[str] = ..., token: _Optional[str] = ..., accept_changes: bool = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("plan", "epoch", "void_epochs")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOID_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    plan: int
    epoch: int
    void_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan: _Optional[int] = ..., epoch: _Optional[int] = ..., void_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class CondemnedEpoch(_message.Message):
    __slots__ = ("epoch", "path", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    path: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., path: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaderTransferred(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class ForgetHostRequest(_message.Message):
    __slots__ = ("host",)
    HOST_FIELD_NUMBER: _ClassVar[int]
    host: str
    def __init__(self, host: _Optional[str] = ...) -> None: ...

class ForgetHostReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveAgentsRequest(_message.Message):
    __slots__ = ("drained", "resumed", "is_even", "placed")
    class PlacedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    IS_EVEN_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    drained: _containers.RepeatedScalarFieldContainer[str]
    resumed: _containers.RepeatedScalarFieldContainer[str]
    is_even: bool
    placed: _containers.ScalarMap[str, str]
    def __init__(self, drained: _Optional[_Iterable[str]] = ..., resumed: _Optional[_Iterable[str]] = ..., is_even: bool = ..., placed: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MoveAgentsReply(_message.Message):
    __slots__ = ("plan", "is_moving")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    IS_MOVING_FIELD_NUMBER: _ClassVar[int]
    plan: int
    is_moving: bool
    def __init__(self, plan: _Optional[int] = ..., is_moving: bool = ...) -> None: ...

class EndReplicaRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class EndReplicaReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndHostRequest(_message.Message):
    __slots__ = ("host", "host_start")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ...) -> None: ...

class EndHostReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportHostExitRequest(_message.Message):
    __slots__ = ("host", "instance", "reason", "died_in")
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIED_IN_FIELD_NUMBER: _ClassVar[int]
    host: str
    instance: str
    reason: str
    died_in: _containers.RepeatedCompositeFieldContainer[TurnDeath]
    def __init__(self, host: _Optional[str] = ..., instance: _Optional[str] = ..., reason: _Optional[str] = ..., died_in: _Optional[_Iterable[_Union[TurnDeath, _Mapping]]] = ...) -> None: ...

class ReportHostExitReply(_message.Message):
    __slots__ = ("is_known",)
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    def __init__(self, is_known: bool = ...) -> None: ...

class ReportHostBusyRequest(_message.Message):
    __slots__ = ("host", "instance", "busy_ns", "what")
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    BUSY_NS_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    host: str
    instance: str
    busy_ns: int
    what: str
    def __init__(self, host: _Optional[str] = ..., instance: _Optional[str] = ..., busy_ns: _Optional[int] = ..., what: _Optional[str] = ...) -> None: ...

class ReportHostBusyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("agents", "all")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    def __init__(self, agents: _Optional[_Iterable[str]] = ..., all: bool = ...) -> None: ...

class LocateReply(_message.Message):
    __slots__ = ("phase", "reason", "agents")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    reason: str
    agents: _containers.RepeatedCompositeFieldContainer[LocatedAgent]
    def __init__(self, phase: _Optional[str] = ..., reason: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[LocatedAgent, _Mapping]]] = ...) -> None: ...

class LocatedAgent(_message.Message):
    __slots__ = ("agent", "state", "host", "address", "incarnation")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    agent: str
    state: str
    host: str
    address: str
    incarnation: int
    def __init__(self, agent: _Optional[str] = ..., state: _Optional[str] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReadOutputsRequest(_message.Message):
    __slots__ = ("after", "topic", "wait_ms")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    after: str
    topic: str
    wait_ms: int
    def __init__(self, after: _Optional[str] = ..., topic: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadOutputsReply(_message.Message):
    __slots__ = ("releases", "cursor", "is_over")
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[ReleasedOutputs]
    cursor: str
    is_over: bool
    def __init__(self, releases: _Optional[_Iterable[_Union[ReleasedOutputs, _Mapping]]] = ..., cursor: _Optional[str] = ..., is_over: bool = ...) -> None: ...

class ReleasedOutputs(_message.Message):
    __slots__ = ("epoch", "undone", "outputs")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNDONE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    undone: UndoneOutputs
    outputs: _containers.RepeatedCompositeFieldContainer[ReleasedOutput]
    def __init__(self, epoch: _Optional[int] = ..., undone: _Optional[_Union[UndoneOutputs, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[ReleasedOutput, _Mapping]]] = ...) -> None: ...

class UndoneOutputs(_message.Message):
    __slots__ = ("after", "epochs", "cursor")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    after: int
    epochs: _containers.RepeatedScalarFieldContainer[int]
    cursor: str
    def __init__(self, after: _Optional[int] = ..., epochs: _Optional[_Iterable[int]] = ..., cursor: _Optional[str] = ...) -> None: ...

class ReleasedOutput(_message.Message):
    __slots__ = ("agent", "number", "topic", "payload", "emitted_ns", "cursor")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    EMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    agent: str
    number: int
    topic: str
    payload: bytes
    emitted_ns: int
    cursor: str
    def __init__(self, agent: _Optional[str] = ..., number: _Optional[int] = ..., topic: _Optional[str] = ..., payload: _Optional[bytes] = ..., emitted_ns: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ReadConsumersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadConsumersReply(_message.Message):
    __slots__ = ("consumers",)
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[Consumer]
    def __init__(self, consumers: _Optional[_Iterable[_Union[Consumer, _Mapping]]] = ...) -> None: ...

class Consumer(_message.Message):
    __slots__ = ("name", "cursor", "acknowledged_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    cursor: str
    acknowledged_ns: int
    def __init__(self, name: _Optional[str] = ..., cursor: _Optional[str] = ..., acknowledged_ns: _Optional[int] = ...) -> None: ...

class MoveConsumerRequest(_message.Message):
    __slots__ = ("name", "cursor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    cursor: str
    def __init__(self, name: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class MoveConsumerReply(_message.Message):
    __slots__ = ("cursor",)
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    def __init__(self, cursor: _Optional[str] = ...) -> None: ...

class ForgetConsumerRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ForgetConsumerReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MakeTokenRequest(_message.Message):
    __slots__ = ("name", "role", "digest", "valid_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    digest: bytes
    valid_s: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., digest: _Optional[bytes] = ..., valid_s: _Optional[int] = ...) -> None: ...

class MakeTokenReply(_message.Message):
    __slots__ = ("expires_ns",)
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    expires_ns: int
    def __init__(self, expires_ns: _Optional[int] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenStatus]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenStatus, _Mapping]]] = ...) -> None: ...

class TokenStatus(_message.Message):
    __slots__ = ("name", "role", "made_ns", "expires_ns", "is_expired")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MADE_NS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    IS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    made_ns: int
    expires_ns: int
    is_expired: bool
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., made_ns: _Optional[int] = ..., expires_ns: _Optional[int] = ..., is_expired: bool = ...) -> None: ...

class CheckTokenRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    def __init__(self, digest: _Optional[bytes] = ...) -> None: ...

class CheckTokenReply(_message.Message):
    __slots__ = ("name", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class RecordCallRequest(_message.Message):
    __slots__ = ("digest", "call", "about", "outcome", "certificate")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    call: str
    about: str
    outcome: str
    certificate: bytes
    def __init__(self, digest: _Optional[bytes] = ..., call: _Optional[str] = ..., about: _Optional[str] = ..., outcome: _Optional[str] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class RecordCallReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadAuditRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class ReadAuditReply(_message.Message):
    __slots__ = ("calls", "dropped")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[RecordedCall]
    dropped: int
    def __init__(self, calls: _Optional[_Iterable[_Union[RecordedCall, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class RecordedCall(_message.Message):
    __slots__ = ("number", "made_ns", "name", "role", "is_borne", "at", "call", "about", "outcome")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MADE_NS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IS_BORNE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    number: int
    made_ns: int
    name: str
    role: str
    is_borne: bool
    at: str
    call: str
    about: str
    outcome: str
    def __init__(self, number: _Optional[int] = ..., made_ns: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., is_borne: bool = ..., at: _Optional[str] = ..., call: _Optional[str] = ..., about: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...
