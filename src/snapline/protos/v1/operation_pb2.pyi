from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(_message.Message):
    __slots__ = ("version", "now_ns", "client", "sequence", "define_fleet", "define_agents", "admit_host", "lose_hosts", "commit_plan", "confirm_plan", "begin_epoch", "complete_epoch", "abort_epoch", "condemn_epoch", "forget_epochs", "create_agents", "remove_agent", "end_fleet", "forget_hosts", "open_host_log", "restore", "make_token", "revoke_token", "record_call", "drain_hosts", "forgive_turn")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEFINE_FLEET_FIELD_NUMBER: _ClassVar[int]
    DEFINE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    ADMIT_HOST_FIELD_NUMBER: _ClassVar[int]
    LOSE_HOSTS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_PLAN_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_PLAN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ABORT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONDEMN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FORGET_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    CREATE_AGENTS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_AGENT_FIELD_NUMBER: _ClassVar[int]
    END_FLEET_FIELD_NUMBER: _ClassVar[int]
    FORGET_HOSTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_HOST_LOG_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    MAKE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORD_CALL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_HOSTS_FIELD_NUMBER: _ClassVar[int]
    FORGIVE_TURN_FIELD_NUMBER: _ClassVar[int]
    version: int
    now_ns: int
    client: str
    sequence: int
    define_fleet: DefineFleet
    define_agents: DefineAgents
    admit_host: AdmitHost
    lose_hosts: LoseHosts
    commit_plan: CommitPlan
    confirm_plan: ConfirmPlan
    begin_epoch: BeginEpochOperation
    complete_epoch: CompleteEpoch
    abort_epoch: AbortEpoch
    condemn_epoch: CondemnEpoch
    forget_epochs: ForgetEpochs
    create_agents: CreateAgents
    remove_agent: RemoveAgent
    end_fleet: EndFleet
    forget_hosts: ForgetHosts
    open_host_log: OpenHostLog
    restore: Restore
    make_token: MakeToken
    revoke_token: RevokeToken
    record_call: RecordCall
    drain_hosts: DrainHosts
    forgive_turn: ForgiveTurn
    def __init__(self, version: _Optional[int] = ..., now_ns: _Optional[int] = ..., client: _Optional[str] = ..., sequence: _Optional[int] = ..., define_fleet: _Optional[_Union[DefineFleet, _Mapping]] = ..., define_agents: _Optional[_Union[DefineAgents, _Mapping]] = ..., admit_host: _Optional[_Union[AdmitHost, _Mapping]] = ..., lose_hosts: _Optional[_Union[LoseHosts, _Mapping]] = ..., commit_plan: _Optional[_Union[CommitPlan, _Mapping]] = ..., confirm_plan: _Optional[_Union[ConfirmPlan, _Mapping]] = ..., begin_epoch: _Optional[_Union[BeginEpochOperation, _Mapping]] = ..., complete_epoch: _Optional[_Union[CompleteEpoch, _Mapping]] = ..., abort_epoch: _Optional[_Union[AbortEpoch, _Mapping]] = ..., condemn_epoch: _Optional[_Union[CondemnEpoch, _Mapping]] = ..., forget_epochs: _Optional[_Union[ForgetEpochs, _Mapping]] = ..., create_agents: _Optional[_Union[CreateAgents, _Mapping]] = ..., remove_agent: _Optional[_Union[RemoveAgent, _Mapping]] = ..., end_fleet: _Optional[_Union[EndFleet, _Mapping]] = ..., forget_hosts: _Optional[_Union[ForgetHosts, _Mapping]] = ..., open_host_log: _Optional[_Union[OpenHostLog, _Mapping]] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., make_token: _Optional[_Union[MakeToken, _Mapping]] = ..., revoke_token: _Optional[_Union[RevokeToken, _Mapping]] = ..., record_call: _Optional[_Union[RecordCall, _Mapping]] = ..., drain_hosts: _Optional[_Union[DrainHosts, _Mapping]] = ..., forgive_turn: _Optional[_Union[ForgiveTurn, _Mapping]] = ...) -> None: ...

