"""The part of a host core that keeps agents' dead letters, numbers them, and carries out operator commands on them.

An agent's dead letters are numbered from 1 over all its incarnations, and keep their numbers when others are removed. An operator command
(`messages/agent_commands.py`) is an input of the agent, so it takes effect exactly once, in a turn. *Drop*: the dead letter is forgotten. *Retry*: the
command's turn handles the dead letter, with its sender and payload. The removal of the dead letter, the work of its handler and the consumption of
the command are in the same checkpoints, so none of it happens twice. If the handler fails again, the result is a new dead letter.

A command about an effect that has ended (`effect_requests.py`) works in the same way. It concerns the dead letter of the effect's turn, or a
compensation, whose turn is like that of a dead letter that was never stored.
"""

from snapline.agent_runtime.host import effect_requests
from snapline.agent_runtime.host.local_agent import DEAD_LETTERS_KEPT, Entry, LocalAgent
from snapline.messages.agent_commands import (
    COMMAND_PREFIX,
    DROP,
    RETRY,
    TARGET_GONE,
    DeadLetterCommand,
    EffectRetry,
    is_effect_request,
    is_effect_resolution,
    read_dead_letter_command,
    read_effect_request,
)
from snapline.messages.payloads import CREATE
from snapline.storage.disk.record import digest_of
from snapline.storage.log.record import LoggedInput
from snapline.storage.packs.checkpoint import DeadLetterRecord, StashedMessage

IDENTITY_BYTES = 8


def is_operator_command(entry: Entry) -> bool:
    """Return whether the entry is an operator command."""
    if entry[0] is not None or entry[2][:1] != COMMAND_PREFIX:
        return False
    mark = entry[1]
    return isinstance(mark, LoggedInput) or (isinstance(mark, StashedMessage) and bool(mark.key))


def parse_effect_key(entry: Entry) -> str:
    """Return the key of an input, or of an operator command; "" for anything else."""
    return entry[1].key if isinstance(entry[1], LoggedInput | StashedMessage) else ""


def is_from_outside(letter: DeadLetterRecord) -> bool:
    """Return whether the dead letter was an input, whose client has a receipt."""
    return letter.sender.startswith("@")


def is_drop(payload: bytes) -> bool:
    """Return whether this command drops a dead letter."""
    is_of_letters = payload[:1] == COMMAND_PREFIX and not (is_effect_resolution(payload) or is_effect_request(payload))
    return is_of_letters and read_dead_letter_command(payload).verb == DROP


def identity_of(letter: DeadLetterRecord) -> bytes:
    """Return an identity: the same for the same message of the same sender."""
    return digest_of(letter.sender.encode() + b"\x00" + letter.payload)[:IDENTITY_BYTES]


def add(agent: LocalAgent, letter: DeadLetterRecord) -> None:
    """Add a new dead letter. The newest hundred are kept."""
    agent.last_dead_letter += 1
    agent.dead_letter_count += 1
    agent.dead_letters.append(letter)
    agent.dead_letter_numbers.append(agent.last_dead_letter)
    del agent.dead_letters[:-DEAD_LETTERS_KEPT], agent.dead_letter_numbers[:-DEAD_LETTERS_KEPT]


def dead_letter_of(agent: LocalAgent, payload: bytes) -> DeadLetterRecord | None:
    """Return the dead letter that this command is about; None if it no longer exists."""
    request = _compensation_request(payload)
    if request is not None:
        return DeadLetterRecord(agent.id, effect_requests.compensation_message_of(agent, request), "", 0, 0)
    place = _place_of(agent, _command_of(agent, payload))
    return None if place is None else agent.dead_letters[place]


def _compensation_request(payload: bytes) -> EffectRetry | None:
    """Return the request to call a compensation; None: the command is about a dead letter."""
    request = read_effect_request(payload) if is_effect_request(payload) else None
    return request if request is not None and effect_requests.is_compensation_request(request) else None


def _command_of(agent: LocalAgent, payload: bytes) -> DeadLetterCommand:
    """Return the command for the dead letter. An effect that failed with its turn knows the turn's dead letter."""
    if not is_effect_request(payload):
        return read_dead_letter_command(payload)
    number = effect_requests.dead_letter_number_of(agent, read_effect_request(payload))
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
        return effect_requests.refusal_of_effect_request(agent, read_effect_request(payload))
    command, dead_letter = read_dead_letter_command(payload), dead_letter_of(agent, payload)
    if dead_letter is None:
        known = ", ".join(map(str, agent.dead_letter_numbers)) or "none"
        return f"agent {agent.id!r} has no such dead letter {command.number}; those that it has: {known}"
    if command.verb == RETRY and dead_letter.payload[:1] == CREATE:
        return f"dead letter {command.number} of agent {agent.id!r} is the creation of an agent: drop it, and have it spawned again"
    return ""


def settled(agent: LocalAgent, entry: Entry) -> bytes | None:
    """Carry out a command without a turn; return the answer to the operator, or None if the dead letter gets a turn."""
    if is_effect_resolution(entry[2]):
        return TARGET_GONE  # its turn would have taken the command
    request = _compensation_request(entry[2])
    if request is not None:
        return effect_requests.settled_compensation(agent, request)
    command = _command_of(agent, entry[2])
    place = _place_of(agent, command)
    if place is None:
        return TARGET_GONE
    if command.verb != DROP:
        return None
    _take_out(agent, place)
    return b""


def turn_of(agent: LocalAgent, payload: bytes) -> tuple[str, str, bytes]:
    """Return the kind, sender and payload of a command's turn, which are those of the dead letter."""
    dead_letter = dead_letter_of(agent, payload)
    assert dead_letter is not None, "it was there when the turn was chosen"
    return ("letter" if dead_letter.payload else "start"), dead_letter.sender, dead_letter.payload


def handled(agent: LocalAgent, word: Entry) -> None:
    """Remove a dead letter whose turn, or its first segment, succeeded: its client gets the answer to the command."""
    request = _compensation_request(word[2])
    if request is not None:
        effect_requests.begin_compensation(agent, request)
        return
    place = _place_of(agent, _command_of(agent, word[2]))
    if place is not None:
        if agent.dead_letters[place].key and agent.inputs is not None:
            agent.inputs.retried(agent.dead_letters[place].key, parse_effect_key(word))
        _take_out(agent, place)
        agent.dead_letter_count -= 1


def take_failed_retry(agent: LocalAgent, word: Entry) -> DeadLetterRecord | None:
    """Remove and return a dead letter whose turn has failed: it becomes a new one."""
    record = dead_letter_of(agent, word[2])
    handled(agent, word)
    return record


def _take_out(agent: LocalAgent, place: int) -> None:
    del agent.dead_letters[place], agent.dead_letter_numbers[place]
