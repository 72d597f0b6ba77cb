"""The part of a host core that keeps agents' dead letters, numbers them, and carries out operator commands on them.

An agent's letters are numbered 1, 2, 3 … over all its lives, and keep their numbers when others are taken out. An operator command
(`messages/dead_letters.py`) is an input of the agent, so it has its place among the agent's turns, once. *Drop*: the letter is forgotten.
*Retry*: the command's turn is that of the letter, with its sender and payload. The removal of the letter, the work of its handler and the
consumption of the command are in the same checkpoints, so none of it happens twice. If it fails again it is a new letter.

A command about an effect that has ended (`effect_wishes.py`) is of this kind, too: about the letter of the effect's turn, or about a compensation,
whose turn is as that of a letter that was never kept.
"""

from snapline.agent_runtime.host import effect_wishes
from snapline.agent_runtime.host.local_agent import DEAD_LETTERS_KEPT, Entry, LocalAgent
from snapline.messages.dead_letters import DROP, GONE, RETRY, WORD, DeadLetterCommand, read_word
from snapline.messages.effect_words import EffectRetry, is_effect_request, is_effect_word, read_effect_request
from snapline.messages.payloads import CREATE
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import DeadLetterRecord, StashedMessage
from snapline.storage.store.record import digest_of

IDENTITY_BYTES = 8


def is_word(entry: Entry) -> bool:
    """Return whether the entry is an operator command."""
    if entry[0] is not None or entry[2][:1] != WORD:
        return False
    mark = entry[1]
    return isinstance(mark, LoggedInput) or (isinstance(mark, StashedMessage) and bool(mark.key))


def key_of(entry: Entry) -> str:
    """Return the key of an input, or of an operator command; "" for anything else."""
    return entry[1].key if isinstance(entry[1], LoggedInput | StashedMessage) else ""


def is_from_outside(letter: DeadLetterRecord) -> bool:
    """Return whether the letter was an input. Its client has a receipt."""
    return letter.sender.startswith("@")


def is_drop(payload: bytes) -> bool:
    """Return whether this command drops a letter."""
    is_of_letters = payload[:1] == WORD and not (is_effect_word(payload) or is_effect_request(payload))
    return is_of_letters and read_word(payload).verb == DROP


def identity_of(letter: DeadLetterRecord) -> bytes:
    """Return an identity: the same for the same message of the same sender."""
    return digest_of(letter.sender.encode() + b"\x00" + letter.payload)[:IDENTITY_BYTES]


def add(agent: LocalAgent, letter: DeadLetterRecord) -> None:
    """Add a new letter. The newest hundred are kept."""
    agent.last_dead_letter += 1
    agent.dead_letter_count += 1
    agent.dead_letters.append(letter)
    agent.dead_letter_numbers.append(agent.last_dead_letter)
    del agent.dead_letters[:-DEAD_LETTERS_KEPT], agent.dead_letter_numbers[:-DEAD_LETTERS_KEPT]


def dead_letter_of(agent: LocalAgent, payload: bytes) -> DeadLetterRecord | None:
    """Return the letter that this command is about; None: it is not there any more."""
    wish = _undoing(payload)
    if wish is not None:
        return DeadLetterRecord(agent.id, effect_wishes.turn_of(agent, wish), "", 0, 0)
    place = _place_of(agent, _word_of(agent, payload))
    return None if place is None else agent.dead_letters[place]


def _undoing(payload: bytes) -> EffectRetry | None:
    """Return the request to call a compensation; None: the command is about a letter."""
    wish = read_effect_request(payload) if is_effect_request(payload) else None
    return wish if wish is not None and effect_wishes.undoes(wish) else None


def _word_of(agent: LocalAgent, payload: bytes) -> DeadLetterCommand:
    """Return the command and its letter. An effect knows the letter of its turn, if it failed with it."""
    if not is_effect_request(payload):
        return read_word(payload)
    number = effect_wishes.dead_letter_of(agent, read_effect_request(payload))
    if number not in agent.dead_letter_numbers:
        return DeadLetterCommand(RETRY, 0, b"")
    return DeadLetterCommand(RETRY, number, identity_of(agent.dead_letters[agent.dead_letter_numbers.index(number)]))


def _place_of(agent: LocalAgent, word: DeadLetterCommand) -> int | None:
    if word.number not in agent.dead_letter_numbers:
        return None
    place = agent.dead_letter_numbers.index(word.number)
    return place if identity_of(agent.dead_letters[place]) == word.identity else None


def refusal_of(agent: LocalAgent, payload: bytes) -> str:
    """Return why the agent refuses this command; "" if it may have its turn."""
    if is_effect_request(payload):
        return effect_wishes.refusal_of(agent, read_effect_request(payload))
    word, letter = read_word(payload), dead_letter_of(agent, payload)
    if letter is None:
        known = ", ".join(map(str, agent.dead_letter_numbers)) or "none"
        return f"agent {agent.id!r} has no such dead letter {word.number}; those that it has: {known}"
    if word.verb == RETRY and letter.payload[:1] == CREATE:
        return f"dead letter {word.number} of agent {agent.id!r} is the creation of an agent: drop it, and have it spawned again"
    return ""


def settled(agent: LocalAgent, entry: Entry) -> bytes | None:
    """Do what takes no turn; return the answer to the operator, or None where the letter is to have one."""
    if is_effect_word(entry[2]):
        return GONE  # the turn that it is about would have taken it
    wish = _undoing(entry[2])
    if wish is not None:
        return effect_wishes.settled(agent, wish)
    word = _word_of(agent, entry[2])
    place = _place_of(agent, word)
    if place is None:
        return GONE
    if word.verb != DROP:
        return None
    _take_out(agent, place)
    return b""


def turn_of(agent: LocalAgent, payload: bytes) -> tuple[str, str, bytes]:
    """Return the kind, the sender and the payload of a command's turn: those of the letter."""
    letter = dead_letter_of(agent, payload)
    assert letter is not None, "it was there when the turn was chosen"
    return ("letter" if letter.payload else "start"), letter.sender, letter.payload


def handled(agent: LocalAgent, word: Entry) -> None:
    """Take out a letter whose turn, or its first segment, has ended well: it was none after all, and its client has the answer to the command."""
    wish = _undoing(word[2])
    if wish is not None:
        effect_wishes.begun(agent, wish)
        return
    place = _place_of(agent, _word_of(agent, word[2]))
    if place is not None:
        if agent.dead_letters[place].key and agent.inputs is not None:
            agent.inputs.retried(agent.dead_letters[place].key, key_of(word))
        _take_out(agent, place)
        agent.dead_letter_count -= 1


def buried_again(agent: LocalAgent, word: Entry) -> DeadLetterRecord | None:
    """Take out and return a letter whose turn has failed: it becomes a new one."""
    letter = dead_letter_of(agent, word[2])
    handled(agent, word)
    return letter


def _take_out(agent: LocalAgent, place: int) -> None:
    del agent.dead_letters[place], agent.dead_letter_numbers[place]
