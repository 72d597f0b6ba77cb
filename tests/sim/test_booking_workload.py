"""Bookings, in fleets that save nothing by themselves while they rest: what waits for an epoch must get it all the same."""

import pytest

from snapline.protocols.names import is_autonomous
from snapline.sim.run import run
from snapline.sim.scenario import ClientsPart, FleetPart, PatternPart, Scenario, TriggerPart
from snapline.sim.workloads.booking import BookerState, Outcome, Service
from snapline.sim.workloads.patterns import make_workload

KINDS = ("chandy-lamport", "koo-toueg", "uncoordinated", "nras")
"""One protocol of each kind."""

SELDOM = TriggerPart(kind="messages", messages=1000)
"""More messages than the fleet sends."""


def scenario_of(pattern: str, protocol: str, clients: ClientsPart | None = None) -> Scenario:
    trigger = SELDOM if is_autonomous(protocol) else TriggerPart()
    fleet = FleetPart(
        agents=4, hosts=2, protocol=protocol, pattern=PatternPart(name=pattern, messages=320), trigger=trigger
    )
    return Scenario(name="bookings", fleet=fleet, clients=clients or ClientsPart())


@pytest.mark.parametrize("protocol", KINDS)
def test_effects_are_called_though_the_agents_that_were_asked_on_their_way_save_nothing(protocol: str) -> None:
    result = run(scenario_of("booking", protocol), 1)
    assert result.verdict == "pass", (result.pending, result.violations)


@pytest.mark.parametrize("protocol", KINDS)
def test_a_fleet_that_is_to_stop_gets_its_last_epoch_though_nobody_saves_any_more(protocol: str) -> None:
    result = run(scenario_of("booking-until", protocol), 1)
    assert result.verdict == "pass", (result.pending, result.violations)
    assert result.probes["stopped by itself"]


def test_requests_of_clients_are_booked_and_answered() -> None:
    result = run(scenario_of("booking", "chandy-lamport", clients=ClientsPart(count=2, inputs=10, is_settling=True)), 3)
    assert result.verdict == "pass", (result.pending, result.violations)
    assert result.probes["ask replied"] and result.probes["input consumed"]


# -- the service ----------------------------------------------------------------------------------------------------------


def test_a_service_without_keys_refuses_to_be_charged_twice() -> None:
    service = Service()
    service.pay("a/r/0/once", key="k")
    with pytest.raises(AssertionError, match="is charged twice"):
        service.pay("a/r/0/once", key="k")


def test_a_second_key_for_what_stands_is_a_second_payment() -> None:
    service = Service()
    service.pay("a/r/0/keyed", key="k")
    with pytest.raises(AssertionError, match="although its payment under k is valid"):
        service.pay("a/r/0/keyed", key="other")
    service.undo("a/r/0/keyed", key="k/undo")
    assert service.pay("a/r/0/keyed", key="k#2") == "a/r/0/keyed k#2"


def test_a_call_that_nobody_probed_is_not_made_again() -> None:
    service = Service()
    service.pay("a/r/0/probed", key="k")
    with pytest.raises(AssertionError, match="nobody has probed it"):
        service.pay("a/r/0/probed", key="k")


def test_what_was_paid_last_is_undone_first() -> None:
    service = Service()
    service.pay("a/r/0/keyed", key="k0")
    service.pay("a/r/1/keyed", key="k1")
    with pytest.raises(AssertionError, match="is undone before a/r/1/keyed"):
        service.undo("a/r/0/keyed", key="k0/undo")


def test_what_another_history_has_paid_may_be_undone_first() -> None:
    """The turn took it over without a call, after it had paid for the other."""
    plan = 1
    service = Service(lambda: plan)
    service.pay("a/r/1/keyed", key="k1")
    plan = 2
    service.pay("a/r/0/once", key="k0")
    service.undo("a/r/1/keyed", key="k1/undo")
    assert service.is_sold("k0") and not service.is_sold("k1")


def test_what_a_probe_found_after_a_recovery_may_be_undone_first() -> None:
    """The other was paid in a history that was given up."""
    plans = [1]
    service = Service(lambda: plans[-1])
    service.pay("a/r/0/probed", key="k0")
    service.pay("a/r/1/keyed", key="k1")
    plans.append(2)
    service.find("a/r/0/probed", key="k0")
    service.undo("a/r/0/probed", key="k0/undo")
    assert service.is_sold("k1") and not service.is_sold("k0")


def test_what_a_given_up_history_has_paid_under_a_key_of_its_own_is_not_in_the_way() -> None:
    service = Service()
    service.pay("a/r/0/once", key="k0")
    service.pay("a/r/1/unkeyed", key="of-another-history")
    service.undo("a/r/0/once", key="k0/undo")
    assert not service.is_sold("k0")


def test_what_was_undone_before_it_arrived_is_never_done() -> None:
    service = Service()
    service.undo("a/r/0/keyed", key="k/undo")
    with pytest.raises(ConnectionRefusedError):
        service.pay("a/r/0/keyed", key="k")


def test_a_done_request_whose_payment_does_not_stand_is_told() -> None:
    workload = make_workload(scenario_of("booking", "chandy-lamport").fleet)
    states = {"a0": BookerState(0, 4, 0, {"client1-1": Outcome("done", {"task": "k"})})}
    assert workload.check_end(states) == "client1-1 of a0 is done, and task does not stand under k"
