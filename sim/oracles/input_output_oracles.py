"""Oracles for data that enters or leaves the fleet. The oracles check clients' inputs (R1), answers to inputs (R2), released outputs (R2),
dead letters, and operator commands.

*Inputs.* An acknowledged input takes effect exactly once, despite crashes and rollbacks (R1), and a final answer is never revoked (R2). The
guarantees R1 and R2 hold unless the bytes of a complete epoch are lost. The simulated clients report their inputs and the answers that they
receive. The ground truth records which inputs were consumed in each history, either by a turn or as a dead letter. Each input is identified
by its bytes, which are unique. So the oracle does not need the product's numbers, keys and logs.

*Dropped inputs.* A restore may drop inputs that were accepted before it. A dropped input is not consumed in the epoch to which the fleet is
restored, and has no effect in later histories (R1). If a client resends a dropped input, the answer must not be that the input was already
accepted. To check this, the oracle uses only the plan that drops inputs and the cut from which the plan starts. A later plan that starts
from the same epoch drops the same inputs. A plan that starts from a later epoch in that history inherits the drop. An input was not dropped
if a host accepted it under the dropping plan or a later plan. All other inputs may have been in transit at the time of the restore, so they
may have been dropped.

*Clients.* The input oracle also checks the following promises of a client's core to its program (`client/core.py`).

- The core reports an input as "taken" only after a host has accepted it.
- An input that the core reports as not taken is never consumed, unless it is resent.
- If several of a client's inputs to the same agent have receipts, they were accepted in the order in which they were sent. Inputs whose
  outcome was once in doubt are exempt.
- Each send ends no later than its deadline.
- Every answer that the core passes on was given by a turn of the agent.

*Outputs.* The released outputs are exactly the outputs in the history of their cut, each once and in order. The outputs of rolled-back
epochs are explicitly reverted (R2). The ground truth records the outputs of each turn. Each output is identified by its bytes, which are
unique. When a leader reports a release, the oracle reads the release file in the same way as a reader that has read all earlier files. Such
a reader reverts the outputs of all epochs after the epoch `after`, and then adds the new outputs. For each agent in the cut, the reader
must then have exactly the outputs that the agent's turns had emitted by its position in the cut. If an agent has left the fleet, all its
outputs must be released. The product's output numbers are used only to check that they are consecutive.

*Dead letters.* Each operator command takes effect exactly once, and a retried dead letter gets exactly one turn. The ground truth records
every message that becomes a dead letter, and every turn of a retried dead letter. So it can determine which dead letters an agent has at
its position in a cut: all dead-lettered messages except those that had a turn later. The checkpoint must agree. If a command is executed
without a turn, the world reports the agent's answer: either the dead letter was dropped, or it does not exist.

Dead letters are numbered in order, so the ground truth can also determine their numbers. A command identifies its dead letter by its number
and by a digest of its sender and payload. The digest is part of the wire format.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.agent_runtime.host.host_state import DEAD_LETTERS_KEPT
from snapline.messages.agent_commands import (
    COMMAND_PREFIX,
    DROP,
    RETRY,
    TARGET_GONE,
    DeadLetterCommand,
    is_effect_request,
    is_effect_resolution,
    read_dead_letter_command,
)
from snapline.messages.approvals import is_approval_answer
from snapline.sim.oracles.ground_truth_records import (
    AgentHistory,
    Branch,
    CommandEffect,
    CutPlace,
    CutRecord,
    DeadLetterChange,
    Report,
    show,
    stash_of,
)
from snapline.storage.outputs.output_record import EmittedOutput, Release
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord


class Drop(msgspec.Struct, frozen=True):
    """A restore that dropped inputs, with its plan, the time of its commit, and the number of turns of each agent in the plan's cut."""

    plan: int
    at_ns: int
    turns: Mapping[str, int]


