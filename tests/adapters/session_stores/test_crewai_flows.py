"""States of CrewAI's flows in our store: what CrewAI's own persistence answers, and what is left where a process is killed."""

import importlib.util
import os
from datetime import date
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("crewai") is not None:  # before it is imported, or it would look for a server
    os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"

pytest.importorskip("crewai", reason="needs CrewAI in an environment of its own: make test-crewai")

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
from pydantic import BaseModel

from snapline.adapters.crewai_flows import SnaplineFlowPersistence
from snapline.chaos.crash_child import CrashNote
from snapline.chaos.crash_kit import CrashKit
from snapline.storage.store.object_segments import ObjectStreamInUseError

pytestmark = [pytest.mark.adapters, pytest.mark.timeout(600)]


class Bill(BaseModel):
    id: str = "7"
    paid: list[str] = []
    due: date = date(2026, 1, 1)


def answers(persistence: Any) -> list[Any]:
    context = PendingFeedbackContext(
        flow_id="a", flow_class="m.F", method_name="ask", method_output={"x": 1}, message="well?"
    )
    persistence.save_state("a", "begin", {"id": "a", "count": 1, "large": "x" * 3000})
    persistence.save_state("a", "go", {"id": "a", "count": 2, "large": "x" * 3000, "more": {"b": [None, 1.5]}})
    persistence.save_state("b", "begin", Bill(paid=["rent"]))
    found = [persistence.load_state(name) for name in ("a", "b", "nobody's")]
    found.append(persistence.load_pending_feedback("a"))
    persistence.save_pending_feedback("a", context, {"id": "a", "count": 3})
    state, waiting = persistence.load_pending_feedback("a")
    found += [state, waiting.to_dict(), persistence.load_state("a")]
    persistence.clear_pending_feedback("a")
    persistence.clear_pending_feedback("a")
    return [
        _without_time(each) for each in [*found, persistence.load_pending_feedback("a"), persistence.load_state("a")]
    ]


def _without_time(value: Any) -> Any:
    return {key: each for key, each in value.items() if key != "requested_at"} if isinstance(value, dict) else value


def test_it_answers_as_crewais_own_persistence(tmp_path: Path) -> None:
    ours = SnaplineFlowPersistence(location=str(tmp_path / "ours"))
    assert answers(ours) == answers(SQLiteFlowPersistence(str(tmp_path / "theirs.db")))
    with pytest.raises(ObjectStreamInUseError):
        SnaplineFlowPersistence(location=str(tmp_path / "ours")).init_db()
    ours.close()
    again = SnaplineFlowPersistence(location=str(tmp_path / "ours"))
    assert again.load_state("a") == {"id": "a", "count": 3}
    again.close()


STEPS = ("rent", "power", "water")


class State(BaseModel):
    id: str = "bills"
    paid: list[str] = []
    notes: str = "n" * 2000


def bills(persistence: SnaplineFlowPersistence, note: CrashNote) -> type[Flow[State]]:
    @persist(persistence)
    class Bills(Flow[State]):
        _skip_auto_memory: bool = True  # a vector database is not what is tried here

        def _pay(self, invoice: str) -> None:
            if invoice not in self.state.paid:
                if self.state.paid:
                    note.kept(self.state.paid[-1])  # a method is kept before the next begins
                note.began(invoice)
                self.state.paid.append(invoice)

        @start()
        def rent(self) -> None:
            self._pay("rent")

        @listen(rent)
        def power(self) -> None:
            self._pay("power")

        @listen(power)
        def water(self) -> None:
            self._pay("water")

    return Bills


def flow(folder: Path, note: CrashNote) -> list[str]:
    """A flow of three methods, that is kicked off with its id: CrewAI loads its state, and runs its methods again."""
    os.environ["HOME"] = str(folder.parent / "home")
    persistence = SnaplineFlowPersistence(location=str(folder / "store"))
    known = persistence.load_state("bills") or {"paid": []}
    note.found(*known["paid"])
    bills(persistence, note)(suppress_flow_events=True).kickoff(inputs={"id": "bills"})
    found: list[str] = (persistence.load_state("bills") or {})["paid"]
    persistence.close()
    return found


def test_a_flow_resumes_wherever_it_is_killed(snapline_crash_kit: CrashKit) -> None:
    report = snapline_crash_kit.check(flow, points=100)
    assert report.kills >= len(report.points)