class DefineFleet(_message.Message):
    __slots__ = ("cluster", "name", "protocol", "period_ns", "epoch_timeout_ns", "definition_digest", "agents", "never_stops", "policy", "log_bytes_max", "places", "rpo_ns", "rto_ns", "parts", "recovery")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PERIOD_NS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    NEVER_STOPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    RPO_NS_FIELD_NUMBER: _ClassVar[int]
    RTO_NS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    name: str
    protocol: str
    period_ns: int
    epoch_timeout_ns: int
    definition_digest: bytes
    agents: int
    never_stops: bool
    policy: str
    log_bytes_max: int
    places: _containers.RepeatedCompositeFieldContainer[PlaceRuleOperation]
    rpo_ns: int
    rto_ns: int
    parts: _containers.RepeatedScalarFieldContainer[str]
    recovery: str
    def __init__(self, cluster: _Optional[str] = ..., name: _Optional[str] = ..., protocol: _Optional[str] = ..., period_ns: _Optional[int] = ..., epoch_timeout_ns: _Optional[int] = ..., definition_digest: _Optional[bytes] = ..., agents: _Optional[int] = ..., never_stops: bool = ..., policy: _Optional[str] = ..., log_bytes_max: _Optional[int] = ..., places: _Optional[_Iterable[_Union[PlaceRuleOperation, _Mapping]]] = ..., rpo_ns: _Optional[int] = ..., rto_ns: _Optional[int] = ..., parts: _Optional[_Iterable[str]] = ..., recovery: _Optional[str] = ...) -> None: ...

class PlaceRuleOperation(_message.Message):
    __slots__ = ("agents", "hosts")
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    agents: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agents: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class DefineAgents(_message.Message):
    __slots__ = ("first", "agents", "kinds")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    first: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class TurnDeathOperation(_message.Message):
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

class AdmitHost(_message.Message):
    __slots__ = ("host", "instance", "address", "expected_start", "died", "died_in", "ran_until_ns", "dependencies")
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
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    DIED_IN_FIELD_NUMBER: _ClassVar[int]
    RAN_UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    host: str
    instance: str
    address: str
    expected_start: int
    died: str
    died_in: _containers.RepeatedCompositeFieldContainer[TurnDeathOperation]
    ran_until_ns: int
    dependencies: _containers.ScalarMap[str, str]
    def __init__(self, host: _Optional[str] = ..., instance: _Optional[str] = ..., address: _Optional[str] = ..., expected_start: _Optional[int] = ..., died: _Optional[str] = ..., died_in: _Optional[_Iterable[_Union[TurnDeathOperation, _Mapping]]] = ..., ran_until_ns: _Optional[int] = ..., dependencies: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LostHost(_message.Message):
    __slots__ = ("host", "host_start", "died_in")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    DIED_IN_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    died_in: _containers.RepeatedCompositeFieldContainer[TurnDeathOperation]
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., died_in: _Optional[_Iterable[_Union[TurnDeathOperation, _Mapping]]] = ...) -> None: ...

class LoseHosts(_message.Message):
    __slots__ = ("hosts", "reason", "is_leaving", "is_spare", "ran_until_ns")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    IS_SPARE_FIELD_NUMBER: _ClassVar[int]
    RAN_UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[LostHost]
    reason: str
    is_leaving: bool
    is_spare: bool
    ran_until_ns: int
    def __init__(self, hosts: _Optional[_Iterable[_Union[LostHost, _Mapping]]] = ..., reason: _Optional[str] = ..., is_leaving: bool = ..., is_spare: bool = ..., ran_until_ns: _Optional[int] = ...) -> None: ...

