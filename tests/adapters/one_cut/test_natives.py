"""The native part of the cycle in the simulator, with everything that can fail."""

import pytest
from tests.adapters.one_cut import native_cycle

from snapline.sim.pytest_plugin import Simulation


def test_native_agents_conserve_the_total_whatever_fails(snapline_sim: Simulation) -> None:
    summary = snapline_sim.check(native_cycle.natives, seeds=12, invariant=native_cycle.conserve)
    assert summary.verdict == "pass"
    assert summary.probes["recovery"] and summary.probes["channel state not empty"]


def test_states_without_channels_do_not_conserve_it(snapline_sim: Simulation) -> None:
    """The invariant can fail: most of what it adds to the states is on its way."""
    with pytest.raises(pytest.fail.Exception, match="tokens are missing"):
        snapline_sim.check(native_cycle.natives, seeds=8, invariant=native_cycle.conserve_without_channels, shrink_s=0)
