"""Examples of the package as workloads: a small PageRank and the bank.

Their agents keep no ledgers, so a cut is checked only for the quantity that the example conserves: mass or tokens.
These checks miss swapped messages and messages that carry nothing.
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import snapline
from snapline.agent_runtime.fleet import Fleet
from snapline.errors import UsageError
from snapline.examples import bank
from snapline.sim.scenario import FleetPart
from snapline.sim.workloads.workload import Workload, check_agents, triggers_of

if TYPE_CHECKING:  # NumPy is an extra
    from snapline.examples.forward_push import ShardState

SHARDS_MAX = 256
"""Largest number of PageRank shards. Each shard reads the whole graph when it is created, so more would take minutes."""

SEEDS = 2

TELLERS_MAX = 1_000
"""Largest number of tellers of the bank. Each teller knows all others."""

MODULES_PER_SHARD = 3

TOKENS = 100
"""Initial tokens of each teller of the bank."""

LINES = 2
"""Number of concurrent transfers per teller."""


# -- PageRank ---------------------------------------------------------------------------------------------------------


class PagerankWorkload(Workload):
    """Workload that checks that states and messages hold every unit of mass. It always ends."""

    def __init__(self, fleet: Fleet, imports: list[list[int]]) -> None:
        super().__init__(fleet, ends=True)
        self.imports = imports

    def check_cut(self, cut: snapline.Cut) -> str | None:
        from snapline.examples import pagerank

        shards = len(pagerank.shard_states(cut))
        if shards != len(self.fleet.agents):
            return f"the cut holds {shards} shards of {len(self.fleet.agents)}"
        account = pagerank.account(cut)
        if account.is_exact:
            return None
        return (
            f"{account.in_states} units of mass in states and {account.in_transit} in transit: "
            f"that is not the {account.expected} of the beginning"
        )

    def is_done(self, states: Mapping[str, object]) -> bool:
        from snapline.examples import forward_push

        shards = [state for state in states.values() if isinstance(state, forward_push.ShardState)]
        if len(shards) < len(self.fleet.agents):
            return False
        settled = all(
            forward_push.is_settled(shard, batch) for shard in shards for batch in forward_push.batches_of(shard)
        )
        return settled and bool((forward_push.units_in_states(shards) == forward_push.UNIT).all())

    def check_end(self, states: Mapping[str, object]) -> str | None:
        from snapline.examples import forward_push

        shards = [state for state in states.values() if isinstance(state, forward_push.ShardState)]
        shards.sort(key=lambda shard: shard.shard)
        difference, bound = _distance(shards, self.imports)
        if difference <= bound:
            return None
        return f"at the end: the ranks differ by {difference} from the sequential result, {bound} is allowed"


def _distance(shards: "list[ShardState]", imports: list[list[int]]) -> tuple[float, float]:
    """Return the largest difference from the sequential result, and the largest difference allowed."""
    from snapline.examples import forward_push
    from snapline.examples.pagerank_reference import ACCURACY, personalised_pagerank

    ranks = forward_push.gather(shards)
    seeds = forward_push.choose_seeds(imports, ranks.shape[1])
    reference = personalised_pagerank(imports, seeds)
    difference = float(abs(ranks / forward_push.UNIT - reference).max())
    return difference, forward_push.error_bound(shards) + ACCURACY


def make_pagerank(part: FleetPart) -> Workload:
    """Make a workload with the number of rounds that comes closest to the number of messages.

    For 0 messages, it runs as many rounds as change the result.

    Raises:
        UsageError: NumPy is missing, or there are too few or too many agents.
    """
    check_agents(part, most=SHARDS_MAX)
    try:
        from snapline.examples import forward_push, pagerank
    except ImportError as error:
        raise UsageError("pattern pagerank needs NumPy: install snapline[numpy]") from error
    shards, messages = part.agents, part.pattern.messages
    imports = graph_of(shards, messages)
    neighbours = min(len(imports[0]), shards - 1)
    rounds = min(forward_push.ROUNDS_MAX, max(1, round(messages / (shards * neighbours)) if messages else SHARDS_MAX))
    problem = forward_push.Problem(
        imports=imports,
        seeds=forward_push.choose_seeds(imports, SEEDS),
        shards=shards,
        batch=SEEDS,
        rounds=rounds,
        part=SEEDS,
        seconds=messages / part.pattern.rate_per_s if part.pattern.rate_per_s else 0.0,
    )
    agents = {
        pagerank.agent_of(shard): functools.partial(pagerank.make_shard, problem, shard) for shard in range(shards)
    }
    triggers = triggers_of(part.protocol, part.trigger)
    return PagerankWorkload(Fleet("pagerank", agents=agents, protocol=part.protocol, triggers=triggers), imports)


def graph_of(shards: int, messages: int) -> list[list[int]]:
    """Return the import graph: each module imports neighbours on both sides, in as many shards as one round's messages allow."""
    modules = MODULES_PER_SHARD * shards
    reach = max(1, min(shards // 2, messages // (2 * shards) if messages else shards))
    steps = [step for distance in range(1, reach + 1) for step in (distance, -distance)]
    return [[(module + step) % modules for step in steps] for module in range(modules)]


# -- the bank ---------------------------------------------------------------------------------------------------------


class BankExampleWorkload(Workload):
    """Workload that checks that all tokens are in accounts or in transit. The states alone do not show whether it has ended."""

    def check_cut(self, cut: snapline.Cut) -> str | None:
        tokens, expected = bank.tokens_in(cut), TOKENS * len(self.fleet.agents)
        if tokens == expected:
            return None
        return f"{tokens} tokens in accounts and in transit: that is not the {expected} of the beginning"


def make_bank_example(part: FleetPart) -> Workload:
    """Make a bank in which each teller sends at most its share of the messages."""
    check_agents(part, most=TELLERS_MAX)
    messages = part.pattern.messages
    transfers = max(1, round(messages / part.agents)) if messages else -1
    example = bank.fleet(
        agents=str(part.agents), tokens=str(TOKENS), transfers=str(transfers), lines=str(LINES), period="0"
    )
    triggers = triggers_of(part.protocol, part.trigger)
    return BankExampleWorkload(Fleet("bank", agents=example.agents, protocol=part.protocol, triggers=triggers))
