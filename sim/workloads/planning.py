"""Pattern whose durable turns consist of steps, calls, sleeps and messages, and in which failures may interrupt a turn at any point.

The agents form a row, and each agent executes its plans one after another. In each plan, the agent calls its right neighbour, which answers
while it executes its own plan. Because the agents form a row rather than a ring, they never wait for each other in a cycle. Steps are
logged. The correct value of each plan is known in advance, so every cut shows whether a plan was lost, executed twice, or resumed with a
different history. In a cut, an agent's state is from before its current plan, so no cut may contain a partly executed plan.
"""

import contextlib
import functools
from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

import snapline
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.ledger import Nudge, name_of, shares
from snapline.sim.workloads.workload import Choose, Workload, check_agents, make_fleet, nudge

WAIT_S = 3600.0
"""Time limit in seconds for waits that certainly end. It is longer than any run. Expiring time limits are tested with a
message that never arrives."""

DRAWS = 1_000_000
"""Upper bound of the random number in an answer. It is large enough to distinguish histories."""

MESSAGES_OF_A_PLAN = 5
"""Number of messages per plan: the `Go` message, the hint, the call, the note and the answer."""

REFUSED, NOBODY = 11, 13
"""Value that an unanswered call adds to a plan: `REFUSED` if the called turn fails permanently, and `NOBODY` if the
called agent does not exist."""


class Go(snapline.Message):
    """Message that starts the agent's plan with this number."""

    plan: int


class Hint(snapline.Message):
    """Message that announces a new plan to the agent's right neighbour."""


class Ask(snapline.Message):
    plan: int


class Answer(snapline.Message):
    """Answer to a call from a neighbour.

    Attributes:
        done: number of plans that the answering agent had completed. The number may change if the call is repeated after a recovery.
        draw: random number that is different in each answer.
    """

    number: int
    done: int
    draw: int


class Note(snapline.Message):
    number: int


TOGETHER = (1, 2)
"""Remainders of the plans' numbers, divided by four, for which a plan makes most of its requests in one group."""


RACES = (0, 3)
"""Remainders of the plans' numbers, divided by four, for which requests race at the end of a plan."""


class Peek(snapline.Message):
    """Call whose answer contains the same number. Its answer may lose a race."""

    number: int


class Told(snapline.Message):
    """Output of a `Planner`. `place` distinguishes the outputs of one plan. `draw` is a random number, so it differs between histories."""

    agent: str
    plan: int
    place: int
    draw: float


class Refuse(snapline.Message):
    """Request that the handler always rejects with a permanent failure."""


class Never(snapline.Message):
    """Message type that no agent ever sends, because the guard of plans rejects it."""


class PlannerState(msgspec.Struct):
    """State of a `Planner` agent.

    Attributes:
        half: values that the current plan has computed so far. Empty between plans.
        asked, hinted: numbers of calls and of hints that the left neighbour has sent.
        told: random numbers in the answers that the agent sent to its left neighbour.
        heard: sum of the random numbers in the answers from the right neighbour.
    """

    index: int
    agents: int
    plans: int
    done: int = 0
    total: int = 0
    half: list[int] = []
    asked: int = 0
    hinted: int = 0
    told: list[int] = []
    heard: int = 0


def double(number: int) -> int:
    """Double a number. This step fails for every fifth number."""
    if number % 5 == 4:
        raise ValueError("too much")
    return 2 * number


def worth(plan: int, *, has_neighbour: bool) -> int:
    """Return the correct value of a completed plan."""
    steps = sum([-1 if number % 5 == 4 else 2 * number for number in (plan, plan + 1, plan + 2)])
    of_neighbour = plan + 1 + 3 * plan + (REFUSED if plan % 5 == 1 else 0) if has_neighbour else 0
    return steps + (7 if plan % 4 == 0 else 0) + (NOBODY if plan % 6 == 5 else 0) + of_neighbour


def _check_same(found: int, wanted: int) -> None:
    """Check that a step's result equals the value that the turn saw earlier. A result from a different history would have a different
    value."""
    if found != wanted:
        raise AssertionError(f"a step gave {found}, and its turn has seen {wanted}")


def _sends_never(_agent: snapline.Agent, output: snapline.TurnOutput) -> str | None:
    return "Never" if any(isinstance(message, Never) for _, message in output.sent) else None


