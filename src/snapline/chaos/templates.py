"""Template of `snapline chaos run` without a file: all words that real processes can suffer, drawn from the seed, on three hosts and three
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
"""Some ten seconds of work: a run lasts some twenty, half of which processes take to start."""


def drawn(template: Scenario, seed: int, on: Where = HERE) -> Scenario:
    """Return the scenario drawn by this seed. Drawn faults that cannot be carried out there are left out; those that a file lists are not."""
    found = draw(template, seed)
    if template.swarm is None:
        return found
    faults = [fault for fault in found.fault if not reason_against(fault, on)]
    return msgspec.structs.replace(found, fault=faults)