class Drops:
    """The restores in one run that dropped inputs."""

    def __init__(self) -> None:
        self._of_epoch: dict[int, Drop] = {}
        self._of_plan: dict[int, list[Drop]] = {}
        self._accepted: dict[bytes, int] = {}
        """Plan of the host that accepted an input, by the input's payload."""
        self._repeated: dict[bytes, int] = {}
        """Plan of the host that answered that an input had already been accepted, by the input's payload."""

    def on_plan(self, t_ns: int, plan: int, cut: CutRecord | None, *, is_dropping: bool) -> None:
        """Record that a plan starts from a cut, where None means the initial states."""
        if cut is None:
            self._of_plan[plan] = []
            return
        if is_dropping:
            self._of_epoch[cut.epoch] = Drop(plan, t_ns, {agent: place.turns for agent, place in cut.places.items()})
        before = self._of_plan.get(cut.plan, [])
        own = [self._of_epoch[cut.epoch]] if cut.epoch in self._of_epoch else []
        self._of_plan[plan] = [*before, *own]

    def on_taken(self, plan: int, payload: bytes, *, is_repeated: bool) -> None:
        """Record that a host has accepted an input under this plan. If `is_repeated` is True, the host has answered that it had accepted
        the input before."""
        plans = self._repeated if is_repeated else self._accepted
        plans[payload] = max(plan, plans.get(payload, 0))

    def of_plan(self, plan: int) -> list[Drop]:
        """Return the restores in the history of a plan that dropped inputs."""
        return self._of_plan.get(plan, [])

    def may_be_missing(self, plan: int, payload: bytes) -> bool:
        """Return whether an input may have been dropped from the history of a plan."""
        return any(self._accepted.get(payload, 0) < drop.plan for drop in self._of_plan.get(plan, []))

    def was_reported_accepted(self, plan: int, payload: bytes) -> bool:
        """Return whether a resent input was answered with "already accepted" under a plan that had dropped it."""
        last = max([drop.plan for drop in self._of_plan.get(plan, [])], default=0)
        return self._repeated.get(payload, 0) >= last > 0

    def was_dropped(self, plan: int, agent: str, acknowledged_ns: int, turn: int) -> bool:
        """Return whether an input acknowledged at this time had been dropped before this turn in the plan's history."""
        return any(
            acknowledged_ns < drop.at_ns and turn > drop.turns.get(agent, 0) for drop in self._of_plan.get(plan, [])
        )


class InputRecord(msgspec.Struct):
    """The oracle's record of a client's input.

    Attributes:
        serial: position among the client's inputs, in send order.
        acknowledged_ns: time at which the client received the receipt, or 0 if it has received none yet.
        number: input number in the receipt.
        answer: final answer that the client received, or None if it has received none yet.
        is_given_up: whether the input's outcome was once in doubt, or the client has stopped waiting for it. If so, the input may be
            accepted after later inputs.
        is_denied: whether the client was informed that the input was certainly not accepted, and has not resent it.
        is_reported_dead_letter: whether the client was informed that the input is a dead letter.
        words: all numbers under which hosts have accepted the input.
        replies: all answers that turns, in any history, gave to the input.
    """

    agent: str
    client: str
    serial: int
    acknowledged_ns: int = 0
    number: int = 0
    is_given_up: bool = False
    answer: bytes | None = None
    is_denied: bool = False
    is_consumed: bool = False
    is_reported_dead_letter: bool = False
    words: list[int] = []
    replies: list[bytes] = []


