"""Registry of all protocols in which agents take checkpoints independently. The key is the protocol's name in a fleet's configuration.

The protocols FINE and Lazy-FINE are deliberately omitted, because both permit useless checkpoints (I. C. Garcia, G. M. D. Vieira and L. E.
Buzato, arXiv 1702.06167).
"""

from snapline.errors import UsageError
from snapline.protocols.dependency_vector import BhmrRule, CasRule, CbrRule, FdasRule, FdiRule, NrasRule
from snapline.protocols.index_based import BcsRule, HmnrRule
from snapline.protocols.rule import CheckpointRule, UncoordinatedRule

RULES: dict[str, type[CheckpointRule]] = {
    rule.name: rule
    for rule in (UncoordinatedRule, BcsRule, HmnrRule, FdasRule, FdiRule, BhmrRule, NrasRule, CbrRule, CasRule)
}
"""Protocol name → rule class. The dictionary never changes while the program runs."""


def make_rule(name: str, agent: int, agents: int = 1) -> CheckpointRule:
    """Create the protocol state of the agent with this ordinal, as it is immediately after the agent's initial checkpoint.

    Args:
        agent: the agent's ordinal. Ordinals start at 0.
        agents: number of agents known at the start. More agents may join.

    Raises:
        UsageError: the protocol does not exist, or the ordinal is out of range.
    """
    return _rule_type(name)(agent, agents)


def restore_rule(name: str, agent: int, image: bytes) -> CheckpointRule:
    """Return the protocol state that the image encodes, for the agent with this ordinal.

    Raises:
        UsageError: the protocol does not exist, or the ordinal is out of range.
        DamagedDataError: the image is not valid for this protocol.
    """
    return _rule_type(name).restore(agent, image)


def _rule_type(name: str) -> type[CheckpointRule]:
    rule = RULES.get(name)
    if rule is None:
        raise UsageError(f"there is no protocol {name!r} of this kind; choose one of {', '.join(RULES)}")
    return rule
