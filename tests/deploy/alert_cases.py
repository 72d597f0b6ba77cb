"""For each alert: series in which it fires, what it says then, and series in which it must not. `promtool test rules` plays them."""

import msgspec

STEP_S = 5
"""Between two samples, and two looks at the rules."""

STEPS = 240
"""20 minutes."""

Series = dict[str, str]
"""A series → its samples, in promtool's words."""


class Case(msgspec.Struct, frozen=True):
    """One alert.

    Attributes:
        fires: series in which it does.
        true_s: its expression holds from then on.
        labels: of the alert, beside its name and severity.
        summary: what it says.
        quiet: situations in which it does not fire.
    """

    fires: Series
    labels: dict[str, str]
    summary: str
    quiet: tuple[Series, ...]
    true_s: int = 0


def steady(value: float) -> str:
    """All the time."""
    return f"{value:g}+0x{STEPS}"


def passing(value: float, lasts_s: int, then: float = 0) -> str:
    """For so long, then another value."""
    return f"{value:g}+0x{lasts_s // STEP_S - 1} {then:g}+0x{STEPS}"


def growing(step: float, start: float = 0) -> str:
    """By so much with every sample."""
    return f"{start:g}+{step:g}x{STEPS}"


def jumping(amount: float, start: float = 0) -> str:
    """At once, with the second sample."""
    return f"{start:g} {start + amount:g}+0x{STEPS}"


C1 = {"instance": "c1"}
H1 = {"instance": "h1"}
ALL: dict[str, str] = {}


def of_kind(family: str, said: str, instance: str = "c1") -> str:
    """A series with one label of ours."""
    return f'snapline_{family}{{{said}, instance="{instance}"}}'


def of(family: str, instance: str = "h1") -> str:
    """A series without."""
    return f'snapline_{family}{{instance="{instance}"}}'


def epochs(complete: float, aborted: float) -> Series:
    """By outcome, growing so fast."""
    return {
        of_kind("checkpoints_total", 'outcome="complete", protocol="chandy-lamport"'): growing(complete, 40),
        of_kind("checkpoints_total", 'outcome="aborted", protocol="chandy-lamport"'): growing(aborted, 2),
    }


def replicas(first: str, second: str) -> Series:
    """Which of two leads, beside a host."""
    return {
        of("raft_is_leader", "c1"): first,
        of("raft_is_leader", "c2"): second,
        **{of("process_info", name): steady(1) for name in ("c1", "c2", "h1")},
    }


def syncs(seconds: float) -> Series:
    """Ten writes between two samples, each of so many seconds."""
    return {
        of("raft_sync_seconds_sum", "c1"): growing(10 * seconds),
        of("raft_sync_seconds_count", "c1"): growing(10),
    }


def turns(step: float, waiting: float) -> Series:
    """Of two hosts; the second has nothing to do."""
    return {
        of("turns_total"): growing(step, 1000),
        of("turns_total", "h2"): steady(7),
        of("channel_in_transit_messages"): steady(waiting),
        of("channel_in_transit_messages", "h2"): steady(0),
    }