class InputOracle:
    """Oracle that checks the clients' inputs in one run and the answers to them.

    Attributes:
        offered: for each input's payload, the record of the input.
        has_fallen_back: whether the fleet was rolled back to a point before a complete epoch, either by a restore or because the epoch's
            bytes were lost.
        has_lost_bytes: whether bytes of a complete epoch were lost, so that a plan started from an older epoch.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.has_fallen_back = self.has_lost_bytes = False
        self.offered: dict[bytes, InputRecord] = {}
        self.drops = Drops()
        self._ordered: dict[tuple[str, str], list[InputRecord]] = {}
        """Inputs with a receipt whose outcome was never in doubt, by (client, agent)."""

    # ---- sends ----------------------------------------------------------------------------------------------------

    def on_offered(self, agent: str, client: str, serial: int, payload: bytes) -> None:
        """Record an input that a client is about to send for the first time."""
        self.offered[payload] = InputRecord(agent, client, serial)

    def on_offered_again(self, payload: bytes, serial: int) -> None:
        """Record that the client resends an input, which now follows all inputs that it has sent before."""
        offered = self.offered[payload]
        if offered.is_denied:
            offered.serial = serial
        offered.is_denied = False

    def on_given_up(self, payload: bytes) -> None:
        """Record that the client has stopped waiting for an input, or that the outcome it received is "unknown"."""
        self.offered[payload].is_given_up = True

    # ---- receipts -------------------------------------------------------------------------------------------------

    def on_taken(self, payload: bytes, plan: int, number: int, *, is_repeated: bool) -> None:
        """Record that a host has answered, under this plan, that it accepts an input or has already accepted it."""
        self.drops.on_taken(plan, payload, is_repeated=is_repeated)
        self.offered[payload].words.append(number)

    def on_acknowledged(self, t_ns: int, payload: bytes, number: int) -> None:
        """Check a receipt that a client has received. A client may receive several receipts for the same input."""
        offered = self.offered[payload]
        if number not in offered.words:
            text = f"{offered.client} was told that {show(payload)} is input {number} of {offered.agent}, and no host has said so"
            self._report("inputs", "R1", t_ns, text)
        if offered.acknowledged_ns and offered.number != number:
            text = f"{show(payload)} for {offered.agent} was acknowledged as input {offered.number} and as {number}"
            self._report("inputs", "R1", t_ns, text)
        is_first = not offered.acknowledged_ns
        offered.acknowledged_ns, offered.number = offered.acknowledged_ns or t_ns, number
        if is_first and not offered.is_given_up:
            self._check_order(t_ns, offered)

    def _check_order(self, t_ns: int, offered: InputRecord) -> None:
        others = self._ordered.setdefault((offered.client, offered.agent), [])
        for other in others:
            if (other.serial < offered.serial) != (other.number < offered.number) and not self.has_fallen_back:
                text = f"inputs {offered.serial} and {other.serial} of {offered.client} are inputs {offered.number} and {other.number} of {offered.agent}"
                self._report("inputs", "R1", t_ns, f"{text}: in another order than they were given")
        others.append(offered)

    def on_denied(self, t_ns: int, payload: bytes, why: str) -> None:
        """Check an answer that informs a client that its input was certainly not accepted since it was last sent."""
        offered = self.offered[payload]
        if offered.acknowledged_ns or offered.is_given_up:
            return  # an earlier send may have been accepted
        offered.is_denied = True
        if offered.is_consumed:
            text = f"{offered.client} was told that {show(payload)} was not taken ({why}), and {offered.agent} has consumed it"
            self._report("inputs", "R1", t_ns, text)

    def on_overdue(self, t_ns: int, client: str, what: str) -> None:
        """Report that a client's program is still waiting after the deadline of its request."""
        self._report("inputs", "R1", t_ns, f"{client} has heard nothing of {what}, and its time is over")

    def on_missing(self, t_ns: int, client: str, agent: str) -> None:
        """Report that a client received the answer that the agent has stopped or does not exist, although the agent exists and has never
        stopped."""
        self._report("inputs", "R1", t_ns, f"{client} was told that {agent} is not there, and it has never stopped")

    # ---- answers --------------------------------------------------------------------------------------------------

    def on_replied(self, payload: bytes, reply: bytes) -> None:
        """Record the answer that a turn gave to an input."""
        offered = self.offered.get(payload)
        if offered is not None:
            offered.replies.append(reply)

    def on_answered(self, t_ns: int, payload: bytes, answer: bytes) -> None:
        """Check the final answer that a client received to an input. The answer is b"" if the input's turn gave none."""
        offered = self.offered[payload]
        if offered.answer not in (None, b"", answer) and not self.has_fallen_back:
            text = (
                f"{show(payload)} for {offered.agent} was answered {show(answer)} after {show(offered.answer or b'')}"
            )
            self._report("answers", "R2", t_ns, text)
        offered.answer = answer

    def on_answered_early(self, t_ns: int, payload: bytes, answer: bytes) -> None:
        """Check an answer that a client received from a turn that may still be rolled back. The answer is b"" if the turn gave none."""
        offered = self.offered[payload]
        if answer and answer not in offered.replies:
            text = f"{show(payload)} for {offered.agent} was answered {show(answer)}, which no turn has answered"
            self._report("answers", "R2", t_ns, text)

    def on_dead_letter_reported(self, payload: bytes) -> None:
        """Record that the client was informed that its input became a dead letter."""
        self.offered[payload].is_reported_dead_letter = True

    def on_fallen_back(self) -> None:
        """Record that a restore returned the fleet to a point before a complete epoch. Such a restore may revoke final answers."""
        self.has_fallen_back = True

    def on_bytes_lost(self) -> None:
        """Record that a complete epoch is damaged and a plan starts from an older epoch. As a result, final answers may be revoked, and
        effects that were called since then may be called again."""
        self.has_fallen_back = self.has_lost_bytes = True

    # ---- consumption ----------------------------------------------------------------------------------------------

    def on_consumed(self, t_ns: int, history: AgentHistory, payload: bytes) -> None:
        """Check that the agent was allowed to consume an input that its latest turn or dead letter in this history has consumed."""
        offered = self.offered.get(payload)
        if offered is None or offered.agent != history.agent:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed {show(payload)}, which nobody offered it")
        elif payload in history.inputs:
            self._report("inputs", "R1", t_ns, f"{history.agent} consumed input {show(payload)} twice")
        elif offered.is_denied:
            text = f"{history.agent} consumed input {show(payload)}, of which {offered.client} was told that it was not taken"
            self._report("inputs", "R1", t_ns, text)
        if offered is not None:
            offered.is_consumed = True

    def check_end(self, t_ns: int, histories: Mapping[str, AgentHistory], living: Iterable[str], plan: int) -> None:
        """Check, when the fleet is idle, that acknowledged inputs took effect in the order of their receipt numbers, and that dropped
        inputs had no effect."""
        alive = dict.fromkeys(living)
        turns_of: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for payload, offered in self.offered.items():
            if not offered.acknowledged_ns:
                continue
            if offered.agent not in alive:
                is_over = not alive  # a fleet that has ended may leave inputs unconsumed
                if not is_over and not offered.is_consumed and not self.drops.may_be_missing(plan, payload):
                    text = f"input {show(payload)} was acknowledged to {offered.client}, and {offered.agent} has stopped without it"
                    self._report("inputs", "R1", t_ns, text)
                continue
            history = histories.get(offered.agent)
            turn = history.inputs.get(payload) if history is not None else None
            if turn is None and self.drops.may_be_missing(plan, payload):
                if self.drops.was_reported_accepted(plan, payload):
                    text = f"input {show(payload)} for {offered.agent} was dropped, and its client was told that it is taken"
                    self._report("inputs", "R1", t_ns, text)
                continue
            if turn is None:
                text = f"input {show(payload)} was acknowledged to {offered.client} as number {offered.number}"
                self._report("inputs", "R1", t_ns, f"{text}, and {offered.agent} has never consumed it")
                continue
            if self.drops.was_dropped(plan, offered.agent, offered.acknowledged_ns, turn):
                text = f"input {show(payload)} was dropped when the fleet was taken back, and {offered.agent} has consumed it"
                self._report("inputs", "R1", t_ns, text)
            final = history.replies.get(payload, b"") if history is not None else b""
            dead_letter_answers = history.dead_letter_answers.get(payload, []) if history is not None else []
            if offered.answer not in (None, final, *dead_letter_answers) and not self.has_fallen_back:
                text = f"input {show(payload)} was answered {show(offered.answer or b'')}, and {offered.agent} has answered {show(final)}"
                self._report("answers", "R2", t_ns, text)
            was_dead_lettered = history is not None and any(
                change.payload == payload for change in history.dead_letters
            )
            if offered.is_reported_dead_letter and not was_dead_lettered and not self.has_fallen_back:
                text = f"{offered.client} was told that input {show(payload)} is a dead letter, and {offered.agent} never had it"
                self._report("answers", "R2", t_ns, text)
            if not offered.is_given_up:
                turns_of.setdefault((offered.client, offered.agent), []).append((offered.serial, turn))
        for (client, agent), numbered in turns_of.items():
            turns = [turn for _, turn in sorted(numbered)]
            if turns != sorted(turns):
                self._report("inputs", "R1", t_ns, f"{agent} consumed inputs of {client} in another order")


