"""Runs a scenario in simulation with a seed, and returns the result with a verdict.

In the first phase, the scenario's faults are injected. In the second phase, the faults are healed and liveness is checked: recoveries must
finish, epochs must complete, and all work must be done. A run ends immediately with the verdict "violation" if a guarantee is violated.
Without a violation, the verdict is "undecided" if a required event has not happened by the end of the run. The verdict is "broken" if the
agents or the harness fail.
"""

import gc
import logging
import time
import traceback
from collections.abc import Callable

from snapline import failpoints
from snapline.agent_runtime.message_encoding import encode_body
from snapline.errors import SnaplineError
from snapline.sim.choices import Choices, RandomChoices
from snapline.sim.faults.faults import heal
from snapline.sim.result import Result, Verdict, seconds
from snapline.sim.scenario import Scenario
from snapline.sim.workloads import Workload, make_workload
from snapline.sim.workloads.workload import GivenInputs
from snapline.sim.world.kernel import Journal
from snapline.sim.world.product_patches import limited, manifests_cached
from snapline.sim.world.recording import Recording
from snapline.sim.world.world import World

LOOK_NS = 100_000_000
"""Interval, in virtual time, at which the run checks whether it has ended."""

WORK_NS = 300_000_000_000
"""Maximum time that a fleet may take to finish its work (`run.turns`) after the faults. On the slowest network that is
drawn, 600 consecutive messages take this long."""

LOOKS_APART, AGENTS_PER_CHECK = 4, 1_000
"""The invariants of all cores are checked at every fourth of these checks and at the end of the run. They are checked
less often if the fleet is large."""


def run(
    scenario: Scenario,
    seed: int,
    choices: Choices | None = None,
    *,
    recording: Recording | None = None,
    window_at: int | None = None,
    workload: Workload | None = None,
    on_world: Callable[[World], None] | None = None,
) -> Result:
    """Run a scenario whose random values have already been determined.

    Args:
        choices: source of the run's choices. By default, the seed determines all choices.
        recording: recording to which the run's events are added.
        workload: the fleet to run and its invariants. By default, the scenario determines the workload.
        window_at: index of the section of a thousand journal entries to keep in `Result.journal`.
        on_world: function that is called with the simulated world before the first event. Callers can use it to inspect the world during
            the run.
    """
    result = Result(name=scenario.name, seed=seed, verdict="broken")
    journal = Journal(window_at)
    began_s = time.process_time()
    was_collecting = gc.isenabled()
    gc.disable()
    logger = logging.getLogger("snapline")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # the result contains everything that matters
    try:
        with limited(scenario.limits), manifests_cached():
            built = workload or make_workload(scenario.fleet)
            if built.inputs is None and scenario.clients.inputs_from:
                built.inputs = GivenInputs(scenario.clients.inputs_from)
            world = World(scenario, seed, choices or RandomChoices(seed), built, recording=recording, journal=journal)
            if on_world is not None:
                on_world(world)
            _run(world, result)
    except SnaplineError as error:
        result.error = str(error)
    except Exception:
        result.error = traceback.format_exc()
    finally:
        failpoints.install(None)
        logger.setLevel(level)
        if was_collecting:
            gc.enable()
    result.cpu_s = time.process_time() - began_s
    return result


def _run(world: World, result: Result) -> None:
    failpoints.install(world.shared.points.passed)
    watch = Watch(world)
    try:
        ended = world.shared.kernel.run(world.shared.scenario.run.events_max)
        failpoints.install(None)
        watch.conclude(result, ended=ended)
    finally:
        world.hosts.forget()
        world.shared.judge.replays.finish()