class Planner(snapline.Agent):
    """Agent that executes plans. See the module docstring."""

    state: PlannerState
    stumbled = -1

    async def on_start(self, ctx: snapline.Context) -> None:
        if self.state.plans:
            ctx.send(ctx.agent, Go(0))

    @snapline.handler(durable=True, guard=_sends_never)
    async def on_go(self, message: Go, ctx: snapline.Context) -> None:
        plan, half, asked, heard = message.plan, self.state.half, self.state.asked, 0
        has_neighbour, right = self.state.index + 1 < self.state.agents, name_of(self.state.index + 1)
        if has_neighbour:
            ctx.send(right, Hint())
        for number in (plan, plan + 1):
            half.append(await self._look(number, ctx))
        if plan % 7 == 3:
            await self._be_rejected(right if has_neighbour else ctx.agent, ctx)
        _check_same(await ctx.step("asked", lambda: asked), asked)
        if plan % 4 == 0:
            half.append(await self._wait_in_vain(ctx))
        if has_neighbour and plan % 4 in TOGETHER:
            answer, numbers = await self._ask_together(plan, right, ctx)
            half += numbers
        elif has_neighbour:
            answer = await ctx.call(right, Ask(plan), Answer, timeout_s=WAIT_S)
        if has_neighbour:
            half.append(answer.number)
            heard = answer.draw
            self._tell(plan, 1, ctx)
            _check_same(await ctx.step("done", lambda: answer.done), answer.done)
        if has_neighbour and plan % 4 not in TOGETHER:
            await ctx.sleep(0.001 + 0.02 * ctx.random())
            half.append((await ctx.receive(Note, timeout_s=WAIT_S)).number)
            if plan % 5 == 1:
                half.append(await self._refused(right, REFUSED, ctx))
        if not has_neighbour or plan % 4 not in TOGETHER:
            if plan % 6 == 5:
                half.append(await self._refused("nobody", NOBODY, ctx))
            half.append(await self._look(plan + 2, ctx))
        if plan % 4 in RACES:
            await self._race(plan, right if has_neighbour else "", ctx)
        self._tell(plan, 2, ctx)
        self._stumble(plan)
        self.state.heard += heard
        self.state.total += sum(half)
        self.state.done += 1
        half.clear()
        if self.state.done < self.state.plans:
            ctx.send(ctx.agent, Go(self.state.done))

    async def _be_rejected(self, agent: str, ctx: snapline.Context) -> None:
        """Send what the guard rejects, and go on without it."""
        ctx.send(agent, Never())
        with contextlib.suppress(snapline.GuardViolationError):
            await ctx.sleep(0)
            raise AssertionError("a rejected message has left")

    async def _ask_together(self, plan: int, right: str, ctx: snapline.Context) -> tuple[Answer, list[int]]:
        """Make the plan's other requests at the same time. Return the neighbour's answer, and the values of the other requests."""
        others = [self._look(plan + 2, ctx), ctx.sleep(0.001 + 0.02 * ctx.random())]
        others += [self._refused(right, REFUSED, ctx)] if plan % 5 == 1 else []
        others += [self._refused("nobody", NOBODY, ctx)] if plan % 6 == 5 else []
        call = ctx.call(right, Ask(plan), Answer, timeout_s=WAIT_S)
        answer, note, *numbers = await ctx.gather(call, ctx.receive(Note, timeout_s=WAIT_S), *others)
        return answer, [note.number, *[number for number in numbers if number is not None]]

    async def _race(self, plan: int, right: str, ctx: snapline.Context) -> None:
        """Let different requests race, and a failure cancel others. The plan's value does not depend on what comes first."""
        step, sleep = ctx.step("double", double, 10 * plan), ctx.sleep(0.02 * ctx.random())
        members: list[Awaitable[Any]] = [step, sleep, ctx.receive(Never)]
        members += [ctx.call(right, Peek(plan), Answer, timeout_s=WAIT_S)] if right else []
        first, result = await ctx.race(*members)
        _check_same(await ctx.step("first", lambda: first), first)
        if first == 0:
            _check_same(result, 20 * plan)
        elif first == 3:
            _check_same(result.number, plan)
        with contextlib.suppress(snapline.StepFailedError):
            steps = [ctx.step("double", double, number) for number in (4, 10)]
            await ctx.gather(*steps, ctx.sleep(0.02 * ctx.random()), on_error="cancel")
            raise AssertionError("a failed step did not fail its group")

    @snapline.handler
    async def on_peek(self, message: Peek, ctx: snapline.Context) -> None:
        ctx.reply(Answer(message.number, 0, 0))

    def _tell(self, plan: int, place: int, ctx: snapline.Context) -> None:
        """Emit an output in every third plan. This method is called in the middle and at the end of each plan."""
        if plan % 3 == 0:
            ctx.emit("plans", Told(ctx.agent, plan, place, ctx.random()))

    def _stumble(self, plan: int) -> None:
        """Fail once in every third plan, so that the plan is retried from its journal. The same agent object does not fail a second time in
        the same plan."""
        if plan % 3 == 2 and self.stumbled != plan:
            self.stumbled = plan
            raise RuntimeError("stumbled")

    async def _look(self, number: int, ctx: snapline.Context) -> int:
        try:
            return await ctx.step("double", double, number)
        except snapline.StepFailedError:
            return -1

    async def _wait_in_vain(self, ctx: snapline.Context) -> int:
        try:
            await ctx.receive(Never, timeout_s=0.01)
        except snapline.WaitTimeoutError:
            return 7
        return 0

    async def _refused(self, agent: str, worth: int, ctx: snapline.Context) -> int:
        try:
            await ctx.call(agent, Refuse(), Answer, timeout_s=WAIT_S)
        except snapline.UnansweredCallError:
            return worth
        return 0

    @snapline.handler(durable=True)
    async def on_refuse(self, message: Refuse, ctx: snapline.Context) -> None:
        self.state.half.append(await self._look(0, ctx))
        raise ValueError("refused")

    @snapline.handler
    async def on_ask(self, message: Ask, ctx: snapline.Context) -> None:
        """Answer a call and also send a note. For every second plan, the note is sent before the answer, so the caller must defer the
        note."""
        self.state.asked += 1
        answer = Answer(message.plan + 1, self.state.done, int(ctx.random() * DRAWS))
        self.state.told.append(answer.draw)
        if message.plan % 2:
            ctx.send(ctx.sender, Note(3 * message.plan))
            ctx.reply(answer)
        else:
            ctx.reply(answer)
            ctx.send(ctx.sender, Note(3 * message.plan))

    @snapline.handler(durable=True)
    async def on_nudge(self, message: Nudge, ctx: snapline.Context) -> None:
        """Handle a client's input by executing a step. The agent's state does not change."""
        await self._look(message.serial, ctx)
        message.take(ctx)

    @snapline.handler
    async def on_hint(self, message: Hint, ctx: snapline.Context) -> None:
        self.state.hinted += 1

    @snapline.handler
    async def on_note(self, message: Note, ctx: snapline.Context) -> None:
        raise AssertionError("each note belongs to a plan")