class ForgetHosts(_message.Message):
    __slots__ = ("hosts",)
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainHosts(_message.Message):
    __slots__ = ("hosts", "is_drained")
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINED_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    is_drained: bool
    def __init__(self, hosts: _Optional[_Iterable[str]] = ..., is_drained: bool = ...) -> None: ...

class ForgiveTurn(_message.Message):
    __slots__ = ("agent", "digest")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    agent: str
    digest: bytes
    def __init__(self, agent: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class CommitPlan(_message.Message):
    __slots__ = ("expected_plan", "line_epoch", "hosts", "reason", "rolled_back", "checkpoints_lost", "is_even", "is_move", "weights", "restarted", "placed", "frozen")
    class PlacedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EXPECTED_PLAN_FIELD_NUMBER: _ClassVar[int]
    LINE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_LOST_FIELD_NUMBER: _ClassVar[int]
    IS_EVEN_FIELD_NUMBER: _ClassVar[int]
    IS_MOVE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    expected_plan: int
    line_epoch: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    rolled_back: int
    checkpoints_lost: int
    is_even: bool
    is_move: bool
    weights: _containers.RepeatedScalarFieldContainer[int]
    restarted: _containers.RepeatedScalarFieldContainer[str]
    placed: _containers.ScalarMap[str, str]
    frozen: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, expected_plan: _Optional[int] = ..., line_epoch: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., rolled_back: _Optional[int] = ..., checkpoints_lost: _Optional[int] = ..., is_even: bool = ..., is_move: bool = ..., weights: _Optional[_Iterable[int]] = ..., restarted: _Optional[_Iterable[str]] = ..., placed: _Optional[_Mapping[str, str]] = ..., frozen: _Optional[_Iterable[str]] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("expected_plan", "line_epoch", "hosts", "reason", "rolled_back", "checkpoints_lost", "request", "drop_inputs", "agent", "place", "asked", "done", "at_most")
    EXPECTED_PLAN_FIELD_NUMBER: _ClassVar[int]
    LINE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_LOST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    DROP_INPUTS_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_FIELD_NUMBER: _ClassVar[int]
    expected_plan: int
    line_epoch: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    rolled_back: int
    checkpoints_lost: int
    request: str
    drop_inputs: bool
    agent: str
    place: str
    asked: str
    done: bytes
    at_most: int
    def __init__(self, expected_plan: _Optional[int] = ..., line_epoch: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., rolled_back: _Optional[int] = ..., checkpoints_lost: _Optional[int] = ..., request: _Optional[str] = ..., drop_inputs: bool = ..., agent: _Optional[str] = ..., place: _Optional[str] = ..., asked: _Optional[str] = ..., done: _Optional[bytes] = ..., at_most: _Optional[int] = ...) -> None: ...

class ConfirmPlan(_message.Message):
    __slots__ = ("plan", "host", "host_start")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    plan: int
    host: str
    host_start: int
    def __init__(self, plan: _Optional[int] = ..., host: _Optional[str] = ..., host_start: _Optional[int] = ...) -> None: ...

class BeginEpochOperation(_message.Message):
    __slots__ = ("expected_begun", "trigger")
    EXPECTED_BEGUN_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    expected_begun: int
    trigger: str
    def __init__(self, expected_begun: _Optional[int] = ..., trigger: _Optional[str] = ...) -> None: ...

class CompleteEpoch(_message.Message):
    __slots__ = ("epoch", "root", "unborn_agents", "state_bytes", "channel_state_bytes", "channel_state_messages", "account")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    UNBORN_AGENTS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_STATE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    root: str
    unborn_agents: _containers.RepeatedScalarFieldContainer[str]
    state_bytes: int
    channel_state_bytes: int
    channel_state_messages: int
    account: EpochAccount
    def __init__(self, epoch: _Optional[int] = ..., root: _Optional[str] = ..., unborn_agents: _Optional[_Iterable[str]] = ..., state_bytes: _Optional[int] = ..., channel_state_bytes: _Optional[int] = ..., channel_state_messages: _Optional[int] = ..., account: _Optional[_Union[EpochAccount, _Mapping]] = ...) -> None: ...

class AbortEpoch(_message.Message):
    __slots__ = ("epoch", "reason", "account")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reason: str
    account: EpochAccount
    def __init__(self, epoch: _Optional[int] = ..., reason: _Optional[str] = ..., account: _Optional[_Union[EpochAccount, _Mapping]] = ...) -> None: ...

class EpochAccount(_message.Message):
    __slots__ = ("reports", "new_bytes", "last", "late")
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    NEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    reports: int
    new_bytes: int
    last: PartTimes
    late: PartTimes
    def __init__(self, reports: _Optional[int] = ..., new_bytes: _Optional[int] = ..., last: _Optional[_Union[PartTimes, _Mapping]] = ..., late: _Optional[_Union[PartTimes, _Mapping]] = ...) -> None: ...

class PartTimes(_message.Message):
    __slots__ = ("host", "agent", "after_ns", "start_delay_ns", "capture_ns", "alignment_ns", "store_ns")
    HOST_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    AFTER_NS_FIELD_NUMBER: _ClassVar[int]
    START_DELAY_NS_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_NS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_NS_FIELD_NUMBER: _ClassVar[int]
    STORE_NS_FIELD_NUMBER: _ClassVar[int]
    host: str
    agent: str
    after_ns: int
    start_delay_ns: int
    capture_ns: int
    alignment_ns: int
    store_ns: int
    def __init__(self, host: _Optional[str] = ..., agent: _Optional[str] = ..., after_ns: _Optional[int] = ..., start_delay_ns: _Optional[int] = ..., capture_ns: _Optional[int] = ..., alignment_ns: _Optional[int] = ..., store_ns: _Optional[int] = ...) -> None: ...

class CondemnEpoch(_message.Message):
    __slots__ = ("epoch", "path", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    path: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., path: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ForgetEpochs(_message.Message):
    __slots__ = ("epochs",)
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateAgents(_message.Message):
    __slots__ = ("host", "host_start", "plan", "agents", "kinds", "parent")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    plan: int
    agents: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    parent: str
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., plan: _Optional[int] = ..., agents: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[str]] = ..., parent: _Optional[str] = ...) -> None: ...

