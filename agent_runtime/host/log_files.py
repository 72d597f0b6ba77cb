"""Reading of the host logs of earlier plans for the agents of this one."""

from collections.abc import Sequence

import msgspec

from snapline.agent_runtime.host import events as ev
from snapline.errors import DamagedDataError, NotFoundError, StoreError
from snapline.storage.log.names import LogName
from snapline.storage.log.record import EFFECT, LogBatch, LoggedEntry, LoggedInput
from snapline.storage.store.store import Store

WITHOUT_INPUTS = "go on without inputs: `snapline recovery restore ID --drop-inputs`"


class LogContents(msgspec.Struct, frozen=True):
    """Entries of host logs beyond the agents' checkpoints; of agents that are not here, all.

    Attributes:
        inputs: in the order of each agent's numbers: inputs to deliver again.
        dropped: inputs before those, not delivered again.
        entries: of durable turns that a checkpoint has not seen the end of, in the order of the logs. Of dropped logs only the effects: an action
            that was, or may have been, done outside is so in every history.
        why_none: reason why the store takes no host logs, or "".
        log_key: the public key that this host signs its batches with, or b"".
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

    Sealed are those that the coordinator names, empty or not, since their writer may not have begun; and those found here that it does not know any
    more.

    Raises:
        StoreError: the store cannot be read or written just now; or inputs beyond a checkpoint are not kept any more; or a batch is damaged, or was
            written or removed by somebody without a key. None of that is damage of the epoch: another one would ask for the same.
    """
    found_here = [log for log in store.read_logs() if log.plan < command.plan]
    for log in sorted({*command.logs, *found_here}):
        store.seal_log(log)
    consumed = {each.agent: each.checkpoint.inputs.number if each.checkpoint is not None else 0 for each in agents}
    ended = {each.agent: each.checkpoint.ended_turns if each.checkpoint is not None else 0 for each in agents}
    all_logs = store.without_deleted(store.read_logs())
    logs = {log: numbers for log, numbers in all_logs.items() if log.plan < command.plan}
    dropped: list[LoggedInput] = []
    given: list[LoggedInput] = []
    entries: list[LoggedEntry] = []
    found_batches: dict[LogName, list[int]] = {}
    for log, numbers in sorted(logs.items()):
        read = [(number, _read(store, log, number)) for number in numbers]
        batches = [batch for _, batch in read if batch is not None]
        if log.plan >= command.drop_before:
            found_batches[log] = [number for number, batch in read if batch is not None]
        found = dropped if log.plan < command.drop_before else given
        found += [each for batch in batches for each in batch.inputs if each.number > consumed.get(each.agent, 0)]
        is_dropped = log.plan < command.drop_before
        beyond = [each for batch in batches for each in batch.entries if each.turn > ended.get(each.agent, 0)]
        entries += [each for each in beyond if not is_dropped or each.entry.kind == EFFECT]
    newest = {log: number for log, number in command.newest if log.plan >= command.drop_before}
    _check_none_missing(store.missing_batches(found_batches, newest))
    for found in (dropped, given):
        found.sort(key=lambda each: (each.agent, each.number))
    # Of what is dropped nobody misses anything.
    _check_whole(given, {**consumed, **{each.agent: each.number for each in dropped if each.agent in consumed}})
    return LogContents(
        tuple(given), tuple(dropped), tuple(entries), store.why_no_logs, store.log_key, store.is_authenticated
    )


def _read(store: Store, log: LogName, number: int) -> LogBatch | None:
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
    for each in found:
        if each.agent in consumed and each.number != last[each.agent] + 1:
            raise StoreError(
                f"the host log lacks inputs {last[each.agent] + 1} to {each.number - 1} of agent {each.agent}: they were given up "
                "when newer epochs were complete; restore the store from a copy, or start from a later snapshot"
            )
        last[each.agent] = each.number
