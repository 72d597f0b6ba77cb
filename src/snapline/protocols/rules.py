"""All protocols in which agents take checkpoints on their own, by their name in a fleet's configuration.

FINE and Lazy-FINE are omitted on purpose: both admit useless checkpoints (I. C. Garcia, G. M. D. Vieira and
L. E. Buzato, arXiv 1702.06167).
"""

from snapline.errors import UsageError
from snapline.protocols.dependency_vector import BhmrRule, CasRule, CbrRule, FdasRule, FdiRule, NrasRule
from snapline.protocols.index_based import BcsRule, HmnrRule
from snapline.protocols.rule import CheckpointRule, UncoordinatedRule

RULES: dict[str, type[CheckpointRule]] = {
    rule.name: rule
    for rule in (UncoordinatedRule, BcsRule, HmnrRule, FdasRule, FdiRule, BhmrRule, NrasRule, CbrRule, CasRule)
}
"""Rule classes by protocol name. Never changed while the program runs."""


def make_rule(name: str, agent: int, agents: int = 1) -> CheckpointRule:
    """Create the rule of the agent with this ordinal, after its initial checkpoint.

    Args:
        name: a key of `RULES`.
        agent: the agent's ordinal, from 0.
        agents: number of known agents; more may join.

    Raises:
        UsageError: no such protocol, or an impossible ordinal.
    """
    return _rule_type(name)(agent, agents)


def restore_rule(name: str, agent: int, image: bytes) -> CheckpointRule:
    """Return the rule in the state that `image` holds.

    Raises:
        UsageError: no such protocol, or an impossible ordinal.
        DamagedDataError: the image is not one of this protocol.
    """
    return _rule_type(name).restore(agent, image)


def _rule_type(name: str) -> type[CheckpointRule]:
    rule = RULES.get(name)
    if rule is None:
        raise UsageError(f"there is no protocol {name!r} of this kind; choose one of {', '.join(RULES)}")
    return rule
