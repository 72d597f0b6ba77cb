"""Dead letters, and what operators say about them: each word takes effect once, and a letter that was retried has had its turn once.

The books know of every burial, and of every turn that a letter had after all. So they know which letters each agent has at its place in a cut, and
how many it counts: all that were buried, less those that had turns. The checkpoint must say the same. Of a word without a turn the
world says what the agent was told: that its letter was dropped, or that there was none.

Letters are numbered as they were buried, so the books know their numbers too. A word names its letter by the number, and by a digest of sender and
payload, which is part of the wire.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from snapline.agent_runtime.host.dead_letters import identity_of
from snapline.agent_runtime.host.local_agent import DEAD_LETTERS_KEPT
from snapline.messages.dead_letters import DROP, GONE, RETRY, WORD, DeadLetterCommand, read_word
from snapline.messages.effect_words import is_effect_request, is_effect_word
from snapline.sim.oracles.drops import Drop, Drops
from snapline.sim.oracles.ground_truth_records import (
    AgentHistory,
    CommandEffect,
    CutPlace,
    DeadLetterChange,
    Report,
    show,
)
from snapline.storage.packs.checkpoint import AgentCheckpoint, DeadLetterRecord


class Letter(msgspec.Struct, frozen=True):
    """Dead letter of an agent. `number`: among all that it ever had."""

    number: int
    sender: str
    payload: bytes

    @property
    def identity(self) -> bytes:
        """Identity by which words name the letter."""
        return identity_of(DeadLetterRecord(self.sender, self.payload, "", 0, 0))


class GivenCommand(msgspec.Struct):
    """One word, under a key of its own. `acknowledged_ns`: 0 while it was not."""

    agent: str
    verb: str
    identity: bytes
    acknowledged_ns: int = 0


class LetterOracle:
    """Dead-letter oracle of one run.

    Attributes:
        said: words by key.
        effects: of words, by what became of their letters, in all histories together.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.said: dict[str, GivenCommand] = {}
        self.effects: dict[str, int] = {}

    # ---- operators ------------------------------------------------------------------------------------------------

    def on_said(self, agent: str, key: str, payload: bytes) -> None:
        """Note a word that an operator is about to send for the first time."""
        word = read_word(payload)
        self.said[key] = GivenCommand(agent, word.verb, word.identity)

    def on_acknowledged(self, t_ns: int, key: str) -> None:
        """Note that the operator got the receipt, perhaps again."""
        self.said[key].acknowledged_ns = self.said[key].acknowledged_ns or t_ns

    # ---- letters --------------------------------------------------------------------------------------------------

    def on_dead_lettered(self, history: AgentHistory, sender: str, payload: bytes) -> None:
        """A message, a timer or an input has just become a dead letter of its receiver."""
        history.letters.append(DeadLetterChange(history.turns, 0, sender, payload))

    def on_buried_again(self, t_ns: int, history: AgentHistory, word: bytes) -> None:
        """A letter was retried, and has failed again: it is a new one."""
        letter = _meant(history, read_word(word))
        if letter is None:
            self._say(t_ns, f"{history.agent} has buried again a letter that it does not have")
        else:
            self._over(t_ns, history, letter.sender, letter.payload, "failed again")
            self.on_dead_lettered(history, letter.sender, letter.payload)

    def on_unroutable(self, history: AgentHistory, payload: bytes) -> None:
        """A message has just become a dead letter of its sender."""
        history.letters.append(DeadLetterChange(0, history.voids, history.agent, payload))

    def on_handled(self, t_ns: int, history: AgentHistory, sender: str, payload: bytes) -> None:
        """A letter has had a turn after all."""
        self._over(t_ns, history, sender, payload, "handled")

    def on_word_taken(self, t_ns: int, history: AgentHistory, payload: bytes, told: bytes) -> None:
        """Check the answer to a word that took no turn."""
        word = read_word(payload)
        letter = _meant(history, word)
        if (told == GONE) != (letter is None):
            there = "has none" if letter is None else "has it"
            text = f"letter {word.number} of {history.agent} was told to be {'gone' if told == GONE else 'dropped'}, and it {there}"
            self._say(t_ns, text)
        elif letter is None:
            self._note(history, word.verb, word.identity, "gone")
        elif word.verb != DROP:
            self._say(t_ns, f"letter {word.number} of {history.agent} was to be retried, and was dropped")
        else:
            end = DeadLetterChange(history.turns, 0, letter.sender, letter.payload, is_over=True, is_counted=False)
            history.letters.append(end)
            self._note(history, DROP, word.identity, "dropped")

    def _over(self, t_ns: int, history: AgentHistory, sender: str, payload: bytes, how: str) -> None:
        letter = next((x for x in dead_letters_of(history) if (x.sender, x.payload) == (sender, payload)), None)
        if letter is None:
            self._say(
                t_ns, f"{history.agent} took a turn for the dead letter {show(payload)} of {sender}, and has none"
            )
            return
        history.letters.append(DeadLetterChange(history.turns, 0, sender, payload, is_over=True))
        self._note(history, RETRY, letter.identity, how)

    def _note(self, history: AgentHistory, verb: str, identity: bytes, how: str) -> None:
        history.words.append(CommandEffect(history.turns, verb, identity))
        self.effects[how] = self.effects.get(how, 0) + 1

    def _say(self, t_ns: int, text: str) -> None:
        self._report("letters", "G3", t_ns, text)

    # ---- the end --------------------------------------------------------------------------------------------------

    def check_end(
        self, t_ns: int, histories: Mapping[str, AgentHistory], living: Iterable[str], drops: Drops, plan: int
    ) -> None:
        """The fleet rests: what was acknowledged, and not dropped, has had its effect, and nothing more often than it was said.

        Words are inputs: those accepted before a restore without inputs may be missing, and have no effect past the target.
        """
        there = dict.fromkeys(living)
        counts: dict[tuple[str, str, bytes], tuple[int, int]] = {}
        for key, said in self.said.items():
            known, all_ = counts.get((said.agent, said.verb, said.identity), (0, 0))
            must = said.acknowledged_ns > 0 and not drops.may_be_missing(plan, word_name(key))
            counts[said.agent, said.verb, said.identity] = known + must, all_ + 1
        for (agent, verb, identity), (known, all_) in counts.items():
            history = histories.get(agent)
            if agent not in there or history is None:
                continue
            effects = sum(each.verb == verb and each.identity == identity for each in history.words)
            if not known <= effects <= all_:
                text = f"{all_} words to {verb} a letter of {agent}, {known} of them acknowledged, took effect {effects} times"
                self._say(t_ns, text)
            for drop in drops.of_plan(plan):
                self._check_dropped(t_ns, history, verb, identity, drop)

    def _check_dropped(self, t_ns: int, history: AgentHistory, verb: str, identity: bytes, drop: Drop) -> None:
        found = [x for x in self.said.values() if (x.agent, x.verb, x.identity) == (history.agent, verb, identity)]
        may = [x for x in found if not 0 < x.acknowledged_ns < drop.at_ns]
        turns = drop.turns.get(history.agent, 0)
        late = [x for x in history.words if (x.verb, x.identity) == (verb, identity) and x.turns > turns]
        if len(late) > len(may):
            text = f"words to {verb} a letter of {history.agent} took effect {len(late)} times after they were dropped by plan {drop.plan}, and {len(may)} were said since"
            self._say(t_ns, text)


