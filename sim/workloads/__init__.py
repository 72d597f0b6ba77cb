"""Workloads for simulated fleets: traffic patterns with invariants that can be checked in every consistent cut."""

from snapline.sim.workloads.patterns import PATTERNS as PATTERNS
from snapline.sim.workloads.patterns import make_workload as make_workload
from snapline.sim.workloads.workload import Workload as Workload
from snapline.sim.workloads.workload import user_triggers as user_triggers
from snapline.sim.workloads.workload import user_workload as user_workload
