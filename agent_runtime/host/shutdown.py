"""Checks of the store that the coordinator requests of a host: the content of its probe, and the fleet's `stop_when` for a complete cut."""

import logging
import traceback
from collections.abc import Callable

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.snapshot_cut import Cut, load_cut
from snapline.errors import DamagedDataError, SnaplineError, StoreKeyError, StoreMissingError, UsageError
from snapline.messages.host_messages import ProbeRead, StopEvaluated
from snapline.storage.store.store import Store

NAMED_MAX = 10
"""Largest number of open effects named in one line of the log and in the answer."""

stop_log = logging.getLogger("snapline.host")


def read_probe(open_store: Callable[[], Store], path: str) -> ProbeRead:
    """Return the content of the coordinator's probe file, as this host sees it; or why it cannot be read, and whether that may pass."""
    try:
        return ProbeRead(path, open_store().read_probe(path))
    except (SnaplineError, OSError) as caught:
        is_wrong = isinstance(caught, DamagedDataError | StoreMissingError | StoreKeyError | UsageError)
        return ProbeRead(path, b"", str(caught), may_pass=not is_wrong)


def ask_stop(fleet: Fleet, open_store: Callable[[], Store], epoch: int, *, is_decided: bool = False) -> StopEvaluated:
    """Read the cut of `epoch` and call the predicate; if `is_decided`, only check the cut for open effects, which must end first. A cut that cannot
    be read gives no answer; a predicate that raises does."""
    if fleet.stop_when is None:
        return StopEvaluated(epoch, False)
    try:
        cut = load_cut(open_store(), epoch, fleet)
        problem = ""
        stops = is_decided
        if not is_decided:
            stops, problem = _judge(fleet.stop_when, cut)
        opened, turns = (cut.open_effects, cut.turns_with_effects) if stops or problem else ((), ())
        examples = (opened or turns)[:NAMED_MAX]
        if examples and not is_decided:
            stop_log.info("the fleet ends when these have ended: %s", "; ".join(examples))
        return StopEvaluated(epoch, stops and not opened, problem, examples)
    except SnaplineError as error:
        stop_log.warning("epoch %d cannot be looked at: %s", epoch, error)
    return StopEvaluated(epoch, False)


def _judge(stop_when: Callable[[Cut], object], cut: Cut) -> tuple[bool, str]:
    """Return whether the predicate holds, and its error, if any."""
    try:
        return bool(stop_when(cut)), ""
    except SnaplineError:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[:2][-1]  # the predicate's own frame, below ours
        return False, f"stop_when raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