class ReadRelease(msgspec.Struct, frozen=True):
    """The outputs that a reader received in one release. Each output consists of its agent, its number and its payload."""

    epoch: int
    outputs: list[tuple[str, int, bytes]]


def flat(had: Iterable[ReadRelease]) -> list[tuple[int, str, int, bytes]]:
    """Return all outputs of the releases, in order."""
    return [(release.epoch, *output) for release in had for output in release.outputs]


class OutputOracle:
    """Oracle that checks the outputs in one run.

    Attributes:
        had: the releases that a reader of all release files has received and that were not reverted.
        emitted: number of outputs that turns have emitted, counted over all histories.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.had: list[ReadRelease] = []
        self.emitted = self.undone = 0
        self._lines: dict[int, int] = {}
        self._plans: dict[int, int] = {}
        """Plan under which each complete epoch began."""
        self._released: dict[int, Release | None] = {}

    # ---- turns and the log ----------------------------------------------------------------------------------------

    def on_emitted(self, history: AgentHistory, payload: bytes) -> None:
        """Record an output that the latest turn in this history has emitted."""
        self.emitted += 1
        history.outputs.append((history.turns, payload))

    def on_plan(self, plan: int, line_epoch: int) -> None:
        """Record a committed plan and the epoch from which it starts."""
        self._lines[plan] = line_epoch

    def on_complete(self, epoch: int, plan: int) -> None:
        """Record that an epoch is complete."""
        self._plans[epoch] = plan

    def on_called(self, t_ns: int, agent: str, key: str, *, is_committed: bool = False) -> None:
        """Check that the request for an effect was released, or is in a durable commit, before the effect is called under this key. After
        that, no failure can revert the request (G12)."""
        key_bytes = key.encode()
        if not is_committed and not any(x[0] == agent and key_bytes in x[2] for each in self.had for x in each.outputs):
            self._report("effects", "G12", t_ns, f"{agent} calls an effect before its intent is released: {key}")

    def on_left(self, t_ns: int, history: AgentHistory) -> None:
        """Check that all outputs of an agent that has left are released. Outputs that are still on the agent's host would be lost."""
        released = [
            payload
            for each in self.had
            if self._counts(each.epoch)
            for of, _, payload in each.outputs
            if of == history.agent
        ]
        emitted = [payload for _, payload in history.outputs]
        if released != emitted:
            text = f"{history.agent} has left with {len(emitted)} outputs, and {_common(released, emitted)} of them are released"
            self._report("outputs", "R2", t_ns, text)

    def _counts(self, epoch: int) -> bool:
        """Return whether the epoch belongs to the history of the current plan. Readers revert the outputs of rolled-back epochs only when
        they read the next release."""
        plan = max(self._lines, default=0)
        while self._plans[epoch] != plan:
            line = self._lines.get(plan, 0)
            if epoch > line or line not in self._plans:
                return False
            plan = self._plans[line]
        return True

    # ---- releases -------------------------------------------------------------------------------------------------

    def on_released(
        self,
        t_ns: int,
        epoch: int,
        release: Release | None,
        cut: CutRecord | None,
        branch: Branch,
        *,
        is_void: bool = False,
    ) -> None:
        """Check an epoch that a leader reports as released. If the epoch's cut in `branch` is known, compare the outputs with the cut.
        `release` is None if there is no release file.

        `is_void` means that the fleet was restored to an earlier epoch, so the epoch is void. A leader that does not know of the restore
        may still release a void epoch, and readers need not receive it.
        """
        if epoch not in self._plans:
            self._say(t_ns, f"epoch {epoch} was released, and was never complete")
            return
        if epoch in self._released:
            if self._released[epoch] != release and (release is not None or self._released[epoch] is not None):
                self._say(t_ns, f"epoch {epoch} was released twice, with other outputs")
            return
        newest = max(self._released, default=0)
        self._released[epoch] = release
        if epoch < newest:
            if release is not None and not is_void:
                self._say(t_ns, f"epoch {epoch} was released after epoch {newest}: who had read that never sees it")
            return
        if release is not None:
            self._take(t_ns, release)
        if cut is not None:
            self._compare(t_ns, epoch, cut, branch)

    def _take(self, t_ns: int, release: Release) -> None:
        before = self._before(release.epoch)
        if release.after != before:
            self._say(t_ns, f"epoch {release.epoch} was released after epoch {release.after}, not after {before}")
        kept = [each for each in self.had if each.epoch <= release.after]
        self.undone += sum([len(each.outputs) for each in self.had[len(kept) :]])
        self.had = [*kept, ReadRelease(release.epoch, [_short(output) for output in release.outputs])]
        numbers: dict[str, int] = {}
        for each in self.had:
            for agent, number, _ in each.outputs:
                if number != numbers.get(agent, 0) + 1:
                    text = (
                        f"output {number} of {agent}, released with epoch {each.epoch}, follows {numbers.get(agent, 0)}"
                    )
                    self._say(t_ns, text)
                numbers[agent] = number

    def _before(self, epoch: int) -> int:
        """Return the epoch that, according to the coordinator's log, precedes this epoch in its history."""
        plan = self._plans[epoch]
        return max(
            [x for x, epoch_plan in self._plans.items() if epoch_plan == plan and x < epoch], default=self._lines[plan]
        )

    def _compare(self, t_ns: int, epoch: int, cut: CutRecord, branch: Branch) -> None:
        """Check that a reader has exactly the outputs that each agent in the cut had emitted by its position in the cut."""
        for agent, place in cut.places.items():
            history = branch.histories.get(agent)
            if history is None or place.is_gone or place.captured is None:
                continue
            emitted = [payload for turn, payload in history.outputs if turn <= place.turns]
            kept = self._had_of(agent)
            if kept != emitted:
                self._say(t_ns, f"epoch {epoch}: {_difference(agent, kept, emitted)}")
                return

    def check_end(self, t_ns: int, epoch: int, cut: CutRecord | None, branch: Branch) -> None:
        """Check, when the fleet is idle or has ended, that the newest epoch is released, even if no leader has reported this."""
        if cut is not None and epoch not in self._released:
            self._compare(t_ns, epoch, cut, branch)

    def check_files(self, t_ns: int, files: Mapping[int, Release]) -> None:
        """Check that all release files still exist and are unchanged."""
        for epoch, release in self._released.items():
            if release is not None and files.get(epoch) != release:
                self._say(t_ns, f"what was released with epoch {epoch} is not there any more")

    def _had_of(self, agent: str) -> list[bytes]:
        return [payload for each in self.had for of, _, payload in each.outputs if of == agent]

    def _say(self, t_ns: int, text: str) -> None:
        self._report("outputs", "R2", t_ns, text)


