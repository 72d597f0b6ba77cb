"""Oracles for recovery lines. The oracles check that a recovery line is maximal and includes survivors (G5), and that no data that a later
line needs is deleted (G7).

Theory of operation
-------------------
Under an autonomous protocol, an epoch is a recovery line over checkpoints that agents took independently. The *maximal consistent line* of
a set of checkpoints is unique. If two cuts are consistent, the cut with the later checkpoint of each agent is also consistent. Two
independent searches over all durable checkpoints must find the same maximal line. The first search starts with the latest checkpoints, and
moves an agent back whenever it has consumed a message that was not sent. The second search, used only for small fleets, tries every
combination of checkpoints.

*Exactness.* The coordinator computes the recovery line when it proposes BeginEpoch, from the checkpoints that it knows at that time. The
world does not inspect the coordinator, but it has a lower and an upper bound for each agent's checkpoints that the coordinator knows.

- The lower bound, *known*, consists of the checkpoints that the coordinator had acknowledged to hosts, and of the previous epoch's line
  (the *base*).
- The upper bound, *durable*, consists of the checkpoints in the store when the line becomes an epoch. The upper bound may include later
  checkpoints, because the world may learn of a pack late.

An agent's reports arrive in order, so the coordinator knows all its checkpoints up to some number between the two bounds. A line L is
correct if and only if it is the maximal line for some choice of these numbers. Adding checkpoints never moves the maximal line back, and
the known checkpoints must include L. So only the smallest such choice matters: L is correct if and only if it is durable and is the maximal
line over all checkpoints up to max(known, L). If both bounds are equal, L must be the maximal line of all checkpoints.

If a checkpoint is damaged, the coordinator ignores it and all later checkpoints of the same agent. Between a call of `note_damage` and the
next plan, the oracle checks only that the line is durable, consistent and not before its base.

*Survivors.* Before a new recovery plan in an autonomous fleet, hosts receive a request to freeze their agents, and the frozen agents are
saved to the store. So the plan must start from the greatest line over durable checkpoints *and live states*. To check this, `check_plan`
adds the live positions on hosts that froze in time to the checkpoints that the coordinator knew. The coordinator's actual knowledge would
not reveal whether it waited for the live states. So the oracle uses everything that the coordinator could have known.

A host *froze in time* if three conditions hold. The leader sent the request before the plan was proposed, the host answered within the time
limit, and the request's stream was still open when the plan was committed. A correct coordinator has received the answer of such a host
before it proposes the plan. A host in the plan that has not answered also counts as frozen in time until its time limit has passed, because
the coordinator had to wait for it. A host that answered too late or had no open stream does not count. A host outside the plan that answers
only after the proposal does not count either, because the coordinator does not wait for evicted hosts.

The ground truth provides the positions of frozen agents at the time of the freeze, or at the time of the plan if the host has not frozen
yet. An agent has such a position if it was not in a turn and its state could be saved. The position consists of the agent's turns and
departed messages. The plan's line must equal the greatest consistent line over these positions and the acknowledged checkpoints. Only lines
that are not before the plan's line are considered. The oracle uses no code from `recovery/`.

*Deleted checkpoints* (G7). A later recovery may need two kinds of data.

- First, it needs the newest complete epoch as a whole, because the next plan starts from it. To check this, the world reads the epoch after
  every deletion.
- Second, under autonomous protocols, it may need each checkpoint of the current plan after this epoch, because lines only advance. A later
  line may contain such a checkpoint itself. A later line may also contain a later checkpoint of the same agent, and then needs the log of
  the messages sent in between.

No later line can contain a checkpoint of a replaced plan, or a checkpoint that is not after the epoch's line. If an agent has left the
fleet, no epoch that begins later contains it. So its checkpoints are not needed after all earlier epochs have ended. Under `koo-toueg`, a
checkpoint after the line is tentative and is deleted if its round aborts, so only the epoch is checked.

*Deleted epochs.* The coordinator must not delete epochs that the user's retention policy keeps, nor the epochs that a recovery needs. The
oracle reads each epoch's creation time, in milliseconds, from the epoch's manifest. A policy keeps the newest `last` epochs. Counted
backwards from the newest epoch, it also keeps the newest epoch in each of the latest `hourly` and `daily` time spans. If an epoch's
creation time lies in the future, a clock is wrong. The policy deletes no epoch with a creation time in the future, and while one exists,
the oracle makes no check.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import msgspec

from snapline.coordinator.leader.modes.autonomous_epochs import FREEZE_NS
from snapline.messages.host_messages import AgentsFrozen, FreezeAgents
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import (
    NOWHERE,
    AgentHistory,
    Captured,
    ChannelTruth,
    CutPlace,
    CutRecord,
    Finding,
)

COMBINATIONS_MAX = 512
"""Maximum number of cuts that are tried one by one, in fleets with at most `AGENTS_MAX` agents. More cuts would take
most of the run's time."""

