"""Oracle of dead letters and their operator commands: each command takes effect once, and a retried dead letter has one turn.

The ground truth records every message that becomes a dead letter, and every turn of a retried dead letter. So the ground truth knows which
dead letters each agent has at its position in a cut, and their number: all that were dead-lettered, minus those that had turns. The
checkpoint must agree. For a command without a turn, the world reports the agent's answer: the dead letter was dropped, or there was none.

Dead letters are numbered in order, so the ground truth knows their numbers too. A command identifies its dead letter by number and by a
digest of sender and payload, which is part of the wire format.
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
from snapline.sim.oracles.ground_truth_records import (
    AgentHistory,
    CommandEffect,
    CutPlace,
    DeadLetterChange,
    Report,
    show,
    stash_of,
)
from snapline.sim.oracles.input_output_oracles import Drop, Drops
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord


class KnownDeadLetter(msgspec.Struct, frozen=True):
    """Dead letter of an agent. `number` is its position among all dead letters that the agent ever had."""

    number: int
    sender: str
    payload: bytes

    @property
    def identity(self) -> bytes:
        """Return the digest with which commands identify this dead letter."""
        return identity_of(DeadLetterRecord(self.sender, self.payload, "", 0, 0))


class OperatorCommand(msgspec.Struct):
    """An operator command with its own key. `acknowledged_ns` is the time of its receipt, or 0 if there is none yet."""

    agent: str
    verb: str
    identity: bytes
    acknowledged_ns: int = 0


class DeadLetterOracle:
    """Dead-letter oracle of one simulated run.

    Attributes:
        said: operator commands by key.
        effects: number of commands in all histories, by what happened to their dead letters.
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
        """Record that the operator received the receipt of a command, possibly again."""
        self.said[key].acknowledged_ns = self.said[key].acknowledged_ns or t_ns

    # ---- dead letters ---------------------------------------------------------------------------------------------

    def on_dead_lettered(self, history: AgentHistory, sender: str, payload: bytes) -> None:
        """Record that a message, timer or input became a dead letter of its receiver."""
        history.dead_letters.append(DeadLetterChange(history.turns, 0, sender, payload))

    def on_dead_lettered_again(self, t_ns: int, history: AgentHistory, word: bytes) -> None:
        """Record that a retried dead letter failed again and becomes a new dead letter."""
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
        """Record that a turn handled a dead letter."""
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
        """Check an idle fleet: every acknowledged command that was not dropped has taken effect, and none more often than it was given.

        Commands are inputs. A restore without inputs may drop commands that were accepted before it; they have no effect after the target
        epoch, unless its checkpoint holds them: the agent had consumed them, and put them off to a later turn.
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
    """Return whether this input is a command to retry the dead letter."""
    return _is_command(payload, RETRY, KnownDeadLetter(0, sender, dead_letter).identity)


def _is_command(payload: bytes, verb: str, identity: bytes) -> bool:
    if payload[:1] != COMMAND_PREFIX or is_effect_resolution(payload) or is_effect_request(payload):
        return False
    command = read_dead_letter_command(payload)
    return (command.verb, command.identity) == (verb, identity)


def command_name(key: str) -> bytes:
    """Return the name of a command among the inputs that may be dropped."""
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
    """Yield descriptions of differences between the dead letters of a checkpoint and the ground truth."""
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
