"""Template of `snapline chaos run` without a file: faults drawn by the seed from all that real processes support, on three hosts and three
coordinators."""

import msgspec

from snapline.chaos.capabilities import HERE, Where, reason_against
from snapline.sim.scenario import WORDS, FleetPart, PatternPart, Scenario, SwarmPart, TriggerPart
from snapline.sim.search.swarm import draw

EVERYTHING = Scenario(
    name="everything",
    fleet=FleetPart(
        agents=6,
        hosts=3,
        coordinators=3,
        pattern=PatternPart(name="bank", messages=800, rate_per_s=80.0),
        trigger=TriggerPart(every="500ms"),
    ),
    swarm=SwarmPart(
        faults=[word for word in WORDS if word != "hold"],
        faults_max=5,
        fleet=False,
        network=False,
        limits=False,
        clients=False,
        outputs=False,
        steps=False,
        restores=False,
    ),
)
"""About ten seconds of work; a run takes about twenty, because processes need half of the time to start."""


def drawn(template: Scenario, seed: int, on: Where = HERE) -> Scenario:
    """Return the scenario drawn by this seed. Drawn faults that are not supported there are omitted; faults listed in a file are kept."""
    scenario = draw(template, seed)
    if template.swarm is None:
        return scenario
    faults = [fault for fault in scenario.fault if not reason_against(fault, on)]
    return msgspec.structs.replace(scenario, fault=faults)