def _short(output: EmittedOutput) -> tuple[str, int, bytes]:
    return output.agent, output.number, output.topic.encode() + b" " + output.payload


def _common(one: list[bytes], other: list[bytes]) -> int:
    return len(set(one) & set(other))


def _difference(agent: str, kept: list[bytes], emitted: list[bytes]) -> str:
    surplus = [payload for payload in kept if payload not in emitted]
    missing = [payload for payload in emitted if payload not in kept]
    if surplus:
        return f"{show(surplus[0])} of {agent} was released, and is not in the history of that cut"
    if missing:
        return f"{show(missing[0])} of {agent} is in the history of that cut, and was not released"
    return f"outputs of {agent} were released twice, or in another order than they were emitted in"


class KnownDeadLetter(msgspec.Struct, frozen=True):
    """An agent's dead letter. `number` is the dead letter's position among all dead letters that the agent has ever had."""

    number: int
    sender: str
    payload: bytes

    @property
    def identity(self) -> bytes:
        """Return the digest that commands use to identify this dead letter."""
        return identity_of(DeadLetterRecord(self.sender, self.payload, "", 0, 0))


class OperatorCommand(msgspec.Struct):
    """An operator command. `acknowledged_ns` is the time of the command's receipt, or 0 if there is none yet."""

    agent: str
    verb: str
    identity: bytes
    acknowledged_ns: int = 0


