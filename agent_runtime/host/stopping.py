"""What the coordinator asks of a host about the store: what its probe holds, and what the fleet's `stop_when` says of a complete cut."""

import logging
import traceback
from collections.abc import Callable

from snapline.agent_runtime.fleet import Fleet
from snapline.agent_runtime.snapshots.cut import load_cut
from snapline.conversation.messages import ProbeRead, StopEvaluated
from snapline.errors import SnaplineError
from snapline.storage.store.store import Store

NAMED_MAX = 10
"""Of open effects, in one line of the log."""

log = logging.getLogger("snapline.host")


def read_probe(open_store: Callable[[], Store], path: str) -> ProbeRead:
    """What the coordinator's probe file holds, as this host sees it."""
    try:
        return ProbeRead(path, open_store().read_probe(path))
    except (SnaplineError, OSError) as caught:
        return ProbeRead(path, b"", str(caught))


def ask_stop(fleet: Fleet, open_store: Callable[[], Store], epoch: int) -> StopEvaluated:
    """Read the cut of `epoch` and ask. An effect outside is not left half done: the answer has to wait for its end. A cut that cannot be read is no answer; a predicate that raises is one."""
    if fleet.stop_when is None:
        return StopEvaluated(epoch, False)
    try:
        cut = load_cut(open_store(), epoch, fleet)
        stops = bool(fleet.stop_when(cut))
        if stops and cut.open_effects:
            log.info("the fleet ends when its effects have ended: %s", "; ".join(cut.open_effects[:NAMED_MAX]))
            return StopEvaluated(epoch, False)
        return StopEvaluated(epoch, stops)
    except SnaplineError as error:
        log.warning("epoch %d cannot be looked at: %s", epoch, error)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[:2][-1]  # the predicate's own frame, below ours
        problem = f"stop_when raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return StopEvaluated(epoch, False, problem)
    return StopEvaluated(epoch, False)