AGENTS_MAX = 4


class Candidate(msgspec.Struct, frozen=True):
    """A checkpoint that a recovery line may contain. The number 0 also represents an agent that does not exist yet."""

    number: int
    place: CutPlace


Candidates = Mapping[str, Sequence[Candidate]]
Channels = Sequence[tuple[str, str, list[int], list[int]]]
"""For each channel, its sender, its receiver, the number of messages that had left at each candidate of the sender, and
the number consumed at each candidate of the receiver."""


def counted(candidates: Candidates, channels: Mapping[tuple[str, str], ChannelTruth]) -> Channels:
    """Count, for each channel and candidate checkpoint, the messages that had left the sender, and the messages that the receiver had
    consumed."""
    return [
        (
            sender,
            receiver,
            [GroundTruth.left(channel, x.place) for x in candidates[sender]],
            [GroundTruth.got(channel, x.place) for x in candidates[receiver]],
        )
        for (sender, receiver), channel in channels.items()
        if sender in candidates and receiver in candidates
    ]


def lowered(tops: Mapping[str, int], channels: Channels) -> dict[str, int]:
    """Return the maximal line that is not after `tops`, found by moving agents back until there is no orphan. A line contains the index of
    one candidate for each agent."""
    line = dict(tops)
    is_changing = True
    while is_changing:
        is_changing = False
        for sender, receiver, left, got in channels:
            while line[receiver] and got[line[receiver]] > left[line[sender]]:
                line[receiver] -= 1
                is_changing = True
    return line


def searched(tops: Mapping[str, int], channels: Channels) -> dict[str, int] | None:
    """Return the maximal line that is not after `tops`, found by trying every cut. Return None if there are too many cuts."""
    agents = list(tops)
    count = 1
    for top in tops.values():
        count *= top + 1
    if len(agents) > AGENTS_MAX or count > COMBINATIONS_MAX:
        return None
    best = dict.fromkeys(agents, 0)
    for indices in product(*(range(tops[agent] + 1) for agent in agents)):
        cut = dict(zip(agents, indices, strict=True))
        if all(got[cut[receiver]] <= left[cut[sender]] for sender, receiver, left, got in channels):
            best = {agent: max(best[agent], cut[agent]) for agent in agents}
    return best


def maximal(tops: Mapping[str, int], channels: Channels) -> dict[str, int]:
    """Return the maximal line that is not after `tops`, computed by both searches.

    Raises:
        AssertionError: If the two searches disagree, which means that this module has a bug.
    """
    line = lowered(tops, channels)
    other = searched(tops, channels)
    assert other is None or other == line, f"two searches for the line of {tops} found {line} and {other}"
    return line