class PlanningWorkload(Workload):
    """Workload that checks that each plan was executed exactly once, with the correct value."""

    def input_of(self, agent: str, client: str, serial: int, choose: Choose) -> snapline.Message | None:
        return nudge(client, serial, choose)

    def check_cut(self, cut: snapline.Cut) -> str | None:
        for dead_letter in cut.dead_letters:
            if isinstance(dead_letter.message, Refuse | Nudge):
                continue
            return f"there is a dead letter: {dead_letter.error}"
        return self._check(cut.states)

    def is_done(self, states: Mapping[str, object]) -> bool:
        return all(isinstance(state, PlannerState) and state.done == state.plans for state in states.values())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        return self._check(states)

    def _check(self, states: Mapping[str, object]) -> str | None:
        for agent, state in states.items():
            assert isinstance(state, PlannerState)
            has_neighbour = state.index + 1 < state.agents
            total = sum([worth(plan, has_neighbour=has_neighbour) for plan in range(state.done)])
            if state.half or state.total != total:
                return f"{agent} has {state.total} of {state.done} plans, which come to {total}, and {state.half} of another one"
            right = states.get(name_of(state.index + 1))
            if isinstance(right, PlannerState) and state.heard != sum(right.told[: state.done]):
                return f"{agent} was answered {state.heard} in {state.done} plans, and its neighbour has answered {right.told}"
            if isinstance(right, PlannerState) and not state.done <= right.asked <= state.done + 1:
                return f"{agent} has done {state.done} plans, and its neighbour was asked {right.asked} times"
            if isinstance(right, PlannerState) and not state.done <= right.hinted <= state.done + 1:
                return f"{agent} has done {state.done} plans, and its neighbour was told of {right.hinted}"
        return None


def make_planning(part: FleetPart) -> PlanningWorkload:
    """Return a workload whose plans need approximately as many messages as the scenario specifies."""
    check_agents(part)
    plans = shares(part.pattern.messages // MESSAGES_OF_A_PLAN, part.agents)
    make = functools.partial(_planner, part.agents, plans)
    return PlanningWorkload(make_fleet(part, make), ends=part.pattern.messages > 0)


def _planner(agents: int, plans: list[int], index: int) -> Planner:
    return Planner(PlannerState(index, agents, plans[index]))
