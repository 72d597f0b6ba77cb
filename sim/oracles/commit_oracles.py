"""The oracles' own reader of commits in host logs, and the oracle of what must wait for a commit.

Commits exist in fleets with `recovery="local"`. What leaves a host must be in a durable commit, because a failure of the host undoes
everything since its newest commit. Other oracles find a violation only if such a failure follows. `CommitOracle` needs none:

- *Messages.* A turn on another host may consume a message only if a durable commit contains the sender's turn that sent it.
- *Creations.* A host may ask the coordinator to create agents only if a durable commit contains the turn that creates them.
- *Departures.* A host may ask the coordinator to remove an agent only if a durable commit contains the turn in which the agent stopped, and
  every message that it has sent to another living agent has been consumed in a durable commit. Nobody else could send it again.

- *Acknowledgements.* A commit may lack a message to an agent on another host only if a durable commit contains its consumption, or if the
  receiver had it when it was loaded.
- *Recoveries.* Of the messages between two agents that a recovery has loaded, each is consumed or waiting in the receiver's checkpoint, or in
  the outbox of the sender's. This is checked for each pair of loaded agents.

An agent's position at the start of a plan counts as durable, because it comes from a commit or an epoch. A restore takes the fleet back on
purpose, so the positions before it are void, and hosts that have not heard of it yet are not checked any more.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import msgspec

from snapline.agent_runtime.host.host_events import CommittedAgent
from snapline.errors import SnaplineError
from snapline.messages.host_messages import HostMessage, ReserveAgents, RetireAgent
from snapline.sim.oracles.ground_truth import GroundTruth
from snapline.sim.oracles.ground_truth_records import Branch, Report
from snapline.storage.log.log_record import (
    SEALED,
    SEALING,
    BatchBody,
    CommitPart,
    LogBatch,
    LogName,
    decode_file,
    entry_path,
    is_batch,
    open_batch,
    parse_path,
)
from snapline.storage.packs.checkpoint import AgentCheckpoint, decode_checkpoint

_decode_entries = msgspec.msgpack.Decoder(list[tuple[str, int, bytes, int]]).decode


class CommitReader:
    """Reads commits in files of host logs. Each file is decoded only once, because hosts never change their files."""

    def __init__(self) -> None:
        self._batches: dict[str, tuple[bytes, LogBatch | None]] = {}

    def newest(self, files: Mapping[str, bytes], era: int, plan: int) -> dict[str, AgentCheckpoint]:
        """Return the newest checkpoint of each agent in the commits of the logs of plans from `era` and below `plan`."""
        newest: dict[str, AgentCheckpoint] = {}
        for checkpoint in map(decode_checkpoint, self.checkpoints(files, era, plan)):
            if checkpoint.number >= newest.get(checkpoint.agent, checkpoint).number:
                newest[checkpoint.agent] = checkpoint
        return newest

    def checkpoints(self, files: Mapping[str, bytes], era: int, plan: int) -> Iterator[bytes]:
        """Return all encoded checkpoints in the commits of the logs of plans from `era` and below `plan`, but for those that are written as
        changes of a missing one."""
        for commits in self._logs(files, era, plan):
            entries = {
                (agent, number): (blob, base) for x in commits for agent, number, blob, base in _decode_entries(x)
            }
            yield from filter(None, [_whole(entries, place) for place in entries])

    def numbers_in_batches(self, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
        """Yield the path of each batch that contains nothing but whole commits and is not the last entry of its log, with the agents and the
        numbers of their checkpoints. A log whose sealing has begun but not ended is omitted, because nobody deletes its batches."""
        places = {path: place for path in files if (place := parse_path(path)) is not None}
        marks = {(log, name) for log, name in places.values() if isinstance(name, str)}
        last: dict[LogName, int] = {}
        for log, number in places.values():
            last[log] = max(number if isinstance(number, int) else 0, last.get(log, 0))
        for path, (log, number) in places.items():
            batch = self._batch(path, files[path]) if number != last[log] and isinstance(number, int) else None
            is_sealing = (log, SEALING) in marks and (log, SEALED) not in marks
            if batch is None or batch.inputs or batch.entries or is_sealing:
                continue
            if batch.commits and all(part.is_last and part.part == 0 for part in batch.commits):
                entries = [entry for part in batch.commits for entry in _decode_entries(part.data)]
                yield path, [(agent, number) for agent, number, _, _ in entries]

    def _logs(self, files: Mapping[str, bytes], era: int, plan: int) -> Iterator[list[bytes]]:
        """Yield, for each log of the plans from `era` and below `plan`, the bytes of all commits of which no part is missing."""
        logs: dict[LogName, dict[int, LogBatch]] = {}
        for path, data in files.items():
            place = parse_path(path)
            if place is not None and isinstance(place[1], int) and era <= place[0].plan < plan:
                batch = self._batch(path, data)
                if batch is not None and batch.commits:
                    logs.setdefault(place[0], {})[place[1]] = batch
        for batches in logs.values():
            parts: dict[int, dict[int, CommitPart]] = {}
            for batch in batches.values():
                for part in batch.commits:
                    parts.setdefault(part.commit, {})[part.part] = part
            all_parts = [[pieces[place] for place in sorted(pieces)] for pieces in parts.values()]
            whole = [pieces for pieces in all_parts if pieces[-1].is_last and pieces[-1].part == len(pieces) - 1]
            yield [b"".join([piece.data for piece in pieces]) for pieces in whole]

    def _batch(self, path: str, data: bytes) -> LogBatch | None:
        known = self._batches.get(path)
        if known is None or known[0] != data:
            known = self._batches[path] = data, _decode(path, data)
        return known[1]


def _whole(entries: Mapping[tuple[str, int], tuple[bytes, int]], place: tuple[str, int]) -> bytes | None:
    """Return an agent's encoded checkpoint, or None if it is written as changes of one that is missing."""
    if place not in entries:
        return None
    blob, base = entries[place]
    if not base:
        return blob
    before = _whole(entries, (place[0], base))
    if before is None:
        return None
    changed = bytearray(before)
    for start, length, data in reversed(msgspec.msgpack.decode(blob)[0]):
        changed[start : start + length] = data
    return bytes(changed)