class LineOracle:
    """Oracle that checks recovery lines against the durable checkpoints of each plan."""

    def __init__(self, ground_truth: GroundTruth) -> None:
        self._ground_truth = ground_truth
        self._durable: dict[int, dict[str, dict[int, Captured]]] = {}
        self._known: dict[int, dict[str, int]] = {}
        self._proposed: dict[tuple[str, int], dict[str, int]] = {}
        self._known_at: dict[int, dict[str, int]] = {}
        self._is_damaged: dict[int, None] = {}

    # ---- reports of the world -------------------------------------------------------------------------------------

    def on_durable(self, plan: int, captured: Captured) -> None:
        """Record that a checkpoint is durable."""
        self._durable.setdefault(plan, {}).setdefault(captured.agent, {})[captured.number] = captured

    def on_known(self, plan: int, agent: str, number: int) -> None:
        """Record that the coordinator has acknowledged this checkpoint and all earlier checkpoints of the agent."""
        known = self._known.setdefault(plan, {})
        known[agent] = max(number, known.get(agent, 0))

    def note_damage(self, plan: int) -> None:
        """Record that a checkpoint file from this plan was damaged."""
        self._is_damaged[plan] = None

    def on_proposed(self, client: str, sequence: int, plan: int) -> None:
        """Record that a BeginEpoch or CommitPlan was proposed, which determines its recovery line. Ignore a repeated proposal, which has
        the same recovery line."""
        self._proposed.setdefault((client, sequence), dict(self._known.get(plan, {})))

    def on_begun(self, client: str, sequence: int, epoch: int) -> None:
        """Record that a BeginEpoch was committed."""
        self._known_at[epoch] = self._proposed.get((client, sequence), {})

    def knows(self, request: tuple[str, int], agents: Iterable[str]) -> bool:
        """Return whether the coordinator had acknowledged at least one checkpoint of each agent when this request was proposed."""
        return all(agent in self._proposed.get(request, {}) for agent in agents)

    def durable_of(self, plan: int) -> dict[str, int]:
        """Return the number of each agent's newest durable checkpoint under a plan."""
        return {agent: max(numbers) for agent, numbers in self._durable.get(plan, {}).items()}

    def is_of_one_plan(self, plan: int, agent: str, number: int) -> bool:
        """Return whether the agent's checkpoint with this number is durable under `plan` and under no other plan."""
        plans = [each for each, agents in self._durable.items() if number in agents.get(agent, {})]
        return plans == [plan]

    def _known_of(self, cut: CutRecord) -> dict[str, int]:
        return {} if cut.plan in self._is_damaged else self._known_at.get(cut.epoch, {})

    # ---- judging --------------------------------------------------------------------------------------------------

    def check(self, cut: CutRecord, base: CutRecord | None) -> Iterator[Finding]:
        """Check a recovery line that has become an epoch. `base` is the previous epoch's line, or None for the initial states."""
        candidates = self._candidates(cut, base)
        line = {agent: _number(cut.places.get(agent, NOWHERE)) for agent in candidates}
        late = [agent for agent, number in line.items() if number > candidates[agent][-1].number]
        if late:
            yield (
                "line",
                "G5",
                (
                    f"epoch {cut.epoch}: the line holds checkpoint {line[late[0]]} of {late[0]}; "
                    f"{candidates[late[0]][-1].number} was the newest durable one"
                ),
            )
            return
        low = [agent for agent, number in line.items() if number < candidates[agent][0].number]
        if low:
            yield (
                "line",
                "G5",
                (
                    f"epoch {cut.epoch}: the line holds checkpoint {line[low[0]]} of {low[0]}, the epoch before it "
                    f"held {candidates[low[0]][0].number}"
                ),
            )
            return
        yield from self._check_maximal(cut, candidates, line)

    def _check_maximal(self, cut: CutRecord, candidates: Candidates, line: Mapping[str, int]) -> Iterator[Finding]:
        known = self._known_of(cut)
        least = {agent: max(number, known.get(agent, 0)) for agent, number in line.items()}
        tops = {agent: _index(candidates[agent], number) for agent, number in least.items()}
        indices = maximal(tops, counted(candidates, self._ground_truth.branch_of(cut.plan).channels))
        best = {agent: candidates[agent][index].number for agent, index in indices.items()}
        histories = self._ground_truth.branch_of(cut.plan).histories
        for agent, number in line.items():
            stopped_at, place = histories[agent].stopped_at, cut.places.get(agent, NOWHERE)
            if number < best[agent] and stopped_at and place.turns >= stopped_at:
                continue  # the ground truth records no consumption after the agent stopped
            if number < best[agent]:
                yield (
                    "line",
                    "G5",
                    (
                        f"epoch {cut.epoch}: the line holds checkpoint {number} of {agent}; a consistent line with "
                        f"{best[agent]} was known: {best}"
                    ),
                )
                return
            if number > best[agent]:
                yield (
                    "line",
                    "G5",
                    (
                        f"epoch {cut.epoch}: the line holds checkpoint {number} of {agent}, which no consistent line "
                        f"contains: at most {best}"
                    ),
                )
                return

    def check_plan(
        self, plan: int, cut: CutRecord | None, live: Mapping[str, CutPlace], request: tuple[str, int]
    ) -> Iterator[Finding]:
        """Check the plan that replaces `plan` and starts from `cut`, where a cut of None means the initial states. `live` contains the
        positions of the agents that froze in time."""
        if plan in self._is_damaged:
            return
        known = self._proposed.get(request, {})
        candidates, tops = {}, {}
        for agent, start, later in self._above(plan, cut):
            choices = [start, *later]
            top = _index(choices, max(start.number, known.get(agent, 0)))
            if agent in live:
                choices.append(Candidate(choices[-1].number, live[agent]))
                top = len(choices) - 1
            candidates[agent], tops[agent] = choices, top
        line = maximal(tops, counted(candidates, self._ground_truth.branch_of(plan).channels))
        for agent, index in line.items():
            start, best = candidates[agent][0], candidates[agent][index]
            if best.place.turns > start.place.turns:
                yield (
                    "line",
                    "G5",
                    (
                        f"the plan after plan {plan} starts where {agent} had taken {start.place.turns} turns; a consistent "
                        f"line with {best.place.turns} was there, of what {len(live)} agents on live hosts had done"
                    ),
                )
                return

    def is_in_doubt(self, cut: CutRecord) -> bool:
        """Return whether more than one recovery line would be correct."""
        known = self._known_of(cut)
        return any(number > known.get(agent, 0) for agent, number in self.durable_of(cut.plan).items())

    def _candidates(self, cut: CutRecord, base: CutRecord | None) -> dict[str, list[Candidate]]:
        """Return the candidates of each agent that had not left before the cut: its checkpoint in the base, and the durable checkpoints
        that follow it without a gap.

        Agents that had left do not constrain other agents, because all their messages are inside the cut.
        """
        return {agent: [first, *later] for agent, first, later in self._above(cut.plan, base, cut)}

    def _above(
        self, plan: int, base: CutRecord | None, cut: CutRecord | None = None
    ) -> Iterator[tuple[str, Candidate, list[Candidate]]]:
        durable = self._durable.get(plan, {})
        within = cut or base
        for agent in self._ground_truth.branch_of(plan).histories:
            if within is not None and agent in within.places and within.places[agent].is_gone:
                continue
            start = base.places.get(agent, NOWHERE) if base is not None else NOWHERE
            first = Candidate(_number(start), start)
            yield agent, first, list(_in_a_row(durable.get(agent, {}), first.number))


