"""The workload of effects: cut by failures in the simulated world, at a service that is late, or silent; and its oracles by themselves."""

import pytest

from snapline.sim.result import Result
from snapline.sim.run import run
from snapline.sim.scenario import FleetPart, PatternPart, parse_scenario
from snapline.sim.search.swarm import STANDARD, draw
from snapline.sim.workloads import make_workload
from snapline.sim.workloads.paying import PARTS, SHUT_CALLS, PayerState, PayingWorkload, Shop

CRASHES = """
schema = 1
[run]
until = "60s"
[liveness]
within = "300s"
[fleet]
agents = 3
hosts = 2
protocol = "%s"
pattern = { name = "paying", messages = 120 }
trigger = { kind = "period", every = "100ms" }
[steps]
late_per_mille = 60
lost_per_mille = 60
failed_per_mille = 100
[[fault]]
crash = { host = "h1", at = "450ms", restart_after = "100ms" }
[[fault]]
crash = { host = "h2", at = "2300ms", restart_after = "100ms" }
[[fault]]
crash = { host = "h1", at = "700ms", restart_after = "100ms" }
"""


def paid(protocol: str, seed: int) -> Result:
    return run(parse_scenario(CRASHES % protocol, source="here"), seed)


@pytest.mark.parametrize(
    "protocol", ["chandy-lamport", "uncoordinated", "hmnr", "cas", pytest.param("koo-toueg", marks=pytest.mark.slow)]
)
def test_what_is_paid_survives_recoveries(protocol: str) -> None:
    result = paid(protocol, 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["effect in doubt"] and result.probes["recovery"]


WATCHED = """
[outputs]
one_in = 1
is_watched = true
"""


@pytest.mark.parametrize("protocol", ["chandy-lamport", "uncoordinated"])
def test_what_is_paid_is_paid_while_somebody_reads_what_turns_say(protocol: str) -> None:
    """What a turn says before an effect brings a checkpoint at once, which must not be the last one before the intent."""
    result = run(parse_scenario(CRASHES % protocol + WATCHED, source="here"), 1)
    assert result.verdict == "pass", (result.violations, result.pending, result.error)
    assert result.probes["output released"]


# ---- the oracles -----------------------------------------------------------------------------------------------------


def workload() -> PayingWorkload:
    made = make_workload(FleetPart(agents=2, pattern=PatternPart(name="paying", messages=8)))
    assert isinstance(made, PayingWorkload)
    return made


@pytest.mark.parametrize(
    ("how", "is_paid", "is_right"),
    [
        ("paid", True, True),
        ("paid", False, False),
        ("cancelled", True, False),
        ("stuck", True, True),
        ("mixed", True, False),
    ],
)
def test_states_and_the_service_must_agree(how: str, is_paid: bool, is_right: bool) -> None:
    made = workload()
    for part in PARTS if is_paid else ():
        made.shop.pay("a0.0", part, key=part)
    found = made.check_end({"a0": PayerState(0, 2, {0: how})})
    assert (found is None) is is_right


def test_the_service_honours_keys_and_tells_what_must_not_be() -> None:
    shop = Shop()
    assert shop.pay("o.0", "seat", key="1") == shop.pay("o.0", "seat", key="1") == shop.find("o.0", "seat", key="1")
    with pytest.raises(AssertionError, match="is paid again"):
        shop.pay("o.0", "seat", key="2")
    shop.pay("o.0", "hotel", key="3")
    with pytest.raises(AssertionError, match="is given back before"):
        shop.undo("o.0", "seat", key="1/undo")
    with pytest.raises(AssertionError, match="and is paid anew"):
        shop.undo("o.0", "hotel", key="1/undo")
    shop.undo("o.0", "hotel", key="3/undo")
    shop.undo("o.0", "hotel", key="late/undo")
    with pytest.raises(ConnectionRefusedError):
        shop.pay("o.0", "hotel", key="late")
    assert shop.standing("o.0") == ["seat"]
    shop.pay("o.0", "hotel", key="3#2")
    assert shop.standing("o.0") == ["seat", "hotel"]


def test_what_a_history_that_was_given_up_has_paid_may_be_the_newest_of_the_next() -> None:
    """Asked for again behind the hotel it is given back before it; what was not asked for again is not."""
    for is_again in (True, False):
        shop = Shop()
        for part, key in (("seat", "1"), ("hotel", "2"), *([("seat", "1")] * is_again)):
            shop.pay("o.0", part, key=key)
        if is_again:
            shop.undo("o.0", "seat", key="1/undo")
            assert shop.standing("o.0") == ["hotel"]
        else:
            with pytest.raises(AssertionError, match="seat is given back before"):
                shop.undo("o.0", "seat", key="1/undo")


def test_an_order_of_two_histories_is_given_back_in_the_order_of_the_last() -> None:
    """The fleet goes back past a payment, and asks for it anew at another place of its turn."""
    result = run(draw(STANDARD, 310342), 310342)
    assert result.verdict == "pass" and result.probes["fleet taken back"], result.violations


def test_the_service_gives_back_one_order_late_and_is_mute_about_another() -> None:
    shop = Shop()
    shop.pay("a0.2", "seat", key="1")
    for _ in range(SHUT_CALLS):
        with pytest.raises(ConnectionRefusedError):
            shop.undo("a0.2", "seat", key="1/undo")
    shop.undo("a0.2", "seat", key="1/undo")
    assert shop.standing("a0.2") == []
    with pytest.raises(ConnectionAbortedError):
        shop.pay("a1.0", "hotel", key="2")
    assert shop.standing("a1.0") == ["hotel"]
