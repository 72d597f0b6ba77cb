"""The leader core: when outputs of an epoch are released, after which one, and what hosts are told of it."""

import pytest
from tests.coordinator.bench import Bench

from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader.epochs.epoch_lifecycle import FORGET_AT_ONCE
from snapline.coordinator.state import operations as op
from snapline.coordinator.state.fleet_records import COMPLETE, CONDEMNED, OPEN, EpochRecord, FleetImage, PlanRecord
from snapline.coordinator.state.fleet_view import Ancestor, has_fallen_back, lineage_of
from snapline.messages import host_messages as msg


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.emitted = {epoch: {"a0": epoch} for epoch in range(1, 40)}
    made.start_fleet("h1", "h2")
    return made


def released(bench: Bench) -> list[ev.ReleaseEpoch]:
    return [x for x in bench.commands if isinstance(x, ev.ReleaseEpoch)]


def told(bench: Bench, host: str = "h1") -> list[tuple[int, dict[str, int]]]:
    """Epoch, and the outputs released in it."""
    ends = [x for x in bench.directives(host) if isinstance(x, msg.EndEpoch) and x.emitters]
    return [(x.epoch, dict(zip(x.emitters, x.outputs, strict=True))) for x in ends]


def ancestor(epoch: int, *, is_condemned: bool = False) -> Ancestor:
    return Ancestor(epoch, f"root-{epoch}", is_condemned)


# ---- in order -------------------------------------------------------------------------------------------------------


def test_hosts_hear_that_it_is_complete_before_it_is_released(bench: Bench) -> None:
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    assert bench.last("h1") == msg.EndEpoch(1, True) or bench.kinds("h1")[-1] == "EvaluateStop"
    bench.release()
    assert told(bench) == told(bench, "h2") == [(1, {"a0": 1})]


def test_epoch_waits_for_lower_ones_that_are_open(bench: Bench) -> None:
    for request in (1, 2):
        bench.feed(ev.SnapshotRequested(request))
    for host in ("h1", "h2"):
        bench.report(host, 2)
    assert bench.state.complete_epochs() == [2] and released(bench) == []
    bench.feed(ev.MessageReceived(bench.current["h1"], msg.EpochRefused(1, "no")))
    assert [x.epoch for x in released(bench)] == [2], "epoch 1 is aborted"


def test_next_one_waits_until_the_release_is_written_and_one_that_fails_is_tried_again(bench: Bench) -> None:
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    bench.snapshot("h1", "h2")
    assert [x.epoch for x in released(bench)] == [1]
    bench.feed(ev.EpochReleased(1, "disk full"))
    assert [x.epoch for x in released(bench)] == [1]
    bench.pass_time(1.2)
    assert [x.epoch for x in released(bench)] == [1, 1]
    assert any("outputs of epoch 1 cannot be released: disk full" in note.text for note in bench.notes)
    bench.feed(ev.EpochReleased(1))
    assert [x.epoch for x in released(bench)] == [1, 1, 2]


def test_fleet_that_emits_nothing_releases_nothing() -> None:
    bench = Bench()
    bench.start_fleet("h1", "h2")
    bench.snapshot("h1", "h2")
    assert released(bench) == [] and bench.core.parts.releases.is_settled


# ---- leaders and plans ----------------------------------------------------------------------------------------------


def test_new_leader_releases_all_that_it_knows_again_in_order(bench: Bench) -> None:
    for _ in range(3):
        bench.snapshot("h1", "h2")
    before = released(bench)
    bench.start_leader("second")
    assert released(bench)[3:] == before
    bench.attach("h1", plan=1)
    assert told(bench) == [(3, {"a0": 3})], "who comes back hears of the newest"


def test_new_leader_finishes_what_its_predecessor_had_begun(bench: Bench) -> None:
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    bench.held, bench.waiting = (), []
    bench.start_leader("second")
    for host in ("h1", "h2"):
        bench.attach(host, plan=1)
    assert [x.epoch for x in released(bench)] == [1, 1] and told(bench) == [(1, {"a0": 1})]


def test_newest_release_is_said_again_under_each_plan(bench: Bench) -> None:
    bench.snapshot("h1", "h2")
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    assert bench.state.plan_number == 2
    assert told(bench) == [(1, {"a0": 1})] * 2
    kinds = bench.kinds("h1")
    assert kinds.index("Plan", kinds.index("Plan") + 1) < len(kinds) - 1 - kinds[::-1].index("EndEpoch")


# ---- damage ---------------------------------------------------------------------------------------------------------


def test_condemned_epoch_is_not_released_and_the_next_one_knows_it(bench: Bench) -> None:
    bench.snapshot("h1", "h2")
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    bench.feed(ev.EpochReleased(2, "flipped", 2, "packs/x"))
    assert bench.state.image.epochs[2].status == CONDEMNED
    assert msg.EndEpoch(2, True, "condemned") in bench.directives("h1"), (
        "who waits for its release asks for another one"
    )
    bench.snapshot("h1", "h2")
    assert released(bench)[-1] == ev.ReleaseEpoch(3, "root-3", (ancestor(2, is_condemned=True), ancestor(1)))


def test_damaged_epoch_before_it_is_condemned_and_the_release_tried_again(bench: Bench) -> None:
    bench.snapshot("h1", "h2")
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    bench.feed(ev.EpochReleased(2, "flipped", 1, "manifests/x"))
    bench.pass_time(1.2)
    assert released(bench)[-1] == ev.ReleaseEpoch(2, "root-2", (ancestor(1, is_condemned=True),))