def _in_a_row(durable: Mapping[int, Captured], number: int) -> Iterator[Candidate]:
    """Yield the durable checkpoints whose numbers follow `number` without a gap. Checkpoints after a gap cannot be used, because the
    missing checkpoint's part of the log is lost."""
    while (captured := durable.get(number := number + 1)) is not None:
        yield Candidate(number, _place(captured))


def _place(captured: Captured) -> CutPlace:
    return CutPlace(captured.turns, captured.voids, captured.parked, captured)


def _number(place: CutPlace) -> int:
    return place.captured.number if place.captured is not None else 0


def _index(candidates: Sequence[Candidate], number: int) -> int:
    """Return the index of the newest candidate whose number is at most `number`, or 0 if there is no such candidate."""
    return max(index for index, x in enumerate(candidates) if x.number <= number or index == 0)


Request = tuple[str, int]
"""Client and sequence number of a proposal."""


class Frozen(msgspec.Struct, frozen=True):
    """A host that froze its agents in time. `is_awaited` means that the host has not answered, but its time limit has not passed either.
    `start` is the host generation, or 0 if it is unknown."""

    host: str
    plan: int
    number: int
    running: tuple[str, ...] = ()
    is_awaited: bool = False
    start: int = 0


class _FreezeRequest(msgspec.Struct):
    host: str
    plan: int
    number: int
    t_ns: int
    answer: Frozen | None = None
    answered_ns: int = 0


