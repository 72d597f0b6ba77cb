"""What is said of losses, recoveries and the price of epochs: numbers worked out by hand, and properties over random lives of a fleet."""

from hypothesis import given
from hypothesis import strategies as st
from tests.coordinator.conftest import Agreed

from snapline.coordinator.leader.events import MessageReceived
from snapline.coordinator.service.coordinator_metrics import RECOVERIES_SHOWN, LeaderFigures, interval_of, loss_of
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import PLANNED_STOP, PLANS_KEPT, Committed, OperationResult
from snapline.messages.host_messages import CheckpointsStored, EpochReport, ReportedPack
from snapline.messages.status import IntervalStatus, LossStatus, RecoveryTime


class Timed(Agreed):
    """What `at` says is the time of what is done next."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def try_(self, kind: op.Kind, *, now_ns: int = 0) -> OperationResult:
        self.at += not now_ns
        return super().try_(kind, now_ns=now_ns or self.at)


def timed(*hosts: str) -> Timed:
    fleet = Timed()
    fleet.start(*(hosts or ("h1", "h2")))
    return fleet


def complete(fleet: Timed, figures: LeaderFigures, completed: op.CompleteEpoch) -> None:
    result = fleet.do(completed)
    figures.proposal_ended(completed, Committed(result))


def pack(path: str, size_bytes: int) -> ReportedPack:
    return ReportedPack(path, size_bytes, b"")


def test_before_the_start_there_is_nothing_to_lose() -> None:
    assert loss_of(Timed().state, 100) == LossStatus()
    assert interval_of(Timed().state, None) == IntervalStatus()


def test_a_recovery_from_a_lost_host() -> None:
    fleet = timed()
    fleet.at = 1_000
    epoch = fleet.begin()
    fleet.at = 1_099
    fleet.complete(epoch)  # begun at 1,001, complete at 1,100
    assert loss_of(fleet.state, 1_500).at_risk_ns == 499 and loss_of(fleet.state, 1_500).failures == 0
    fleet.at = 1_999
    fleet.lose("h2")
    assert loss_of(fleet.state, 2_100).at_risk_ns is None and loss_of(fleet.state, 2_100).recoveries == ()
    fleet.at = 2_499
    fleet.do(op.CommitPlan(1, epoch, ("h1",), "lost", rolled_back=4))
    fleet.at = 2_799
    fleet.do(op.ConfirmPlan(2, "h1", 1))
    found = loss_of(fleet.state, 3_000)
    recovery = RecoveryTime(2, True, 500, 300, agents=4, rolled_back=4, lost_ns=999)
    assert found.recoveries == (recovery,)
    assert (found.at_risk_ns, found.failures) == (200, 1), "what was done before the recovery is lost already"
    assert found.observed_ns == 3_000 - fleet.state.image.plans[0].committed_ns


def test_moving_agents_is_no_failure_and_neither_is_going_back_on_purpose() -> None:
    fleet = timed()
    epoch = fleet.epoch()
    fleet.plan("h1", "h2", is_move=True)
    fleet.do(op.Restore(2, epoch, ("h1", "h2"), "we want to", request="r"))
    for host in ("h1", "h2"):
        fleet.do(op.ConfirmPlan(3, host, 1))
    found = loss_of(fleet.state, 1_000)
    assert found.failures == 0 and [x.is_failure for x in found.recoveries] == [False, False]


def test_a_fleet_that_was_stopped_has_neither_failed_nor_recovered() -> None:
    fleet = timed()
    epoch = fleet.epoch()
    fleet.do(op.LoseHosts((op.LostHost("h1", 1), op.LostHost("h2", 1)), PLANNED_STOP, True))
    fleet.at += 10**12
    for host in ("h1", "h2"):
        fleet.do(op.AdmitHost(host, f"{host}-again", f"{host}:1", 1))
    fleet.do(op.CommitPlan(1, epoch, ("h1", "h2"), PLANNED_STOP, rolled_back=4))
    for host in ("h1", "h2"):
        fleet.do(op.ConfirmPlan(2, host, 2))
    found = loss_of(fleet.state, fleet.at)
    assert (found.failures, found.recoveries) == (0, ())


def test_agents_of_a_host_that_left_as_planned_are_recovered_without_a_failure() -> None:
    fleet = timed()
    epoch = fleet.epoch()
    fleet.do(op.LoseHosts((op.LostHost("h2", 1),), PLANNED_STOP, True))
    fleet.do(op.CommitPlan(1, epoch, ("h1",), PLANNED_STOP, rolled_back=4))
    fleet.do(op.ConfirmPlan(2, "h1", 1))
    found = loss_of(fleet.state, fleet.at)
    assert found.failures == 0 and [(each.plan, each.is_failure) for each in found.recoveries] == [(2, False)]


@given(lives=st.lists(st.sampled_from(["epoch", "move", "lose"]), max_size=PLANS_KEPT + 20), late=st.integers(0, 1_000))
def test_counts_and_times_fit_together(lives: list[str], late: int) -> None:
    fleet, lost = timed("h1", "h2"), 0
    for what in lives:
        if what == "epoch":
            fleet.epoch()
        elif what == "move":
            fleet.plan("h1", "h2", is_move=True)
        else:
            fleet.lose("h2")
            fleet.at += 5
            fleet.do(op.AdmitHost("h2", f"h2-{fleet.at}", "h2:1", fleet.state.image.hosts["h2"].start))
            fleet.plan("h1", "h2", is_move=True)  # as it was meant before the loss was known
            lost += 1
    found = loss_of(fleet.state, fleet.at + late)
    plans = 1 + lives.count("move") + lost
    assert found.failures <= lost and (plans > PLANS_KEPT or found.failures == lost)
    assert len(found.recoveries) == min(RECOVERIES_SHOWN, plans - 1)
    assert found.at_risk_ns is not None and late <= found.at_risk_ns <= fleet.at + late
    assert sum(x.plan_ns + x.load_ns for x in found.recoveries) <= found.observed_ns


def test_what_epochs_take_by_hand() -> None:
    fleet = timed()
    for begun, ended in ((1_000, 1_010), (2_000, 2_030), (4_000, 4_020)):
        fleet.at = begun - 1
        epoch = fleet.begin()
        fleet.at = ended - 1
        fleet.complete(epoch)
    found = interval_of(fleet.state, None)
    assert (found.epochs, found.duration_ns, found.duration_max_ns, found.gap_ns) == (3, 20, 30, 1_500)
    assert found.pause_ns is found.new_bytes is None, "only the leader hears that"
    fleet.plan("h1", "h2")
    fleet.at = 9_000
    fleet.epoch()
    assert interval_of(fleet.state, None).gap_ns == 1_500, "a recovery lies between these"


def test_the_leader_knows_what_agents_waited_and_what_was_written() -> None:
    fleet = timed()
    figures = LeaderFigures(fleet.state)
    epoch = fleet.begin()
    said = (
        EpochReport(epoch, 1, pack("a", 100), capture_ns=30, captures_ns=70),
        EpochReport(epoch, 2, pack("b", 50), capture_ns=40, captures_ns=60),
    )
    for message in (*said, *said):  # again, on a new stream
        figures.event_received(MessageReceived(1, message))
    figures.event_received(MessageReceived(1, EpochReport(epoch + 1, 1, pack("c", 7), capture_ns=99, captures_ns=99)))
    complete(fleet, figures, op.CompleteEpoch(epoch, "root", (), 1_000, 20, 2))
    found = interval_of(fleet.state, figures)
    assert (found.pause_ns, found.capture_ns, found.new_bytes) == (40, 70, 150)
    assert (found.state_bytes, found.channel_state_bytes) == (1_000, 20)
    assert interval_of(fleet.state, None).capture_ns is None
    fleet.do(op.CondemnEpoch(epoch, "a", "flipped"))
    assert interval_of(fleet.state, figures).capture_ns is None


def test_checkpoints_that_agents_take_alone_add_up_to_the_next_epoch() -> None:
    fleet = timed()
    figures = LeaderFigures(fleet.state)
    for path, host_start, pause_ns in (("a", 1, 10), ("b", 1, 20), ("c", 2, 25)):
        figures.event_received(
            MessageReceived(
                1, CheckpointsStored(host_start, 1, 1, pack(path, 5), capture_ns=pause_ns, captures_ns=2 * pause_ns)
            )
        )
    complete(fleet, figures, op.CompleteEpoch(fleet.begin(), "root"))
    found = interval_of(fleet.state, figures)
    assert (found.pause_ns, found.capture_ns, found.new_bytes) == (25, 60, 15)
    complete(fleet, figures, op.CompleteEpoch(fleet.begin(), "root"))
    assert interval_of(fleet.state, figures).capture_ns == 0, "each counts once"