class DeadLetterOracle:
    """Oracle that checks the dead letters and operator commands in one run.

    Attributes:
        said: for each key, the operator command with this key.
        effects: for each kind of effect on a dead letter, the number of commands that had it in any history.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.said: dict[str, OperatorCommand] = {}
        self.effects: dict[str, int] = {}

    # ---- operators ------------------------------------------------------------------------------------------------

    def on_command_given(self, agent: str, key: str, payload: bytes) -> None:
        """Record a command that an operator is about to send for the first time."""
        command = read_dead_letter_command(payload)
        self.said[key] = OperatorCommand(agent, command.verb, command.identity)

    def on_acknowledged(self, t_ns: int, key: str) -> None:
        """Record that the operator has received a receipt for a command. The same receipt may be reported several times."""
        self.said[key].acknowledged_ns = self.said[key].acknowledged_ns or t_ns

    # ---- dead letters ---------------------------------------------------------------------------------------------

    def on_dead_lettered(self, history: AgentHistory, sender: str, payload: bytes) -> None:
        """Record that a message, timer or input became a dead letter of its receiver."""
        history.dead_letters.append(DeadLetterChange(history.turns, 0, sender, payload))

    def on_dead_lettered_again(self, t_ns: int, history: AgentHistory, word: bytes) -> None:
        """Record that a retried dead letter has failed again and becomes a new dead letter."""
        dead_letter = _meant(history, read_dead_letter_command(word))
        if dead_letter is None:
            self._say(t_ns, f"{history.agent} has dead-lettered again a dead letter that it does not have")
        else:
            self._over(t_ns, history, dead_letter.sender, dead_letter.payload, "failed again")
            self.on_dead_lettered(history, dead_letter.sender, dead_letter.payload)

    def on_unroutable(self, history: AgentHistory, payload: bytes) -> None:
        """Record that a message became a dead letter of its sender."""
        history.dead_letters.append(DeadLetterChange(0, history.voids, history.agent, payload))

    def on_handled(self, t_ns: int, history: AgentHistory, sender: str, payload: bytes) -> None:
        """Record that a turn has handled a dead letter."""
        self._over(t_ns, history, sender, payload, "handled")

    def on_command_consumed(self, t_ns: int, history: AgentHistory, payload: bytes, reply: bytes) -> None:
        """Check the agent's answer to a command that took no turn."""
        command = read_dead_letter_command(payload)
        dead_letter = _meant(history, command)
        if (reply == TARGET_GONE) != (dead_letter is None):
            actual = "has none" if dead_letter is None else "has it"
            text = f"letter {command.number} of {history.agent} was told to be {'gone' if reply == TARGET_GONE else 'dropped'}, and it {actual}"
            self._say(t_ns, text)
        elif dead_letter is None:
            self._note(history, command.verb, command.identity, "gone")
        elif command.verb != DROP:
            self._say(t_ns, f"letter {command.number} of {history.agent} was to be retried, but was dropped")
        else:
            end = DeadLetterChange(
                history.turns, 0, dead_letter.sender, dead_letter.payload, is_over=True, is_counted=False
            )
            history.dead_letters.append(end)
            self._note(history, DROP, command.identity, "dropped")

    def _over(self, t_ns: int, history: AgentHistory, sender: str, payload: bytes, how: str) -> None:
        dead_letter = next((x for x in dead_letters_of(history) if (x.sender, x.payload) == (sender, payload)), None)
        if dead_letter is None:
            self._say(
                t_ns, f"{history.agent} took a turn for the dead letter {show(payload)} of {sender}, and has none"
            )
            return
        history.dead_letters.append(DeadLetterChange(history.turns, 0, sender, payload, is_over=True))
        self._note(history, RETRY, dead_letter.identity, how)

    def _note(self, history: AgentHistory, verb: str, identity: bytes, how: str) -> None:
        history.words.append(CommandEffect(history.turns, verb, identity))
        self.effects[how] = self.effects.get(how, 0) + 1

    def _say(self, t_ns: int, text: str) -> None:
        self._report("letters", "G3", t_ns, text)

    # ---- the end --------------------------------------------------------------------------------------------------

    def check_end(
        self, t_ns: int, histories: Mapping[str, AgentHistory], living: Iterable[str], drops: Drops, plan: int
    ) -> None:
        """Check, when the fleet is idle, that every acknowledged command has taken effect unless it was dropped, and that none has taken
        effect too often.

        Commands are inputs, so a restore that drops inputs may also drop commands that were accepted before it. Dropped commands have no
        effect after the epoch to which the fleet was restored. There is one exception: if an agent had consumed a command and deferred it
        to a later turn, the checkpoint contains the command.
        """
        alive = dict.fromkeys(living)
        counts: dict[tuple[str, str, bytes], tuple[int, int]] = {}
        for key, given in self.said.items():
            known, all_ = counts.get((given.agent, given.verb, given.identity), (0, 0))
            is_required = given.acknowledged_ns > 0 and not drops.may_be_missing(plan, command_name(key))
            counts[given.agent, given.verb, given.identity] = known + is_required, all_ + 1
        for (agent, verb, identity), (known, all_) in counts.items():
            history = histories.get(agent)
            if agent not in alive or history is None:
                continue
            effects = sum(effect.verb == verb and effect.identity == identity for effect in history.words)
            if not known <= effects <= all_:
                text = f"{all_} words to {verb} a letter of {agent}, {known} of them acknowledged, took effect {effects} times"
                self._say(t_ns, text)
            for drop in drops.of_plan(plan):
                self._check_dropped(t_ns, history, verb, identity, drop)

    def _check_dropped(self, t_ns: int, history: AgentHistory, verb: str, identity: bytes, drop: Drop) -> None:
        given = [x for x in self.said.values() if (x.agent, x.verb, x.identity) == (history.agent, verb, identity)]
        allowed = [x for x in given if not 0 < x.acknowledged_ns < drop.at_ns]
        turns = drop.turns.get(history.agent, 0)
        late = [x for x in history.words if (x.verb, x.identity) == (verb, identity) and x.turns > turns]
        put_off = stash_of(each for each in history.put_off if each[0] <= turns)
        kept = [payload for payload in put_off if _is_command(payload, verb, identity)]
        if len(late) > len(allowed) + len(kept):
            text = f"words to {verb} a letter of {history.agent} took effect {len(late)} times after they were dropped by plan {drop.plan}, and {len(allowed)} were said since"
            self._say(t_ns, text)