class Freezes:
    """Records, for each stream, the leader's freeze request and the host's answer."""

    def __init__(self) -> None:
        self._asked: dict[int, _FreezeRequest] = {}
        self._proposed: dict[Request, tuple[int, dict[int, _FreezeRequest]]] = {}

    def on_freeze_sent(self, stream: int, host: str, freeze: FreezeAgents, t_ns: int) -> None:
        """Record that the leader has sent a FreezeAgents request."""
        known = self._asked.get(stream)
        if known is None or (known.plan, known.number) != (freeze.plan, freeze.number):
            self._asked[stream] = _FreezeRequest(host, freeze.plan, freeze.number, t_ns)

    def on_answered(self, stream: int, answer: AgentsFrozen, t_ns: int) -> None:
        """Record an AgentsFrozen answer, unless it is late or belongs to another request."""
        asked = self._asked.get(stream)
        is_matching = asked is not None and (asked.plan, asked.number) == (answer.plan, answer.number)
        if asked is not None and is_matching and t_ns <= asked.t_ns + FREEZE_NS:
            asked.answer = Frozen(asked.host, answer.plan, answer.number, answer.running, start=answer.host_start)
            asked.answered_ns = t_ns

    def on_closed(self, stream: int) -> None:
        """Forget the request on a stream that has closed."""
        self._asked.pop(stream, None)

    def on_plan_proposed(self, request: Request, t_ns: int) -> None:
        """Record that a CommitPlan was proposed. Ignore a repeated proposal."""
        self._proposed.setdefault(request, (t_ns, dict(self._asked)))

    def in_time(self, request: Request, hosts: Sequence[str]) -> Iterator[Frozen]:
        """Yield the hosts that froze in time for this committed proposal. `hosts` contains the hosts in the plan."""
        proposed_ns, asked = self._proposed.get(request, (0, {}))
        for stream, request_ in asked.items():
            if self._asked.get(stream) is not request_:
                continue
            if request_.answer is not None:
                if request_.host in hosts or request_.answered_ns <= proposed_ns:
                    yield request_.answer
            elif request_.host in hosts and proposed_ns < request_.t_ns + FREEZE_NS:
                yield Frozen(request_.host, request_.plan, request_.number, is_awaited=True)


class LivePlaces:
    """Records the positions that agents had in the ground truth when their hosts froze."""

    def __init__(self, ground_truth: GroundTruth) -> None:
        self._ground_truth = ground_truth
        self._places: dict[tuple[str, int, int, int], dict[str, CutPlace]] = {}

    def on_frozen(self, host: str, start: int, plan: int, number: int, agents: Sequence[str]) -> None:
        """Record the positions of a host's frozen agents that are not in a turn. Only the first report for a request counts.

        A restarted host may receive a request with the same number, but it has no frozen agents.
        """
        if (host, start, plan, number) in self._places:
            return
        histories = self._ground_truth.branch_of(plan).histories
        self._places[host, start, plan, number] = {
            agent: _live_place(histories[agent]) for agent in agents if agent in histories
        }

    def on_unsaved(self, host: str, start: int, plan: int, number: int, agent: str) -> None:
        """Remove the position of a frozen agent whose checkpoint could not be taken."""
        self._places.get((host, start, plan, number), {}).pop(agent, None)

    def of(self, frozen: Sequence[Frozen], plan: int) -> Mapping[str, CutPlace]:
        """Return the positions of the agents that froze in time under a plan."""
        return dict(self._of(frozen, plan))

    def _of(self, frozen: Sequence[Frozen], plan: int) -> Iterator[tuple[str, CutPlace]]:
        for freeze in frozen:
            if freeze.plan == plan:
                for agent, place in self._places.get((freeze.host, freeze.start, plan, freeze.number), {}).items():
                    if agent not in freeze.running:
                        yield agent, place