class Watch:
    """Checks the simulated world periodically during a run, heals it after its faults, and ends the run.

    Attributes:
        healed_ns: time at which all faults were healed, or 0 if they have not been healed yet.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._shared = shared = world.shared
        self._heal_ns: int | None = None
        self.healed_ns = self._whole_ns = 0
        self.pending: list[str] = ["the faults are not over"]
        self._looks = 0
        self._looks_apart = LOOKS_APART + len(shared.agents) // AGENTS_PER_CHECK
        shared.kernel.at(LOOK_NS, self._look)
        if shared.scenario.run.faults_from == "start":
            self._begin_faults()
        else:
            world.when_running(self._begin_faults)

    def _begin_faults(self) -> None:
        self._heal_ns = self._world.executor.begin()

    def _look(self, _: object) -> None:
        world, shared, now_ns = self._world, self._shared, self._shared.kernel.now_ns
        shared.journal.hash_full_pieces()
        self._looks += 1
        if self._looks % self._looks_apart == 0:
            self._validate()
        if self._heal_ns is None and now_ns > shared.scenario.liveness.within_ns:
            self._heal_ns = now_ns  # the fleet never started working
        if not self.healed_ns and self._heal_ns is not None and self._heal_ns <= now_ns and not self._waits_for_work():
            self.healed_ns = now_ns
            heal(world.executor)
            world.clients.make_patient()
            world.hosts.steps.stubs.outages.is_over = True
        if self.healed_ns:
            world.complete_fleet()
            missing_work = self._missing_work()
            self._whole_ns = now_ns if missing_work else self._whole_ns or self.healed_ns
            self.pending = world.pending_work.pending(self._whole_ns) + world.clients.pending()
            self.pending += world.operator.pending() + world.approver.pending()
            self.pending = self.pending or world.missing_releases() or missing_work
        is_late = self.healed_ns and now_ns > self._whole_ns + shared.scenario.liveness.within_ns
        if shared.judge.violations or (self.healed_ns and not self.pending) or is_late:
            shared.kernel.is_over = True
        else:
            shared.kernel.at(now_ns + LOOK_NS, self._look)

    def _missing_work(self) -> list[str]:
        """Return a description of the unfinished work of a user's fleet. Return an empty list if no work remains, or if the fleet no longer
        makes progress. The final checks wait until the list is empty."""
        shared = self._shared
        now_ns, within_ns = shared.kernel.now_ns, shared.scenario.liveness.within_ns
        is_over = (
            now_ns > self.healed_ns + WORK_NS or now_ns > max(shared.figures.last_turn_ns, self.healed_ns) + within_ns
        )
        text = "" if is_over else self._world.pending_work.work_owed()
        return [text] if text else []

    def _waits_for_work(self) -> bool:
        """Return whether the run must wait for a crash that the scenario plans for a time when the fleet works. The run stops waiting when
        the work is done or a time limit expires."""
        world = self._world
        shared = self._shared
        idle_ns = shared.kernel.now_ns - max(shared.figures.last_turn_ns, self._heal_ns or 0)
        is_over = self._heal_ns is None or shared.kernel.now_ns > self._heal_ns + WORK_NS
        is_over = is_over or idle_ns > shared.scenario.liveness.within_ns
        is_done = world.pending_work.is_at_rest() and not world.clients.pending()
        return world.executor.waits_for_work and not is_over and not is_done

    def _validate(self) -> None:
        try:
            self._world.validate()
        except AssertionError as error:
            self._shared.kernel.is_over = False  # failures found at the end count too
            self._shared.core_failed("", error)

    def conclude(self, result: Result, *, ended: bool) -> None:
        """Run the oracles that require a complete run, and set the verdict."""
        world, shared = self._world, self._shared
        violations = shared.judge.violations
        world.probe_at_end()
        if not violations and not shared.misuse:
            self._validate()
        if not violations:
            world.notes.store.read_back()
        if not violations and ended and self.healed_ns:
            self._report_waiting()
        if not violations and not self.pending and ended:
            states, is_quiet = world.pending_work.states(), world.pending_work.is_idle()
            resting = states if is_quiet else world.pending_work.resting()
            images = {agent: encode_body(states[agent]) for agent in resting if agent in states}
            shared.judge.at_end(
                shared.kernel.now_ns,
                images,
                heard=world.pending_work.heard(),
                is_quiet=is_quiet,
                is_released=world.is_released(),
            )
            world.check_outputs()
            world.notes.host_logs.check_bounded(self.healed_ns)
            shared.workload.was_rolled_back = shared.judge.ground_truth.inputs.has_fallen_back
            finding = shared.workload.check_end(states) if shared.workload.ends else None
            if finding:
                shared.say("workload", "G3", finding)
        result.violations = list(violations)
        result.error = shared.misuse
        if shared.workload.failure:
            at = "".join([f"at {seconds(violation.t_ns)}, {violation.text}\n" for violation in violations[:1]])
            result.error, result.violations = f"{shared.workload.failure}{at}", []
        result.verdict = self._verdict(result, ended=ended)
        result.pending = self.pending if result.verdict == "undecided" else []
        result.trace_hash = shared.journal.close()
        result.waypoints = shared.journal.waypoints
        result.journal = shared.journal.window
        result.events = shared.kernel.events
        result.messages = shared.judge.ground_truth.messages
        result.virtual_ns = shared.kernel.now_ns
        result.probes = dict(shared.judge.probes.hits)
        result.faults = list(world.executor.faults)
        result.unstubbed_steps = list(world.hosts.steps.stubs.without_stub) if shared.scenario.fleet.module else []
        result.metrics = metrics_of(world)

    def _report_waiting(self) -> None:
        """Report agents and clients that are still waiting although all faults are healed and the fleet is complete. Do not report those
        that may only be slow because the fleet is busy."""
        shared = self._shared
        patience_ns = shared.scenario.liveness.within_ns // 2
        if shared.scenario.budget == "within":
            for agent, why in self._world.pending_work.blocked().items():
                shared.say("stuck", "G10", f"{agent} stands in the middle of a durable turn, for good: {why}")
        if not self.pending or shared.scenario.budget != "within":
            return
        for agent in self._world.pending_work.ignored_rollback_requests(shared.kernel.now_ns - patience_ns):
            text = f"{agent} has asked that the fleet goes back, and stands for {patience_ns / 1e9:g} s, without a word"
            shared.say("liveness", "G10", text)
        if self._world.pending_work.pending(self.healed_ns):
            return
        for text in self._world.clients.without_progress(shared.kernel.now_ns - patience_ns):
            shared.say("liveness", "R1", f"{text} for {patience_ns / 1e9:g} s, though everything runs")

    def _hollow(self) -> str:
        """Return the reason why a complete run of a user's fleet proves nothing about the fleet, or "" if the run is conclusive."""
        scenario, taken = self._shared.scenario, self._shared.figures.turns
        if not scenario.run.turns or self.pending:
            return ""
        needs_crash = any(part.crash is not None and part.crash.when == "working" for part in scenario.fault)
        if needs_crash and not self._shared.judge.probes.hits.get("recovery"):
            return f"the fleet was done after {taken} turns, before the crash that was to come in the midst of them"
        if self._world.pending_work.work_owed() and 2 * taken < scenario.run.turns:
            return f"only {taken} of {scenario.run.turns} turns were taken"
        return ""

    def _verdict(self, result: Result, *, ended: bool) -> Verdict:
        if result.error:
            return "broken"
        if result.violations:
            return "violation"
        if not self._shared.figures.handled:
            advice = "" if self._shared.workload.takes_inputs else "; if clients begin its work, give --inputs"
            nothing = f"nothing was exercised: no agent has handled a message, a timer or an input{advice}"
            self.pending = [*self.pending, nothing]
        elif hollow := self._hollow():
            self.pending = [*self.pending, f"the run is hollow: {hollow}"]
        if not ended:
            self.pending = [*self.pending, f"there were more than {self._shared.scenario.run.events_max} events"]
        return "undecided" if self.pending else "pass"