def is_retry_of(payload: bytes, sender: str, letter: bytes) -> bool:
    """Return whether this input is a word that has the dead letter retried."""
    if payload[:1] != WORD or is_effect_word(payload) or is_effect_request(payload):
        return False
    word = read_word(payload)
    return word.verb == RETRY and word.identity == Letter(0, sender, letter).identity


def word_name(key: str) -> bytes:
    """Return the name of a word among inputs that may be dropped."""
    return b"word " + key.encode()


def dead_letters_of(history: AgentHistory, place: CutPlace | None = None) -> list[Letter]:
    """The letters that an agent has, now or at a place, in order."""
    found: list[Letter] = []
    number = 0
    for each in _changes(history, place):
        if each.is_over:
            found.remove(next(x for x in found if (x.sender, x.payload) == (each.sender, each.payload)))
        else:
            number += 1
            found.append(Letter(number, each.sender, each.payload))
    return found


def check_letters(history: AgentHistory, place: CutPlace, checkpoint: AgentCheckpoint, epoch: int) -> Iterator[str]:
    """Yield differences between the letters of a checkpoint and the books."""
    changes = _changes(history, place)
    count = len([x for x in changes if not x.is_over]) - len([x for x in changes if x.is_over and x.is_counted])
    where = f"epoch {epoch}: {checkpoint.agent}"
    if checkpoint.dead_letter_count != count:
        yield f"{where} counts {checkpoint.dead_letter_count} dead letters that were not handled after all, not {count}"
    numbers = zip(checkpoint.dead_letter_numbers.numbers, checkpoint.dead_letters, strict=True)
    kept = [Letter(number, each.sender, each.payload) for number, each in numbers]
    wanted = dead_letters_of(history, place)
    if len(changes) <= DEAD_LETTERS_KEPT and kept != wanted:
        which = [x.number for x in kept], [x.number for x in wanted]
        yield f"{where} has the dead letters {which[0]}; {which[1]} were buried, and neither handled nor dropped"


def _changes(history: AgentHistory, place: CutPlace | None) -> list[DeadLetterChange]:
    if place is None:
        return history.letters
    return [x for x in history.letters if x.is_inside(place.turns, place.voids)]


def _meant(history: AgentHistory, word: DeadLetterCommand) -> Letter | None:
    return next((x for x in dead_letters_of(history) if (x.number, x.identity) == (word.number, word.identity)), None)