def _live_place(history: AgentHistory) -> CutPlace:
    """Return an agent's current position, as if all messages that have not left were in its outbox."""
    parked = {
        receiver: len(channel.sent) - len(channel.void) - len(channel.departed_at)
        for receiver, channel in history.outward.items()
    }
    return CutPlace(history.turns, history.voids, {receiver: count for receiver, count in parked.items() if count > 0})


def is_covered(cut: CutRecord, plan: int, agent: str, number: int) -> bool:
    """Return whether `cut` is a recovery line of `plan` that makes this checkpoint unnecessary, because it contains the same or a later
    one.

    A checkpoint before a line may be deleted even if the line is condemned later, because such a deletion may be delayed.
    """
    place = cut.places.get(agent)
    return cut.plan == plan and place is not None and place.captured is not None and number <= place.captured.number


def check_deleted(missing: Sequence[tuple[str, int]], base: CutRecord | None, base_epoch: int) -> Iterator[Finding]:
    """Report each deleted checkpoint that a later recovery line may need.

    `missing` lists deleted checkpoints of the current plan. `base` is the newest complete epoch, or None if there is none.
    """
    for agent, number in missing:
        place = base.places.get(agent) if base is not None else None
        if place is not None and place.is_gone:
            continue
        kept_number = place.captured.number if place is not None and place.captured is not None else -1
        if number > kept_number:
            status = (
                f"epoch {base_epoch} holds its checkpoint {kept_number}"
                if kept_number >= 0
                else "no complete epoch holds it"
            )
            yield "garbage", "G7", f"checkpoint {number} of {agent} was deleted, and {status}: a later line may need it"
            return


class ExpectedRetention(msgspec.Struct, frozen=True):
    """A retention policy. The fields `hour_ms` and `day_ms` are the lengths of an hourly and a daily time span."""

    last: int
    hourly: int
    daily: int
    hour_ms: int
    day_ms: int


def wanted_epochs(created_ms: Mapping[int, int], wanted: ExpectedRetention) -> set[int]:
    """Return the epochs that the policy keeps, given each epoch's creation time."""
    newest_first = sorted(created_ms, reverse=True)
    kept = set(newest_first[: wanted.last])
    for length_ms, count in ((wanted.hour_ms, wanted.hourly), (wanted.day_ms, wanted.daily)):
        if not newest_first:
            continue
        end = max(time_ms // length_ms for time_ms in created_ms.values())
        for span in range(end, end - count, -1):
            kept.update([epoch for epoch in newest_first if created_ms[epoch] // length_ms == span][:1])
    return kept


def check_retained(
    before_ms: Mapping[int, int], after: set[int], wanted: ExpectedRetention, *, now_ms: int
) -> Iterator[Finding]:
    """Check that a deletion follows the retention policy. `before_ms` contains each epoch's creation time before the deletion, `after` the
    remaining epochs, and `now_ms` the clock of the deleting node."""
    if max(before_ms.values(), default=0) > now_ms:
        return
    for epoch in sorted(wanted_epochs(before_ms, wanted) - after):
        text = f"epoch {epoch} was deleted, and the retention policy keeps it among {sorted(before_ms)}"
        yield "retention", "G7", text
        return