def is_retry_of(payload: bytes, sender: str, dead_letter: bytes) -> bool:
    """Return whether this input is an operator command to retry this dead letter."""
    return _is_command(payload, RETRY, KnownDeadLetter(0, sender, dead_letter).identity)


def _is_command(payload: bytes, verb: str, identity: bytes) -> bool:
    is_other = is_effect_resolution(payload) or is_effect_request(payload) or is_approval_answer(payload)
    if payload[:1] != COMMAND_PREFIX or is_other:
        return False
    command = read_dead_letter_command(payload)
    return (command.verb, command.identity) == (verb, identity)


def command_name(key: str) -> bytes:
    """Return the name that identifies a command among the inputs that may have been dropped."""
    return b"word " + key.encode()


def dead_letters_of(history: AgentHistory, place: CutPlace | None = None) -> list[KnownDeadLetter]:
    """Return an agent's dead letters in order, either at present or at a position in a cut."""
    dead_letters: list[KnownDeadLetter] = []
    number = 0
    for change in _changes(history, place):
        if change.is_over:
            dead_letters.remove(
                next(x for x in dead_letters if (x.sender, x.payload) == (change.sender, change.payload))
            )
        else:
            number += 1
            dead_letters.append(KnownDeadLetter(number, change.sender, change.payload))
    return dead_letters


