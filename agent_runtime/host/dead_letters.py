"""The host core's component for dead letters. The component numbers and keeps agents' dead letters, and executes operator commands on dead
letters and effects.

The dead letters of an agent are numbered from 1 across all its incarnations. A dead letter keeps its number when other dead letters are
removed. An operator command (`messages/agent_commands.py`) is an input of the agent, and therefore takes effect exactly once.

*Dead letters.* The command "drop" removes the dead letter. The command "retry" handles the dead letter again, with its original sender and
payload, in the turn of the command. The same checkpoint contains the removal of the dead letter, the handler's work and the consumption of
the command, so none of them happens twice. If the handler fails again, the message becomes a new dead letter.

*Effects that have ended.* The command "undo" runs the compensation in a turn of the agent, as after a failed turn. The command "retry"
retries the dead letter of the failed turn, or calls a failed compensation again. Both commands are idempotent, because completed work is
not repeated.

*The effect that an agent waits for.* The waiting turn consumes one resolution by an operator (`durable_turns.py`). Resolutions that arrive
later do not run a turn. The senders of late resolutions are informed that the resolutions came too late.
"""

from snapline.agent_runtime.durable import DONE
from snapline.agent_runtime.effect_ledger import undo_payload
from snapline.agent_runtime.host.agent_effects import COMPENSATED
from snapline.agent_runtime.host.entries import CommandEntry, Entry
from snapline.agent_runtime.host.host_events import TurnKind
from snapline.agent_runtime.host.host_state import DEAD_LETTERS_KEPT, LocalAgent
from snapline.messages import client_requests
from snapline.messages.agent_commands import (
    COMMAND_PREFIX,
    DROP,
    RETRY,
    TARGET_GONE,
    UNDO,
    DeadLetterCommand,
    EffectResolution,
    EffectRetry,
    is_effect_request,
    is_effect_resolution,
    read_dead_letter_command,
    read_effect_request,
    read_effect_resolution,
)
from snapline.messages.approvals import is_approval_answer
from snapline.messages.client_requests import REFUSED, InputOutcome
from snapline.messages.effect_records import effect_undone_by
from snapline.messages.payloads import CREATE
from snapline.storage.disk.record import digest_of
from snapline.storage.packs.checkpoint import DeadLetterRecord, KnownEffect, MadeEffect, OpenEffect

_FINISHED = b""
"""Reply to a command that requests something already done."""


def refusal_of_effect_request(agent: LocalAgent, request: EffectRetry) -> str:
    """Return the reason why the command is refused, or "" if the command is accepted."""
    description = f"effect {_shown(request)} of agent {agent.id!r}"
    known = _known(agent, request)
    if agent.effects is not None and agent.effects.find_open(request.key, request.generation) is not None:
        return f"{description} has not ended: see `snapline agent describe {agent.id}`"
    if known is None:
        return f"{description} is not known to it, or not any more: see `snapline effect list --agent {agent.id}`"
    if request.verb == UNDO and effect_undone_by(request.key) is not None:
        return f"{description} undoes another one, and is not undone itself: have the agent ask anew for what is to be done"
    if request.verb == UNDO:
        return (
            ""
            if _is_compensated(known, request) or known.undo
            else f"{description} was asked for without a compensation"
        )
    return _why_no_retry(agent, known, request, description)


def _why_no_retry(agent: LocalAgent, known: KnownEffect, request: EffectRetry, shown: str) -> str:
    if effect_undone_by(request.key) is not None:
        return f"{shown} is done: there is nothing to try again" if _is_compensated(known, request) else ""
    if _is_compensated(known, request):
        return f"{shown} was undone: it is done anew when its agent asks for it again"
    if known.outcome == DONE:
        return f"{shown} is done: there is nothing to try again"
    if not known.is_orphan:
        return f"{shown} failed, and its turn went on without it: it is tried again when its agent asks for it again"
    if known.dead_letter not in agent.dead_letter_numbers:
        return f"{shown} failed with its turn, and the dead letter of that is gone"
    return ""


def is_compensation_request(request: EffectRetry) -> bool:
    """Return whether the command requests the first call or a repeated call of a compensation."""
    return request.verb == UNDO or effect_undone_by(request.key) is not None


def dead_letter_number_of(agent: LocalAgent, request: EffectRetry) -> int:
    """Return the number of the dead letter that the command retries, or 0 if there is no such dead letter."""
    known = _known(agent, request)
    return known.dead_letter if known is not None and known.is_orphan and known.outcome != DONE else 0


def settled_compensation(agent: LocalAgent, request: EffectRetry) -> bytes | None:
    """Return the reply to a compensation request that needs no turn or cannot have one. Otherwise return None."""
    known = _known(agent, request)
    if known is not None and _is_compensated(known, request):
        return _FINISHED
    return None if known is not None and known.undo else TARGET_GONE


