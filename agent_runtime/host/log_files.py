"""From the host logs of earlier plans to the agents of this one."""

from collections.abc import Sequence

from snapline.agent_runtime.host import events as ev
from snapline.errors import NotFoundError, StoreError
from snapline.storage.log.names import LogName
from snapline.storage.log.records import LoggedInput
from snapline.storage.store.store import Store


def read_logs(store: Store, command: ev.LoadAgents, agents: Sequence[ev.LoadedAgent]) -> tuple[LoggedInput, ...]:
    """Seal the logs of all earlier plans, and return what they hold beyond the agents' checkpoints; of others, all.

    Sealed are those that the coordinator names, be anything in them or not: whoever writes there may not have begun; and those found
    here that it does not know any more. In the order of each agent's numbers.

    Raises:
        DamagedDataError: a batch is not what was written.
        StoreError: the store cannot be read or written just now; or inputs beyond a checkpoint are not kept any more.
    """
    found_here = [log for log in store.read_logs() if log.plan < command.plan]
    for log in sorted({*command.logs, *found_here}):
        store.seal_log(log)
    consumed = {each.agent: each.checkpoint.inputs.number if each.checkpoint is not None else 0 for each in agents}
    logs = {log: numbers for log, numbers in store.read_logs().items() if log.plan < command.plan}
    logged = [each for log, numbers in logs.items() for number in numbers for each in _read(store, log, number)]
    found = sorted(
        [each for each in logged if each.number > consumed.get(each.agent, 0)],
        key=lambda each: (each.agent, each.number),
    )
    _check_whole(found, consumed)
    return tuple(found)


def _read(store: Store, log: LogName, number: int) -> Sequence[LoggedInput]:
    """Nothing for a seal, wherever it stands. A batch that was deleted meanwhile holds nothing that any epoch needs."""
    try:
        batch = store.read_batch(log, number)
    except NotFoundError:
        return ()
    return () if batch is None else batch.inputs


def _check_whole(found: Sequence[LoggedInput], consumed: dict[str, int]) -> None:
    last = dict(consumed)
    for each in found:
        if each.agent in consumed and each.number != last[each.agent] + 1:
            raise StoreError(
                f"the host log lacks inputs {last[each.agent] + 1} to {each.number - 1} of agent {each.agent}: they were given up "
                "when newer epochs were complete; restore the store from a copy, or start from a later snapshot"
            )
        last[each.agent] = each.number