CASES = {
    "SnaplineProcessDown": Case(
        {'up{job="snapline-shop", instance="h1"}': steady(0)},
        {"job": "snapline-shop", **H1},
        "h1 has not said its metrics for a minute",
        (
            {'up{job="snapline", instance="h1"}': steady(1)},
            {'up{job="snapline", instance="h1"}': passing(0, 50, 1)},
            {'up{job="node", instance="n1"}': steady(0)},
        ),
    ),
    "SnaplineHostLost": Case(
        {of_kind("hosts", 'state="lost"'): steady(2)},
        {"state": "lost", **C1},
        "Hosts that are lost and not back: 2",
        (
            {of_kind("hosts", 'state="lost"'): passing(1, 25)},
            {of_kind("hosts", 'state="left"'): steady(1), of_kind("hosts", 'state="alive"'): steady(3)},
        ),
    ),
    "SnaplineFleetFailed": Case(
        {of_kind("fleet_phase", 'phase="failed"'): steady(1)},
        {"phase": "failed", **C1},
        "The fleet has failed, and does nothing any more",
        ({of_kind("fleet_phase", 'phase="finished"'): steady(1), of_kind("fleet_phase", 'phase="failed"'): steady(0)},),
    ),
    "SnaplineFleetDoesNotRun": Case(
        {of_kind("fleet_phase", 'phase="recovering"'): steady(1)},
        {"phase": "recovering", **C1},
        "The fleet has been recovering for two minutes: no agent takes a turn",
        (
            {of_kind("fleet_phase", 'phase="recovering"'): passing(1, 100)},
            {of_kind("fleet_phase", 'phase="finished"'): steady(1)},
        ),
    ),
    "SnaplineNoHosts": Case(
        {of_kind("concerns", 'kind="hosts"'): steady(1)},
        {"kind": "hosts", **C1},
        "No host of the fleet is there, or too few to begin: its agents are paused",
        ({of_kind("concerns", 'kind="hosts"'): passing(1, 50)},),
    ),
    "SnaplineRecoveriesRepeat": Case(
        {of("recoveries_total", "c1"): jumping(5)},
        ALL,
        "5 recoveries in a quarter of an hour",
        ({of("recoveries_total", "c1"): jumping(2, 10)}, {of("recoveries_total", "c1"): steady(50)}),
        true_s=STEP_S,
    ),
    "SnaplineRtoMissed": Case(
        {of_kind("concerns", 'kind="rto"'): steady(1)},
        {"kind": "rto", **C1},
        "A failure has kept the fleet from running for longer than its rto_s allows",
        ({of_kind("concerns", 'kind="rto"'): steady(0), of_kind("concerns", 'kind="rpo"'): steady(1)},),
    ),
    "SnaplineHostCutOff": Case(
        {
            of_kind("concerns", 'kind="cut"'): passing(1, 30),
            of_kind("concerns", 'kind="spare"'): "0+0x5 " + steady(1),
        },
        C1,
        "Hosts do not reach each other, or one that is alive gets no agents",
        (
            {of_kind("concerns", 'kind="cut"'): passing(1, 50)},
            {of_kind("concerns", 'kind="drained"'): steady(1), of_kind("concerns", 'kind="spare"'): steady(0)},
        ),
    ),
    "SnaplineHostBusy": Case(
        {of_kind("concerns", 'kind="busy"'): steady(1)},
        {"kind": "busy", **C1},
        "Code of an agent holds a host's event loop: its agents are paused",
        ({of_kind("concerns", 'kind="busy"'): passing(1, 10)},),
    ),
    "SnaplineHostDrained": Case(
        {of_kind("concerns", 'kind="drained"'): steady(1)},
        {"kind": "drained", **C1},
        "A host is drained, and gets no agents until somebody resumes it",
        ({of_kind("concerns", 'kind="drained"'): passing(1, 600)},),
    ),
    "SnaplineFleetWaits": Case(
        {of_kind("concerns", 'kind="plan"'): steady(1), of_kind("concerns", 'kind="stop"'): steady(0)},
        C1,
        "The fleet has waited for a host's answer, or for a plan, for a minute",
        ({of_kind("concerns", 'kind="plan"'): passing(1, 40)}, {of_kind("concerns", 'kind="drained"'): steady(1)}),
    ),
    "SnaplineCertificateExpires": Case(
        {of_kind("concerns", 'kind="certificate"'): steady(1)},
        {"kind": "certificate", **C1},
        "A certificate has expired, or will within days",
        ({of_kind("concerns", 'kind="certificate"'): steady(0)},),
    ),
    "SnaplineRollbackRefused": Case(
        {of_kind("concerns", 'kind="rollback"'): steady(1)},
        {"kind": "rollback", **C1},
        "Agents asked to go back, and cannot: they stand until people have looked",
        ({of_kind("concerns", 'kind="rollback"'): steady(0), of_kind("concerns", 'kind="plan"'): steady(1)},),
    ),
    "SnaplineWorkAtRisk": Case(
        {of("recovery_line_age_seconds", "c1"): growing(STEP_S, 150)},
        C1,
        "If all hosts failed now, the work of 5m 5s would be lost",
        (
            {of("recovery_line_age_seconds", "c1"): "0+5x60 0+5x60 0+5x60"},
            {of("recovery_line_age_seconds", "c1"): growing(STEP_S), of("rpo_seconds", "c1"): steady(3600)},
        ),
        true_s=155,
    ),
    "SnaplineRpoMissed": Case(
        {of_kind("concerns", 'kind="rpo"'): steady(1)},
        {"kind": "rpo", **C1},
        "A failure now would undo more work than the fleet's rpo_s allows",
        ({of_kind("concerns", 'kind="rpo"'): steady(0), of_kind("concerns", 'kind="rto"'): steady(1)},),
    ),
    "SnaplineStoreDegraded": Case(
        {of("store_is_degraded", "c1"): steady(1)},
        C1,
        "Checkpoints cannot be stored: agents go on, and nothing of it is saved",
        ({of("store_is_degraded", "c1"): passing(1, 25)},),
    ),
    "SnaplineHostMemoryFull": Case(
        {of_kind("concerns", 'kind="memory"'): steady(1)},
        {"kind": "memory", **C1},
        "Agents are paused: no more can wait in memory for the store",
        ({of_kind("concerns", 'kind="memory"'): passing(1, 10)},),
    ),
    "SnaplineEpochsAbort": Case(
        epochs(0.1, 0.3),
        ALL,
        "More epochs are aborted than completed",
        (epochs(0.3, 0.1), epochs(0, 0)),
        true_s=STEP_S,
    ),
    "SnaplineNoEpochCompletes": Case(
        {of_kind("concerns", 'kind="epochs"'): steady(1)},
        {"kind": "epochs", **C1},
        "Three epochs or more were aborted one after the other: nothing is saved of what agents do",
        ({of_kind("concerns", 'kind="epochs"'): passing(1, 25)},),
    ),
    "SnaplineHostLogFails": Case(
        {of_kind("concerns", 'kind="log"'): steady(1)},
        {"kind": "log", **C1},
        "A host cannot write its log: it takes no inputs, and its durable turns wait",
        ({of_kind("concerns", 'kind="log"'): passing(1, 25)},),
    ),
    "SnaplineRecoveryWaitsForStore": Case(
        {of_kind("concerns", 'kind="store"'): steady(1)},
        {"kind": "store", **C1},
        "A recovery waits for the store, or for an operator: no agent takes a turn",
        ({of_kind("concerns", 'kind="store"'): passing(1, 25)},),
    ),
    "SnaplineDeadLetters": Case(
        {of("dead_letters_total"): jumping(1)},
        H1,
        "Messages on h1 could not be handled, and are kept",
        ({of("dead_letters_total"): steady(3)},),
        true_s=STEP_S,
    ),
    "SnaplineEffectsNeedPeople": Case(
        {of("effects_needing_people"): steady(1)},
        H1,
        "Effects on h1 that may have been done, and only people can say: 1",
        ({of("effects_needing_people"): passing(1, 25)},),
    ),
    "SnaplineTurnStands": Case(
        {of_kind("concerns", 'kind="turn"'): steady(1)},
        {"kind": "turn", **C1},
        "Durable turns cannot go on: their agents are suspended until people do something",
        ({of_kind("concerns", 'kind="turn"'): passing(1, 10)},),
    ),
    "SnaplineEffectsInDoubt": Case(
        {of_kind("concerns", 'kind="in_doubt"'): steady(1)},
        {"kind": "in_doubt", **C1},
        "Effects may have been done, and nobody has said so for a minute",
        ({of_kind("concerns", 'kind="in_doubt"'): passing(1, 50)},),
    ),
    "SnaplineMessageKills": Case(
        {of_kind("concerns", 'kind="killer"'): steady(1)},
        {"kind": "killer", **C1},
        "Processes have died in the middle of the same turn",
        ({of_kind("concerns", 'kind="killer"'): steady(0)},),
    ),
    "SnaplineAgentsFull": Case(
        {of("agents_full"): steady(4)},
        H1,
        "Agents on h1 that take no inputs until outputs of theirs are released: 4",
        ({of("agents_full"): passing(4, 100)},),
    ),
    "SnaplineNoTurns": Case(
        turns(0, 12),
        ALL,
        "Messages wait, and no agent has ended a turn for minutes",
        (turns(0, 0), turns(1, 12)),
        true_s=STEP_S,
    ),
    "SnaplineNoLeader": Case(
        replicas(steady(0), steady(0)),
        ALL,
        "No coordinator leads: no checkpoint completes, and no host that fails is replaced",
        (
            replicas(steady(1), steady(0)),
            replicas(passing(1, 300), "0+0x60 " + steady(1)),
            replicas(passing(1, 300), "0+0x61 " + steady(1)),
        ),
    ),
    "SnaplineReplicaMissing": Case(
        {of_kind("concerns", 'kind="replica"'): steady(1)},
        {"kind": "replica", **C1},
        "The coordinator's leader is not connected to all of its replicas",
        ({of_kind("concerns", 'kind="replica"'): passing(1, 25)},),
    ),
    "SnaplineReplicaAlone": Case(
        {of("raft_has_quorum", "c3"): steady(0), of("raft_has_quorum", "c1"): steady(1)},
        {"instance": "c3"},
        "c3 reaches no majority of the coordinators",
        ({of("raft_has_quorum", "c3"): passing(0, 25, 1)},),
    ),
    "SnaplineReplicaLearns": Case(
        {of("raft_is_learner", "c2"): steady(1)},
        {"instance": "c2"},
        "c2 lost its log, still catches up, and does not vote",
        ({of("raft_is_learner", "c2"): passing(1, 120)},),
    ),
    "SnaplineLeadersChange": Case(
        {of("raft_leader_changes_total", "c1"): jumping(6), of("raft_leader_changes_total", "c2"): jumping(5)},
        ALL,
        "Another coordinator led 6 times within ten minutes",
        ({of("raft_leader_changes_total", name): jumping(2) for name in ("c1", "c2", "c3")},),
        true_s=STEP_S,
    ),
    "SnaplineRaftDiskSlow": Case(
        syncs(0.2),
        C1,
        "A write of c1's log takes 200ms",
        (syncs(0.05), syncs(0)),
        true_s=STEP_S,
    ),
    "SnaplineRaftErrors": Case(
        {of("raft_tick_errors_total", "c1"): jumping(1)},
        C1,
        "An error of ours in the thread that runs Raft on c1",
        ({of("raft_tick_errors_total", "c1"): steady(0)},),
        true_s=STEP_S,
    ),
}
