"""Workloads of simulated fleets: traffic patterns in which every consistent cut can be checked."""

from snapline.sim.workloads.patterns import PATTERNS as PATTERNS
from snapline.sim.workloads.patterns import make_workload as make_workload
from snapline.sim.workloads.workload import Workload as Workload
from snapline.sim.workloads.workload import user_triggers as user_triggers
from snapline.sim.workloads.workload import user_workload as user_workload