class RemoveAgent(_message.Message):
    __slots__ = ("host", "host_start", "plan", "agent")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    plan: int
    agent: str
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., plan: _Optional[int] = ..., agent: _Optional[str] = ...) -> None: ...

class OpenHostLog(_message.Message):
    __slots__ = ("host", "host_start", "plan", "key", "newest")
    HOST_FIELD_NUMBER: _ClassVar[int]
    HOST_START_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_start: int
    plan: int
    key: bytes
    newest: int
    def __init__(self, host: _Optional[str] = ..., host_start: _Optional[int] = ..., plan: _Optional[int] = ..., key: _Optional[bytes] = ..., newest: _Optional[int] = ...) -> None: ...

class EndFleet(_message.Message):
    __slots__ = ("epoch", "outcome", "reason", "is_newest")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    IS_NEWEST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcome: str
    reason: str
    is_newest: bool
    def __init__(self, epoch: _Optional[int] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., is_newest: bool = ...) -> None: ...

class MakeToken(_message.Message):
    __slots__ = ("name", "role", "digest", "expires_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    digest: bytes
    expires_ns: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., digest: _Optional[bytes] = ..., expires_ns: _Optional[int] = ...) -> None: ...

class RevokeToken(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RecordCall(_message.Message):
    __slots__ = ("name", "role", "digest", "at", "call", "about", "outcome")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    digest: bytes
    at: str
    call: str
    about: str
    outcome: str
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., digest: _Optional[bytes] = ..., at: _Optional[str] = ..., call: _Optional[str] = ..., about: _Optional[str] = ..., outcome: _Optional[str] = ...) -> None: ...