def test_fall_back_is_told_with_the_release_and_the_line_is_read_again(bench: Bench) -> None:
    bench.snapshot("h1", "h2")
    bench.snapshot("h1", "h2")
    bench.damaged[2] = "manifests/x"
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    bench.apply_plan("h1", "h2")
    assert bench.state.plan is not None and bench.state.plan.line_epoch == 1
    assert told(bench)[-1] == (1, {"a0": 1}), "what the hosts have loaded is released up to there"
    bench.snapshot("h1", "h2")
    assert released(bench)[-1] == ev.ReleaseEpoch(3, "root-3", (ancestor(1),), is_fall_back=True)


def test_release_of_an_epoch_that_was_condemned_meanwhile_is_not_told(bench: Bench) -> None:
    bench.snapshot("h1", "h2")
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    bench.damaged[2] = "manifests/x"
    bench.say("h1", msg.AgentFailed("a0", 1, "bug"))
    bench.release()
    assert (2, {"a0": 2}) not in told(bench)


# ---- the end, and what is kept --------------------------------------------------------------------------------------


def test_fleet_ends_when_its_last_outputs_are_released(bench: Bench) -> None:
    bench.held = (ev.ReleaseEpoch,)
    bench.snapshot("h1", "h2")
    (asked,) = [host for host in ("h1", "h2") if "EvaluateStop" in bench.kinds(host)]
    bench.say(asked, msg.StopEvaluated(1, True))
    assert bench.count(op.EndFleet) == 0
    bench.release()
    assert bench.count(op.EndFleet) == 1 and bench.state.phase == "finished"


def test_nothing_is_forgotten_that_a_release_needs(bench: Bench) -> None:
    bench.held = (ev.ReleaseEpoch,)
    for _ in range(3 + FORGET_AT_ONCE + 3):
        bench.snapshot("h1", "h2")
    assert len(bench.state.complete_epochs()) == 3 + FORGET_AT_ONCE + 3
    bench.release()
    bench.snapshot("h1", "h2")
    assert bench.state.image.forgotten == 9
    bench.start_leader("second")
    assert [x.epoch for x in released(bench)][-2:] == [11, 12], (
        "what epoch 10 comes after is forgotten: it was released"
    )


def test_who_reads_outputs_as_they_come_is_made_known(bench: Bench) -> None:
    bench.feed(ev.OutputReadersChanged(is_watched=True))
    bench.feed(ev.OutputReadersChanged(is_watched=True))
    assert [x for x in bench.directives("h1") if isinstance(x, msg.OutputsWatched)] == [msg.OutputsWatched(True)]
    bench.drop("h1")
    bench.attach("h1", plan=1)
    assert [x for x in bench.directives("h1") if isinstance(x, msg.OutputsWatched)] == [msg.OutputsWatched(True)]
    bench.feed(ev.OutputReadersChanged(is_watched=False))
    assert bench.last("h2") == msg.OutputsWatched(False)


# ---- lineage --------------------------------------------------------------------------------------------------------


def image_of(plans: dict[int, tuple[int, int]], epochs: dict[int, tuple[int, str]], forgotten: int = 0) -> FleetImage:
    """`plans`: number → line and begun epoch; `epochs`: number → plan and status."""
    return FleetImage(
        plans=[
            PlanRecord(number, line, f"root-{line}", begun, [], "", [], 0, 0, [], [], 0, 0)
            for number, (line, begun) in plans.items()
        ],
        epochs={
            epoch: EpochRecord(plan, "", 0, status, "" if status == OPEN else f"root-{epoch}")
            for epoch, (plan, status) in epochs.items()
        },
        forgotten=forgotten,
    )


def before(image: FleetImage, epoch: int) -> list[int] | None:
    found = lineage_of(image, epoch)
    return None if found is None else [x.epoch for x in found]


def test_lineage_goes_over_condemned_epochs_down_to_a_whole_one() -> None:
    image = image_of(
        {1: (0, 0), 2: (1, 4)},
        {1: (1, COMPLETE), 3: (1, CONDEMNED), 5: (2, CONDEMNED), 6: (2, OPEN), 7: (2, COMPLETE), 8: (2, COMPLETE)},
    )
    assert [before(image, epoch) for epoch in (1, 5, 7, 8)] == [[], [1], [5, 1], [7]]
    assert has_fallen_back(image, 5, 1) and not has_fallen_back(image, 7, 5)


def test_lineage_that_is_forgotten_is_not_guessed() -> None:
    plans = {1: (0, 0), 2: (3, 4)}
    epochs = {3: (1, COMPLETE), 6: (2, COMPLETE), 7: (2, COMPLETE)}
    assert before(image_of(plans, epochs, forgotten=2), 6) == [3]
    assert before(image_of(plans, epochs, forgotten=5), 6) is None, "5 may have been the one"
    assert before(image_of(plans, epochs, forgotten=5), 7) == [6]
    assert before(image_of(plans, {7: (2, COMPLETE)}, forgotten=3), 7) is None, "the line is not known any more"
    assert before(image_of({2: (0, 4)}, {7: (2, COMPLETE)}, forgotten=3), 7) == [], "back to the initial states"
    assert before(image_of({9: (6, 8)}, epochs), 6) is None, "nor is its plan"
