"""Messages between hosts, tools and the coordinator.

`host_messages.py` defines the structs that hosts and the coordinator exchange. `status.py` and `answers.py` define the replies to tools.
Structs and their fields have the same names as in `coordinator.proto`. `wire.py` converts between structs and protobuf messages. Only
`wire.py`, `client_wire.py` and the gRPC servicers use protobuf. The host core and the leader core use the structs directly. `Plan` is an
exception. On the wire, a plan consists of columns with indices, which are replaced by names before the plan reaches the host core.

A host's stream
---------------
A host first sends `Join` and receives a reply. After this reply, both the host and the coordinator may send messages at any time. A message
that needs a reply is resent on every new stream until the reply arrives. So any message may arrive twice, but messages on the same stream
arrive in the order in which they were sent. The letter at the start of each row is the sender: H for a host, C for the coordinator.

    | message                | sent when                                        | answered by                                 |
    |------------------------|--------------------------------------------------|---------------------------------------------|
    | H Join                 | first on every stream                            | Welcome, ReadProbe or TurnedAway            |
    | C ReadProbe            | before a run of a host is admitted               | ProbeRead                                   |
    | C Welcome              | the run is admitted                              | FleetDefinition, if requested               |
    | C TurnedAway           | the run is rejected, or no longer admitted       |                                             |
    | C Roster               | the set of live hosts has changed                |                                             |
    | H Heartbeat            | at the interval given in Welcome                 |                                             |
    | H PeerSuspected        | a link is silent                                 |                                             |
    | H AgentFailed          | an agent cannot go on                            |                                             |
    | C Plan                 | the fleet (re)starts from a line                 | PlanApplied or PlanRefused                  |
    | C BeginEpoch           | an epoch is committed, or needs a full report    | EpochReport or EpochRefused                 |
    | C EndEpoch             | it is complete or aborted; again on release      |                                             |
    | H CheckpointsStored    | checkpoints of single agents are durable         | CheckpointsKnown                            |
    | C RequestCheckpoints   | a round asks agents (koo-toueg)                  | CheckpointsAnswered                         |
    | C FreezeAgents         | before a plan, if agents checkpoint on their own | AgentsFrozen                                |
    | C ThawAgents           | the freeze has ended                             |                                             |
    | C ReportNumbers        | a tool asks for a recovery line                  | NumbersReported                             |
    | H ReserveAgents        | a turn spawns                                    | AgentsReserved                              |
    | H RetireAgent          | an agent has stopped                             | AgentRetired                                |
    | H LocateAgents         | an agent sends to an agent that the plan lacks   | AgentsLocated                               |
    | H OpenLog              | a plan's host log is to be written, or was       | LogOpened                                   |
    | H WantEpoch            | a client waits for a complete epoch              |                                             |
    | H WantRollback         | a turn requests a rollback of the fleet          | Plan or RollbackRefused                     |
    | H TurnSurvived         | a turn that had killed processes ends well       |                                             |
    | C OutputsWatched       | a client starts or stops reading outputs live    |                                             |
    | C EvaluateStop         | an epoch is complete, and the fleet may stop     | StopEvaluated                               |
    | C Finish               | the fleet has ended                              |                                             |
    | C Quiesce              | the fleet, a host or agents are to end or move   | Quiesced, when no effect call is running    |
    | H WantLeave            | a host is to stop                                | MayLeave, when a snapshot holds its agents  |
    | H Leave                | a host leaves on its own initiative              |                                             |
    | H MessagePart          | a part of a message above the size limit         |                                             |

Calls of tools
--------------
Each call consists of one request to the leading replica and one reply (`coordinator_client.py`). `answers.py` converts the reply to the
document that the option `-o json` prints.

    | command                                | call             | answer                                                     |
    |----------------------------------------|------------------|------------------------------------------------------------|
    | `status`                               | Status           | FleetStatus                                                |
    | `snapshot create`                      | CreateSnapshot   | SnapshotOutcome                                            |
    | `snapshot list`, `show`, `verify`      | ReadSnapshots    | SnapshotList, Document, StoreVerification                  |
    | `snapshot history`                     | ReadSnapshots    | Document                                                   |
    | `recovery line`                        | RecoveryLine     | CoordinatedLine or AutonomousLine; with `--each` …Lines    |
    | `recovery history`                     | RecoveryHistory  | RecoveryHistoryReply                                       |
    | `recovery restore`                     | PreviewRestore   | RestorePreview                                             |
    | the same, and `snapline.Client`        | Restore          | RestoreReply, when the plan is committed                   |
    | `output tail`, and `snapline.Client`   | ReadOutputs      | ReadOutputsReply: a page, as soon as there is an output    |
    | `output consumers list`                | ReadConsumers    | ReadConsumersReply                                         |
    | `snapline.Client`                      | MoveConsumer     | MoveConsumerReply                                          |
    | `output consumers forget`              | ForgetConsumer   | acknowledgement                                            |
    | `host forget`                          | ForgetHost       | acknowledgement                                            |
    | `host drain`, `resume`, `spread`       | MoveAgents       | acknowledgement: hosts are marked                          |
    | `host kill`                            | EndHost          | acknowledgement: the host is notified                      |
    | `restart`                              | EndReplica       | acknowledgement: the replica is about to end               |
    | `agent list`, and `snapline.Client`    | Locate           | LocateReply                                                |
    | `auth token create`                    | MakeToken        | MakeTokenReply: when the token expires                     |
    | `auth token revoke`                    | RevokeToken      | acknowledgement                                            |
    | `auth token list`                      | ReadTokens       | ReadTokensReply                                            |
    | `audit`                                | ReadAudit        | ReadAuditReply                                             |
    | a host that a user has called          | CheckToken       | CheckTokenReply: the bearer of the token                   |
    | the same, if the call changes state    | RecordCall       | acknowledgement: the call is recorded                      |
    | a launcher                             | ReportHostExit   | whether the run was known                                  |
    | a host whose event loop is blocked     | ReportHostBusy   | acknowledgement                                            |
    | `coordinator status`, `members`        | ReadReplica      | Document                                                   |
    | `coordinator transfer-leader`          | TransferLeader   | LeaderTransferred                                          |
    | `coordinator backup`                   | Backup           | the state's image                                          |

A `Document` is JSON whose structure is not defined by snapline, for example the states and messages of a fleet's agents or the metrics of
the Raft library.
"""
