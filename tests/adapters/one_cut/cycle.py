"""The cycle in which eleven agents of four kinds pass tokens on, by the ids that AutoGen has for them. Standard library only: AutoGen's environment has nothing of ours."""

CYCLE = (
    "native/1",
    "graph/1",
    "purse/1",
    "bank/a",
    "bank/b",
    "native/2",
    "graph/2",
    "purse/2",
    "native/3",
    "purse/3",
    "native/4",
)
"""`native`: agents of ours. `graph`: LangGraph's. `purse`: AutoGen's. `bank`: gRPC services, the first of which hands tokens to the second by calls."""


def after(agent: str) -> str:
    """To whom this one passes tokens on."""
    return CYCLE[(CYCLE.index(agent) + 1) % len(CYCLE)]