def _decode(path: str, data: bytes) -> LogBatch | None:
    if not is_batch(data):
        return None
    try:
        body = decode_file(data, path=path, store_id=None)
        return open_batch(body, None, path=path) if isinstance(body, BatchBody) else None
    except SnaplineError:
        return None


class CommitOracle:
    """Knows which turns are in durable commits, and checks that nothing else leaves a host.

    The world reports captured commits and the batches that hosts write. Whether a batch is durable is looked up when it matters.
    """

    def __init__(
        self, report: Report, ground_truth: GroundTruth, *, is_durable: Callable[[str], bool], era: Callable[[], int]
    ) -> None:
        """`is_durable` returns whether a file survives a power cut, and `era` returns the plan of the newest restore."""
        self._report = report
        self._ground_truth = ground_truth
        self._is_durable = is_durable
        self._read_era = era
        self._era = 0
        self._captured: dict[str, dict[str, int]] = {}
        """For each host run, the agents of the commit in progress, each with the turns that it had finished."""
        self._written: list[tuple[str, dict[str, int]]] = []
        """The commits whose last part is being written: its path, and the agents' turns."""
        self._durable: dict[str, int] = {}
        self._loaded: tuple[int, dict[str, AgentCheckpoint]] = 0, {}
        """The newest plan under which agents were loaded, and their checkpoints."""
        self._forgotten: dict[str, dict[str, int]] = {}
        """For each agent, the last message to each receiver that the agent did not have when it was loaded last, under any plan."""

    def on_capturing(self, run: str, plan: int) -> None:
        """Record that a run of a host begins a commit."""
        if self._is_of_era(plan):
            self._captured[run] = {}

    def on_captured(self, t_ns: int, run: str, plan: int, committed: CommittedAgent, here: Container[str]) -> None:
        """Record that the commit in progress contains the present state of this agent. `here` contains the agents on its host."""
        agent = committed.agent
        self._captured.setdefault(run, {})[agent] = self._ground_truth.history_of(plan, agent).turns
        if self._is_of_era(plan):
            for receiver, number in committed.sent.items():
                if receiver not in here:
                    self._check_forgotten(t_ns, plan, agent, receiver, number)

    def on_writing(self, run: str, log: LogName, number: int, commits: Iterable[CommitPart]) -> None:
        """Record that a run of a host writes a batch with these parts of commits."""
        if any(part.is_last for part in commits) and self._is_of_era(log.plan):
            self._written.append((entry_path(log, number), self._captured.get(run, {})))

    def on_loaded(self, t_ns: int, plan: int, agent: str, checkpoint: AgentCheckpoint) -> None:
        """Check that no message is lost between an agent and those that were loaded before it under the same plan."""
        if plan > self._loaded[0]:
            self._loaded = plan, {}
        if plan < self._loaded[0]:
            return
        loaded = self._loaded[1]
        loaded[agent] = checkpoint
        self._forgotten[agent] = checkpoint.sent
        for other in loaded.values():
            self._check_channel(t_ns, plan, checkpoint, other)
            self._check_channel(t_ns, plan, other, checkpoint)

    # ---- checks ---------------------------------------------------------------------------------------------------

    def on_consumed(self, t_ns: int, plan: int, sender: str, receiver: str) -> None:
        """Check the message that an agent has consumed last. Its sender is on another host."""
        branch = self._ground_truth.branches.get(plan)
        channel = branch.channels.get((sender, receiver)) if branch is not None else None
        if not self._is_of_era(plan) or channel is None or not 0 < len(channel.consumed_at) <= len(channel.sent_at):
            return
        loaded = self._loaded[1].get(receiver) if self._loaded[0] == plan else None
        if loaded is not None and len(channel.consumed_at) <= _had_from(loaded, sender):
            return  # the message was in a complete epoch; its sender may not have been loaded yet
        turn = channel.sent_at[len(channel.consumed_at) - 1]
        if not self._has_committed(plan, sender, turn):
            text = f"{receiver} consumes a message of turn {turn} of {sender}, which no durable commit contains"
            self._report("commits", "G1", t_ns, text)

    def on_sent(self, t_ns: int, message: HostMessage) -> None:
        """Check a host's request to create or remove agents."""
        match message:
            case ReserveAgents(plan=plan, parent=parent) if parent and self._is_of_era(plan):
                branch = self._ground_truth.branches[plan]
                for child in [each.agent for each in message.agents]:
                    channel = branch.channels.get((parent, child))
                    if channel is not None and channel.sent_at:
                        self._check_asked(t_ns, plan, parent, channel.sent_at[0], f"the creation of {child}")
            case RetireAgent(plan=plan, agent=agent) if self._is_of_era(plan):
                branch = self._ground_truth.branches[plan]
                self._check_asked(t_ns, plan, agent, branch.histories[agent].stopped_at, "its departure")
                self._check_drained(t_ns, branch, agent)
            case _:
                pass

    def _check_channel(self, t_ns: int, plan: int, sender: AgentCheckpoint, receiver: AgentCheckpoint) -> None:
        forgotten = sender.sent.get(receiver.agent, 0)
        got = _had_from(receiver, sender.agent)
        if forgotten > got:
            text = f"{sender.agent} repeats no messages before {forgotten + 1}, and {receiver.agent} has {got}"
            self._report("commits", "G3", t_ns, f"plan {plan}: {text}")

    def _check_forgotten(self, t_ns: int, plan: int, sender: str, receiver: str, number: int) -> None:
        """Check that the receiver has consumed all messages up to this number in a durable commit, or had them when it was loaded."""
        branch = self._ground_truth.branches[plan]
        channel, history = branch.channels.get((sender, receiver)), branch.histories.get(receiver)
        if channel is None or history is None or history.stopped_at:
            return
        if number <= self._forgotten.get(sender, {}).get(receiver, 0):
            return
        consumed = channel.consumed_at[number - 1] if number <= len(channel.consumed_at) else history.turns + 1
        if not self._has_committed(plan, receiver, consumed):
            text = f"a commit of {sender} lacks message {number} to {receiver}, whose consumption no durable commit contains"
            self._report("commits", "G3", t_ns, text)

    def _check_asked(self, t_ns: int, plan: int, agent: str, turn: int, what: str) -> None:
        if not self._has_committed(plan, agent, turn):
            text = f"{what} is asked for after turn {turn} of {agent}, which no durable commit contains"
            self._report("commits", "G3", t_ns, text)

    def _check_drained(self, t_ns: int, branch: Branch, agent: str) -> None:
        for (sender, receiver), channel in branch.channels.items():
            history = branch.histories.get(receiver)
            if sender != agent or receiver == agent or history is None or history.stopped_at or not channel.sent:
                continue
            if len(channel.sent) <= self._forgotten.get(sender, {}).get(receiver, 0):
                continue  # the recovery line contained the messages in transit, and the sender did not have them any more
            last = channel.consumed_at[-1] if len(channel.consumed_at) >= len(channel.sent) else history.turns + 1
            if not self._has_committed(branch.plan, receiver, last):
                text = (
                    f"{agent} leaves, and no durable commit of {receiver} contains the consumption of all its messages"
                )
                self._report("commits", "G3", t_ns, text)

    # ---- positions ------------------------------------------------------------------------------------------------

    def _is_of_era(self, plan: int) -> bool:
        """Return whether this plan does not precede the newest restore. A restore makes all known positions void."""
        era = self._read_era()
        if era != self._era:
            self._era = era
            self._captured, self._written, self._durable = {}, [], {}
        return plan >= era

    def _has_committed(self, plan: int, agent: str, turn: int) -> bool:
        return turn <= self._position(plan, agent) or (self.look() and turn <= self._position(plan, agent))

    def _position(self, plan: int, agent: str) -> int:
        history = self._ground_truth.branches[plan].histories.get(agent)
        origin = history.origin if history is not None else None
        return max(self._durable.get(agent, 0), origin.turns if origin is not None else 0)

    def look(self) -> bool:
        """Look which commits have become durable, and return whether any has. The world calls this before it deletes log files."""
        durable = [each for each in self._written if self._is_durable(each[0])]
        self._written = [each for each in self._written if each not in durable]
        for _, turns in durable:
            for agent, count in turns.items():
                self._durable[agent] = max(count, self._durable.get(agent, 0))
        return bool(durable)


def _had_from(receiver: AgentCheckpoint, sender: str) -> int:
    """Return the number of the last message from this sender that the receiver's checkpoint contains, consumed or in transit."""
    return receiver.received.get(sender, 0) + len(receiver.in_transit.get(sender, ()))