def check_dead_letters(
    history: AgentHistory, place: CutPlace, checkpoint: AgentCheckpoint, epoch: int
) -> Iterator[str]:
    """Yield a description of each difference between the dead letters in a checkpoint and those in the ground truth."""
    changes = _changes(history, place)
    count = len([x for x in changes if not x.is_over]) - len([x for x in changes if x.is_over and x.is_counted])
    prefix = f"epoch {epoch}: {checkpoint.agent}"
    if checkpoint.dead_letter_count != count:
        yield f"{prefix} counts {checkpoint.dead_letter_count} dead letters that were not handled after all, not {count}"
    numbers = zip(checkpoint.dead_letter_numbers.numbers, checkpoint.dead_letters, strict=True)
    kept = [KnownDeadLetter(number, each.sender, each.payload) for number, each in numbers]
    wanted = dead_letters_of(history, place)
    if len(changes) <= DEAD_LETTERS_KEPT and kept != wanted:
        listed = [x.number for x in kept], [x.number for x in wanted]
        yield f"{prefix} has the dead letters {listed[0]}; {listed[1]} were buried, and neither handled nor dropped"


def _changes(history: AgentHistory, place: CutPlace | None) -> list[DeadLetterChange]:
    if place is None:
        return history.dead_letters
    return [x for x in history.dead_letters if x.is_inside(place.turns, place.voids)]


def _meant(history: AgentHistory, word: DeadLetterCommand) -> KnownDeadLetter | None:
    return next((x for x in dead_letters_of(history) if (x.number, x.identity) == (word.number, word.identity)), None)
