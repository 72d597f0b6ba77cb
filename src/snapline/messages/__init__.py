"""What hosts, tools and the coordinator say to each other: one word for one exchange, from the caller to the wire.

Structs are in `messages.py` (hosts and the coordinator), `status.py`, `answers.py` and `outputs.py` (what tools are answered). They bear the
names of the messages in `coordinator.proto`, field by field; `codec.py` turns one into the other, and only `wire.py` knows
protobuf beside it, and the servicer. The cores of host and leader take them and give them as they are; but for a `Plan`, which
is columns on the wire and becomes names before the host core hears it.

A host's stream
---------------
A host says `Join` and is answered; from then on both sides speak when they have something to say. What must be heard is said
again on every new stream, until it has been answered: everything here may come twice, and nothing comes in another order than
it was said on one stream. Who a line of the table is from stands in its first column: H a host, C the coordinator.

    | says                   | when                                             | answered by                                 |
    |------------------------|--------------------------------------------------|---------------------------------------------|
    | H Join                 | first on every stream                            | Welcome, ReadProbe or TurnedAway            |
    | C ReadProbe            | before a run of a host is admitted               | ProbeRead                                   |
    | C Welcome              | the run is admitted                              | FleetDefinition, if it asks for one         |
    | C TurnedAway           | the run is not, or no more                       |                                             |
    | C Roster               | who lives has changed                            |                                             |
    | H Heartbeat            | at the pace that Welcome names                   |                                             |
    | H PeerSuspected        | a link is silent                                 |                                             |
    | H AgentFailed          | an agent cannot go on                            |                                             |
    | C Plan                 | the fleet (re)starts from a line                 | PlanApplied or PlanRefused                  |
    | C BeginEpoch           | an epoch is committed, or is to be told whole    | EpochReport or EpochRefused                 |
    | C EndEpoch             | it is complete, or aborted; and again: released  |                                             |
    | H CheckpointsStored    | checkpoints of single agents are durable         | CheckpointsKnown                            |
    | C RequestCheckpoints   | a round asks agents (koo-toueg)                  | CheckpointsAnswered                         |
    | C FreezeAgents         | before a plan, where agents checkpoint alone     | AgentsFrozen                                |
    | C ThawAgents           | the freeze has ended                             |                                             |
    | C ReportNumbers        | a tool asks for a recovery line                  | NumbersReported                             |
    | H ReserveAgents        | a turn spawns                                    | AgentsReserved                              |
    | H RetireAgent          | an agent has stopped                             | AgentRetired                                |
    | H LocateAgents         | somebody sends to an agent that the plan lacks   | AgentsLocated                               |
    | H OpenLog              | a plan's host log is to be written, or was       | LogOpened                                   |
    | H WantEpoch            | somebody outside waits for a complete epoch      |                                             |
    | H WantRollback         | a turn asks that the fleet goes back             | Plan or RollbackRefused                     |
    | H TurnSurvived         | a turn ends well in which processes have died    |                                             |
    | C OutputsWatched       | somebody reads outputs live, or nobody any more  |                                             |
    | C EvaluateStop         | an epoch is complete, and the fleet may stop     | StopEvaluated                               |
    | C Finish               | the fleet has ended                              |                                             |
    | C Quiesce              | the fleet, a host or agents are to end or move   | Quiesced, when no effect is being called    |
    | H WantLeave            | a host is to stop                                | MayLeave, when a snapshot holds its agents  |
    | H Leave                | a host goes on its own account                   |                                             |
    | H MessagePart          | a piece of any of these that is too large        |                                             |

Calls of tools
--------------
One question, one answer, to the replica that leads (`coordinator_client.py`); `documents.py` makes of it what `-o json` prints.

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
    | `output tail`, and `snapline.Client`   | ReadOutputs      | ReadOutputsReply: a page, as soon as there is something    |
    | `output consumers list`                | ReadConsumers    | ReadConsumersReply                                         |
    | `snapline.Client`                      | MoveConsumer     | MoveConsumerReply                                          |
    | `output consumers forget`              | ForgetConsumer   | nothing but that it is done                                |
    | `host forget`                          | ForgetHost       | nothing but that it is done                                |
    | `host drain`, `resume`, `spread`       | MoveAgents       | nothing but that hosts are marked                          |
    | `host kill`                            | EndHost          | nothing but that it is told                                |
    | `restart`                              | EndReplica       | nothing but that it ends                                   |
    | `agent list`, and `snapline.Client`    | Locate           | LocateReply                                                |
    | `auth token create`                    | MakeToken        | MakeTokenReply: until when it is good                      |
    | `auth token revoke`                    | RevokeToken      | nothing but that it is done                                |
    | `auth token list`                      | ReadTokens       | ReadTokensReply                                            |
    | `audit`                                | ReadAudit        | ReadAuditReply                                             |
    | a host that a person has called        | CheckToken       | CheckTokenReply: who bears the token                       |
    | the same, if it changes something      | RecordCall       | nothing but that it is written down                        |
    | a launcher                             | ReportHostExit   | whether the run was known                                  |
    | a host whose event loop is held        | ReportHostBusy   | nothing but that it was heard                              |
    | `coordinator status`, `members`        | ReadReplica      | Document                                                   |
    | `coordinator transfer-leader`          | TransferLeader   | LeaderTransferred                                          |
    | `coordinator backup`                   | Backup           | the state's image                                          |

A `Document` is JSON where the shape is not ours: a fleet's own states and messages, and the figures of the log's library.
"""
