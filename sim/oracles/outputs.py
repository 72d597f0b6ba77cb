"""R2: what was released is in the history of the cut that it was released with, once and in order, and nothing before it is missing; and what
the fleet goes back from is taken back explicitly.

The books say what each turn emitted. Every output has other bytes, so these are its name. The oracle reads each file of released
outputs when a leader says that it is there, as a reader does from the first file on: what it has of epochs above `after` it takes back,
then it takes what is new. Then it must have of each agent in the cut just what the agent's turns had emitted by its place in
the cut. An agent that leaves has had all of its outputs released. Numbers of the product are looked at only where they must follow one
another.
"""

from collections.abc import Iterable, Mapping

import msgspec

from snapline.sim.oracles.ground_truth_records import AgentHistory, Branch, CutRecord, Report, show
from snapline.storage.outputs.record import EmittedOutput, Release


class Had(msgspec.Struct, frozen=True):
    """Outputs that a reader has of one release: agent, number and payload."""

    epoch: int
    outputs: list[tuple[str, int, bytes]]


def flat(had: Iterable[Had]) -> list[tuple[int, str, int, bytes]]:
    """Return all outputs of the releases, in order."""
    return [(each.epoch, *output) for each in had for output in each.outputs]


class OutputOracle:
    """Output oracle of one run.

    Attributes:
        had: what a reader of all files so far has, and has not undone.
        emitted: by turns, in all histories together.
        undone: outputs undone.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.had: list[Had] = []
        self.emitted = self.undone = 0
        self._lines: dict[int, int] = {}
        self._plans: dict[int, int] = {}
        """Complete epoch → its plan."""
        self._released: dict[int, Release | None] = {}

    # ---- what turns do, and the log says --------------------------------------------------------------------------

    def on_emitted(self, history: AgentHistory, payload: bytes) -> None:
        """The last turn of this history has emitted it."""
        self.emitted += 1
        history.outputs.append((history.turns, payload))

    def on_plan(self, plan: int, line_epoch: int) -> None:
        """A plan was committed."""
        self._lines[plan] = line_epoch

    def on_complete(self, epoch: int, plan: int) -> None:
        """An epoch is complete."""
        self._plans[epoch] = plan

    def on_called(self, t_ns: int, agent: str, key: str) -> None:
        """An agent's effect is called under this outside key: readers have its intent, so no failure undoes that it was asked for (G12)."""
        word = key.encode()
        if not any(x[0] == agent and word in x[2] for each in self.had for x in each.outputs):
            self._report("effects", "G12", t_ns, f"{agent} calls an effect before its intent is released: {key}")

    def on_left(self, t_ns: int, history: AgentHistory) -> None:
        """An agent has left: what its host still held of its outputs is gone."""
        kept = [
            payload
            for each in self.had
            if self._counts(each.epoch)
            for of, _, payload in each.outputs
            if of == history.agent
        ]
        emitted = [payload for _, payload in history.outputs]
        if kept != emitted:
            text = f"{history.agent} has left with {len(emitted)} outputs, and {_common(kept, emitted)} of them are released"
            self._report("outputs", "R2", t_ns, text)

    def _counts(self, epoch: int) -> bool:
        """Return whether the epoch is in the history of the present plan. Readers undo what was rolled back with the next release only."""
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
        """A leader says that this epoch is released; None: there is no file. `cut`: None if it is not known, of `branch`.

        `is_void`: the fleet was restored past it; a leader that does not know that may release it late, and no reader need see it.
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
        self.had = [*kept, Had(release.epoch, [_short(output) for output in release.outputs])]
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
        """The epoch before it in its history, by the entries of the log."""
        plan = self._plans[epoch]
        return max([x for x, begun in self._plans.items() if begun == plan and x < epoch], default=self._lines[plan])

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
        """The fleet rests, or has ended: its newest epoch is released, also where that was not said."""
        if cut is not None and epoch not in self._released:
            self._compare(t_ns, epoch, cut, branch)

    def check_files(self, t_ns: int, files: Mapping[int, Release]) -> None:
        """Check that released outputs are still there, unchanged."""
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