ZERO = (
    *("checkpoints_initial", "checkpoints_basic", "checkpoints_forced", "checkpoints_tentative", "checkpoints_useless"),
    *("epochs_complete", "epochs_aborted", "recoveries", "recovery_s", "agents_rolled_back", "checkpoints_lost"),
    *("lost_turns", "rollback_turns", "domino_depth", "control_messages", "piggyback_bytes"),
)
"""Metrics that every run reports, even those whose value is 0."""


def metrics_of(world: World) -> dict[str, float]:
    """Return the metrics of one run. The name of each metric ends with its unit."""
    shared = world.shared
    metrics = dict.fromkeys(ZERO, 0.0) | shared.figures.counts
    metrics["piggyback_bytes"] += sum(run.driver.core.shared.counts.piggyback_bytes for run in world.hosts.alive())
    metrics["checkpoints_useless"] = float(shared.judge.probes.hits.get("useless checkpoint", 0))
    if saved := metrics.pop("checkpoints_saved", 0.0):
        metrics["checkpoint_s"] = metrics["saving_s"] / saved
    metrics["turns"] = shared.figures.turns
    metrics["busy_s"] = shared.figures.busy_ns / 1e9
    metrics["virtual_s"] = shared.kernel.now_ns / 1e9
    metrics["store_bytes"] = shared.stores.disk.used_bytes()
    if world.pending_work.finished_ns:
        metrics["finish_s"] = world.pending_work.finished_ns / 1e9
        metrics["throughput_per_s"] = shared.judge.ground_truth.messages / metrics["finish_s"]
    return metrics
