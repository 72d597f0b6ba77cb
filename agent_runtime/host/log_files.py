"""Reading of the host logs of earlier plans for the agents of this one."""

from collections.abc import Sequence

import msgspec

from snapline.agent_runtime.host import host_events as ev
from snapline.errors import DamagedDataError, NotFoundError, StoreError
from snapline.storage.log.names import LogName
from snapline.storage.log.record import EFFECT, LogBatch, LoggedEntry, LoggedInput
from snapline.storage.store.store import Store

WITHOUT_INPUTS = "go on without inputs: `snapline recovery restore ID --drop-inputs`"


class LogContents(msgspec.Struct, frozen=True):
    """Entries of host logs beyond the agents' checkpoints; for agents of other hosts, all entries.

    Attributes:
        inputs: inputs to deliver again, in the order of each agent's numbers.
        dropped: earlier inputs, which are not delivered again.
        entries: entries of durable turns that no checkpoint holds as ended, in log order. Of dropped logs only effects are included: an action that
            was, or may have been, done outside is part of every history.
        why_none: reason why the store takes no host logs, or "".
        log_key: public key for the signatures of this host's batches, or b"".
        is_authenticated: the store is signed or encrypted.
    """

    inputs: tuple[LoggedInput, ...] = ()
    dropped: tuple[LoggedInput, ...] = ()
    entries: tuple[LoggedEntry, ...] = ()
    why_none: str = ""
    log_key: bytes = b""
    is_authenticated: bool = False


def read_logs(store: Store, command: ev.LoadAgents, agents: Sequence[ev.LoadedAgent]) -> LogContents:
    """Seal the logs of all earlier plans, and return their contents.

    This seals the logs that the coordinator names, even empty ones, since their writers may not have begun, and the logs found in the store that the
    coordinator no longer knows.

    Raises:
        StoreError: the store cannot be read or written now; inputs beyond a checkpoint were deleted; or a batch is damaged, or was written or removed
            without a key. None of this is damage of the epoch: another epoch would need the same logs.
    """
    found_here = [log for log in store.read_logs() if log.plan < command.plan]
    for log in sorted({*command.logs, *found_here}):
        store.seal_log(log)
    consumed = {each.agent: each.checkpoint.inputs.number if each.checkpoint is not None else 0 for each in agents}
    ended_turns = {each.agent: each.checkpoint.ended_turns if each.checkpoint is not None else 0 for each in agents}
    all_logs = store.exclude_deleted(store.read_logs())
    logs = {log: numbers for log, numbers in all_logs.items() if log.plan < command.plan}
    dropped: list[LoggedInput] = []
    inputs: list[LoggedInput] = []
    entries: list[LoggedEntry] = []
    found_batches: dict[LogName, list[int]] = {}
    for log, numbers in sorted(logs.items()):
        read = [(number, _read_batch(store, log, number)) for number in numbers]
        batches = [batch for _, batch in read if batch is not None]
        if log.plan >= command.drop_before:
            found_batches[log] = [number for number, batch in read if batch is not None]
        batch_inputs = dropped if log.plan < command.drop_before else inputs
        batch_inputs += [
            each for batch in batches for each in batch.inputs if each.number > consumed.get(each.agent, 0)
        ]
        is_dropped = log.plan < command.drop_before
        beyond = [each for batch in batches for each in batch.entries if each.turn > ended_turns.get(each.agent, 0)]
        entries += [each for each in beyond if not is_dropped or each.entry.kind == EFFECT]
    newest = {log: number for log, number in command.newest if log.plan >= command.drop_before}
    _check_none_missing(store.missing_batches(found_batches, newest))
    for batch_inputs in (dropped, inputs):
        batch_inputs.sort(key=lambda each: (each.agent, each.number))
    # Nothing in dropped logs is needed.
    _check_whole(inputs, {**consumed, **{each.agent: each.number for each in dropped if each.agent in consumed}})
    return LogContents(
        tuple(inputs),
        tuple(dropped),
        tuple(entries),
        store.logs_unsupported_reason,
        store.log_key,
        store.is_authenticated,
    )


def _read_batch(store: Store, log: LogName, number: int) -> LogBatch | None:
    """Return the batch; None for a seal, wherever it is. A batch that was deleted meanwhile holds nothing that any epoch needs."""
    try:
        return store.read_batch(log, number)
    except NotFoundError:
        return None
    except DamagedDataError as error:
        raise StoreError(f"{error}. Bring the batch back from a copy, or remove it and {WITHOUT_INPUTS}") from error


def _check_none_missing(missing: dict[LogName, int]) -> None:
    if missing:
        log, number = next(iter(missing.items()))
        more = f", and of {len(missing) - 1} other logs" if len(missing) > 1 else ""
        raise StoreError(
            f"batch {number} of {log}{more} was taken out of the store ({log.directory}), and not by snapline: bring it back from a copy, "
            f"or {WITHOUT_INPUTS}"
        )


def _check_whole(found: Sequence[LoggedInput], consumed: dict[str, int]) -> None:
    last = dict(consumed)
    for logged in found:
        if logged.agent in consumed and logged.number != last[logged.agent] + 1:
            raise StoreError(
                f"the host log lacks inputs {last[logged.agent] + 1} to {logged.number - 1} of agent {logged.agent}: they were given up "
                "when newer epochs were complete; restore the store from a copy, or start from a later snapshot"
            )
        last[logged.agent] = logged.number