def compensation_message_of(agent: LocalAgent, request: EffectRetry) -> bytes:
    """Return the message that starts the turn in which the effect is undone."""
    known = _known(agent, request)
    assert known is not None, "it was there when the turn was chosen"
    return undo_payload([MadeEffect(known.key, known.generation, known.name, known.undo, known.undo_arguments)])


def begin_compensation(agent: LocalAgent, request: EffectRetry) -> None:
    """Mark the effect as an orphan when the command's turn begins, because no other turn may rely on the effect from now on."""
    known = _known(agent, request)
    if known is not None and agent.effects is not None:
        agent.effects.give_up(known.key)


def _known(agent: LocalAgent, request: EffectRetry) -> KnownEffect | None:
    """Return the agent's record of the effect, or None if there is no record. If the effect is a compensation, use the record of the effect
    that it undoes."""
    undone = effect_undone_by(request.key)
    if agent.effects is None or (undone is not None and request.key not in agent.effects.keys):
        return None
    key, generation = undone or (request.key, request.generation)
    known = agent.effects.keys.get(key)
    return known if known is not None and 1 <= generation <= known.generation else None


def _is_compensated(known: KnownEffect, request: EffectRetry) -> bool:
    """Return whether the effect has been undone. An effect of an earlier generation has always been undone, because otherwise the later
    generation would not exist."""
    _, generation = effect_undone_by(request.key) or (request.key, request.generation)
    return known.outcome == COMPENSATED or generation < known.generation


def _shown(request: EffectRetry) -> str:
    return repr(request.key if request.generation == 1 else f"{request.key}#{request.generation}")


IDENTITY_BYTES = 8


def is_from_outside(dead_letter: DeadLetterRecord) -> bool:
    """Return whether the dead letter was an input by a client, which has a receipt for the input."""
    return dead_letter.sender.startswith("@")


def is_drop(payload: bytes) -> bool:
    """Return whether the command drops a dead letter."""
    is_dead_letter_command = payload[:1] == COMMAND_PREFIX and not (
        is_effect_resolution(payload) or is_effect_request(payload) or is_approval_answer(payload)
    )
    return is_dead_letter_command and read_dead_letter_command(payload).verb == DROP


def identity_of(dead_letter: DeadLetterRecord) -> bytes:
    """Return a short digest of a dead letter's sender and message, by which commands identify the dead letter."""
    return digest_of(dead_letter.sender.encode() + b"\x00" + dead_letter.payload)[:IDENTITY_BYTES]


def add(agent: LocalAgent, dead_letter: DeadLetterRecord) -> None:
    """Assign a number to a new dead letter, and add it to the agent's dead letters. Only the newest hundred dead letters of an agent are
    kept."""
    agent.last_dead_letter += 1
    agent.dead_letter_count += 1
    agent.dead_letters.append(dead_letter)
    agent.dead_letter_numbers.append(agent.last_dead_letter)
    del agent.dead_letters[:-DEAD_LETTERS_KEPT], agent.dead_letter_numbers[:-DEAD_LETTERS_KEPT]


def dead_letter_of(agent: LocalAgent, payload: bytes) -> DeadLetterRecord | None:
    """Return the dead letter to which the command refers, or None if that dead letter no longer exists. If the command is a compensation
    request, return an equivalent dead letter."""
    request = _compensation_request(payload)
    if request is not None:
        return DeadLetterRecord(agent.id, compensation_message_of(agent, request), "", 0, 0)
    place = _place_of(agent, _command_of(agent, payload))
    return None if place is None else agent.dead_letters[place]


def _compensation_request(payload: bytes) -> EffectRetry | None:
    """Return the command's request to call a compensation, or None if the command is not such a request."""
    request = read_effect_request(payload) if is_effect_request(payload) else None
    return request if request is not None and is_compensation_request(request) else None


def _command_of(agent: LocalAgent, payload: bytes) -> DeadLetterCommand:
    """Return the command as a command on a dead letter. A request to retry an effect that failed with its turn is converted to a request to
    retry the turn's dead letter."""
    if not is_effect_request(payload):
        return read_dead_letter_command(payload)
    number = dead_letter_number_of(agent, read_effect_request(payload))
    if number not in agent.dead_letter_numbers:
        return DeadLetterCommand(RETRY, 0, b"")
    return DeadLetterCommand(RETRY, number, identity_of(agent.dead_letters[agent.dead_letter_numbers.index(number)]))


