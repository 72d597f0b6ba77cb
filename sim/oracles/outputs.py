"""R2: released outputs are exactly those in the history of their cut, once and in order; outputs of rolled-back epochs are explicitly reverted.

The ground truth knows the outputs of each turn. Every output has distinct bytes, which identify it. When a leader reports a release, the
oracle reads its file as a reader does who started with the first file: it reverts outputs of epochs above `after`, then adds the new ones.
Then it must have, for each agent in the cut, exactly the outputs that the agent's turns had emitted by its place in the cut. All outputs of
an agent that leaves must have been released. Output numbers of the product are used only to check that they are consecutive.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.sim.oracles.ground_truth_records import AgentHistory, Branch, CutRecord, Report, show
from snapline.storage.outputs.output_record import EmittedOutput, Release


class ReadRelease(msgspec.Struct, frozen=True):
    """Outputs of one release that a reader has: agent, number and payload."""

    epoch: int
    outputs: list[tuple[str, int, bytes]]


def flat(had: Iterable[ReadRelease]) -> list[tuple[int, str, int, bytes]]:
    """Return all outputs of the releases, in order."""
    return [(release.epoch, *output) for release in had for output in release.outputs]


class OutputOracle:
    """Output oracle of one run.

    Attributes:
        had: releases that a reader of all files has, without reverted ones.
        emitted: number of outputs emitted by turns, in all histories.
        undone: number of outputs reverted.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.had: list[ReadRelease] = []
        self.emitted = self.undone = 0
        self._lines: dict[int, int] = {}
        self._plans: dict[int, int] = {}
        """Complete epoch → its plan."""
        self._released: dict[int, Release | None] = {}

    # ---- turns and the log ----------------------------------------------------------------------------------------

    def on_emitted(self, history: AgentHistory, payload: bytes) -> None:
        """Record an output of the last turn of this history."""
        self.emitted += 1
        history.outputs.append((history.turns, payload))

    def on_plan(self, plan: int, line_epoch: int) -> None:
        """Record a committed plan."""
        self._lines[plan] = line_epoch

    def on_complete(self, epoch: int, plan: int) -> None:
        """Record a complete epoch."""
        self._plans[epoch] = plan

    def on_called(self, t_ns: int, agent: str, key: str) -> None:
        """Check that readers have the intent of an effect before it is called under this key, so that no failure reverts the request (G12)."""
        key_bytes = key.encode()
        if not any(x[0] == agent and key_bytes in x[2] for each in self.had for x in each.outputs):
            self._report("effects", "G12", t_ns, f"{agent} calls an effect before its intent is released: {key}")

    def on_left(self, t_ns: int, history: AgentHistory) -> None:
        """Check that all outputs of an agent that has left are released; those still at its host are lost."""
        released = [
            payload
            for each in self.had
            if self._counts(each.epoch)
            for of, _, payload in each.outputs
            if of == history.agent
        ]
        emitted = [payload for _, payload in history.outputs]
        if released != emitted:
            text = f"{history.agent} has left with {len(emitted)} outputs, and {_common(released, emitted)} of them are released"
            self._report("outputs", "R2", t_ns, text)

    def _counts(self, epoch: int) -> bool:
        """Return whether the epoch is in the history of the present plan. Readers revert rolled-back outputs only with the next release."""
        plan = max(self._lines, default=0)
        while self._plans[epoch] != plan:
            line = self._lines.get(plan, 0)
            if epoch > line or line not in self._plans:
                return False
            plan = self._plans[line]
        return True

    # ---- releases -------------------------------------------------------------------------------------------------

    def on_released(
        self,
        t_ns: int,
        epoch: int,
        release: Release | None,
        cut: CutRecord | None,
        branch: Branch,
        *,
        is_void: bool = False,
    ) -> None:
        """Check an epoch that a leader reports as released (None: without a file), against its cut in `branch` if the cut is known.

        `is_void`: the fleet was restored past it. A leader that does not know that may release it late, and readers need not see it.
        """
        if epoch not in self._plans:
            self._say(t_ns, f"epoch {epoch} was released, and was never complete")
            return
        if epoch in self._released:
            if self._released[epoch] != release and (release is not None or self._released[epoch] is not None):
                self._say(t_ns, f"epoch {epoch} was released twice, with other outputs")
            return
        newest = max(self._released, default=0)
        self._released[epoch] = release
        if epoch < newest:
            if release is not None and not is_void:
                self._say(t_ns, f"epoch {epoch} was released after epoch {newest}: who had read that never sees it")
            return
        if release is not None:
            self._take(t_ns, release)
        if cut is not None:
            self._compare(t_ns, epoch, cut, branch)

    def _take(self, t_ns: int, release: Release) -> None:
        before = self._before(release.epoch)
        if release.after != before:
            self._say(t_ns, f"epoch {release.epoch} was released after epoch {release.after}, not after {before}")
        kept = [each for each in self.had if each.epoch <= release.after]
        self.undone += sum([len(each.outputs) for each in self.had[len(kept) :]])
        self.had = [*kept, ReadRelease(release.epoch, [_short(output) for output in release.outputs])]
        numbers: dict[str, int] = {}
        for each in self.had:
            for agent, number, _ in each.outputs:
                if number != numbers.get(agent, 0) + 1:
                    text = (
                        f"output {number} of {agent}, released with epoch {each.epoch}, follows {numbers.get(agent, 0)}"
                    )
                    self._say(t_ns, text)
                numbers[agent] = number

    def _before(self, epoch: int) -> int:
        """Return the epoch before this one in its history, according to the log."""
        plan = self._plans[epoch]
        return max(
            [x for x, epoch_plan in self._plans.items() if epoch_plan == plan and x < epoch], default=self._lines[plan]
        )

    def _compare(self, t_ns: int, epoch: int, cut: CutRecord, branch: Branch) -> None:
        """Check that a reader has what the agents of the cut had emitted by their places in it."""
        for agent, place in cut.places.items():
            history = branch.histories.get(agent)
            if history is None or place.is_gone or place.captured is None:
                continue
            emitted = [payload for turn, payload in history.outputs if turn <= place.turns]
            kept = self._had_of(agent)
            if kept != emitted:
                self._say(t_ns, f"epoch {epoch}: {_difference(agent, kept, emitted)}")
                return

    def check_end(self, t_ns: int, epoch: int, cut: CutRecord | None, branch: Branch) -> None:
        """Check, in an idle or ended fleet, that its newest epoch is released even if no leader has reported that."""
        if cut is not None and epoch not in self._released:
            self._compare(t_ns, epoch, cut, branch)

    def check_files(self, t_ns: int, files: Mapping[int, Release]) -> None:
        """Check that released files still exist, unchanged."""
        for epoch, release in self._released.items():
            if release is not None and files.get(epoch) != release:
                self._say(t_ns, f"what was released with epoch {epoch} is not there any more")

    def _had_of(self, agent: str) -> list[bytes]:
        return [payload for each in self.had for of, _, payload in each.outputs if of == agent]

    def _say(self, t_ns: int, text: str) -> None:
        self._report("outputs", "R2", t_ns, text)


def _short(output: EmittedOutput) -> tuple[str, int, bytes]:
    return output.agent, output.number, output.topic.encode() + b" " + output.payload


def _common(one: list[bytes], other: list[bytes]) -> int:
    return len(set(one) & set(other))


def _difference(agent: str, kept: list[bytes], emitted: list[bytes]) -> str:
    surplus = [payload for payload in kept if payload not in emitted]
    missing = [payload for payload in emitted if payload not in kept]
    if surplus:
        return f"{show(surplus[0])} of {agent} was released, and is not in the history of that cut"
    if missing:
        return f"{show(missing[0])} of {agent} is in the history of that cut, and was not released"
    return f"outputs of {agent} were released twice, or in another order than they were emitted in"