def _place_of(agent: LocalAgent, word: DeadLetterCommand) -> int | None:
    if word.number not in agent.dead_letter_numbers:
        return None
    place = agent.dead_letter_numbers.index(word.number)
    return place if identity_of(agent.dead_letters[place]) == word.identity else None


def refusal_of(agent: LocalAgent, payload: bytes) -> str:
    """Return the reason why the agent refuses the command, or "" if the agent accepts it."""
    if is_effect_request(payload):
        return refusal_of_effect_request(agent, read_effect_request(payload))
    command, dead_letter = read_dead_letter_command(payload), dead_letter_of(agent, payload)
    if dead_letter is None:
        known = ", ".join(map(str, agent.dead_letter_numbers)) or "none"
        return f"agent {agent.id!r} has no such dead letter {command.number}; those that it has: {known}"
    if command.verb == RETRY and dead_letter.payload[:1] == CREATE:
        return f"dead letter {command.number} of agent {agent.id!r} is the creation of an agent: drop it, and have it spawned again"
    return ""


def settled(agent: LocalAgent, payload: bytes) -> bytes | None:
    """Execute a command that needs no turn, and return the reply to the operator. If the command needs a turn, return None."""
    if is_effect_resolution(payload):
        return TARGET_GONE  # a turn that still waited for the effect would have consumed the command
    request = _compensation_request(payload)
    if request is not None:
        return settled_compensation(agent, request)
    command = _command_of(agent, payload)
    place = _place_of(agent, command)
    if place is None:
        return TARGET_GONE
    if command.verb != DROP:
        return None
    _take_out(agent, place)
    return b""


def turn_of(agent: LocalAgent, payload: bytes) -> tuple[TurnKind, str, bytes]:
    """Return the kind, the sender and the payload of the turn for a command. The sender and the payload are those of the dead letter to
    which the command refers."""
    dead_letter = dead_letter_of(agent, payload)
    assert dead_letter is not None, "it was there when the turn was chosen"
    return ("letter" if dead_letter.payload else "start"), dead_letter.sender, dead_letter.payload


def handled(agent: LocalAgent, payload: bytes, key: str) -> None:
    """Remove a dead letter after its retry, or the first segment of its retry, has succeeded. If the dead letter was a client's input, the
    client gets the reply of the command whose key is `key`."""
    request = _compensation_request(payload)
    if request is not None:
        begin_compensation(agent, request)
        return
    place = _place_of(agent, _command_of(agent, payload))
    if place is not None:
        if agent.dead_letters[place].key and agent.inputs is not None:
            agent.inputs.retried(agent.dead_letters[place].key, key)
        _take_out(agent, place)
        agent.dead_letter_count -= 1


def take_failed_retry(agent: LocalAgent, payload: bytes, key: str) -> DeadLetterRecord | None:
    """Remove and return a dead letter whose retry has failed, so that the caller can make it a new dead letter."""
    record = dead_letter_of(agent, payload)
    handled(agent, payload, key)
    return record


def _take_out(agent: LocalAgent, place: int) -> None:
    del agent.dead_letters[place], agent.dead_letter_numbers[place]


def is_resolution_of(agent: LocalAgent, place: int, entry: Entry) -> bool:
    """Return whether the mailbox entry is an operator's resolution of the effect that the agent's turn awaits at this place."""
    effect = agent.effects.open.get(place) if agent.effects is not None else None
    if effect is None or not effect.needs_people:
        return False
    is_resolution = isinstance(entry, CommandEntry) and is_effect_resolution(entry.payload)
    return is_resolution and _is_about(read_effect_resolution(entry.payload), effect.opened)


def refusal_of_resolution(agent: LocalAgent, payload: bytes) -> InputOutcome | None:
    """Return the refusal of a resolution that the agent does not accept, or does not accept yet. Return None if the agent accepts the
    resolution."""
    command, effects, turn = read_effect_resolution(payload), agent.effects, agent.turn
    effect = effects.find_open(command.key, command.generation) if effects is not None else None
    if turn is None or effect is None or not _is_about(command, effect.opened):
        return InputOutcome(
            REFUSED,
            reason=f"agent {agent.id!r} does not wait for effect {command.key!r} any more: see `snapline agent describe {agent.id}`",
        )
    if effect.needs_people:
        return None
    if effect.is_in_doubt and not turn.is_live and not turn.problem:
        return InputOutcome(client_requests.RETRY, reason=f"agent {agent.id} runs again up to effect {command.key!r}")
    return InputOutcome(
        REFUSED,
        reason=f"effect {command.key!r} of agent {agent.id!r} needs nobody's word: it is not in doubt, or can be asked after or repeated",
    )


def _is_about(word: EffectResolution, opened: OpenEffect) -> bool:
    return (word.key, word.generation, word.number) == (opened.key, opened.generation, opened.number)
