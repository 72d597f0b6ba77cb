"""Concerns: conditions that need attention, such as a wait or a missing resource, with their age and remedy.

The leader derives them (`coordinator/leader/leader_concerns.py`). Everything that shows, counts or alerts on concerns uses `KINDS`.
`tests/deploy/test_alerts.py` fails if a kind is missing in docs/cli.md, in the alerts or in the runbook.
"""

import msgspec

KINDS: dict[str, str] = {
    "busy": "`snapline host logs {host}` names what blocks it; give such a handler `thread=True`, or end the process: `snapline host kill {host}`",
    "certificate": "renew it: `snapline auth renew DIR` does it for those that `snapline auth init` has made",
    "cut": "see to the network between their addresses (`snapline host list`): firewalls, `--advertise`, certificates",
    "drained": "`snapline host resume {host}` lets agents come back",
    "effects": "wait for the calls to end; `snapline effect list --open` names them",
    "epochs": "`snapline snapshot history` says why each was aborted",
    "hosts": "start hosts as before: `snapline host run`, or `snapline up` on the fleet's folder; `snapline host logs ID` says why one has ended",
    "in_doubt": "look at the other side whether it was done, then `snapline effect list --agent {agent}` and `snapline effect resolve {agent} KEY`",
    "killer": "fix the handler; `snapline agent dead-letters list` shows what was set aside",
    "log": "repair the store, as `snapline doctor --store STORE` finds it; the host tries again by itself",
    "memory": "repair the store, as `snapline doctor --store STORE` finds it; the agents go on by themselves when it takes what waits",
    "plan": "`snapline host logs {host}` says what it does; if it does not come round: `snapline host kill {host}`",
    "replica": "start it again with its old `--data-dir`, or renew its certificate; `snapline coordinator status --coordinator HOST:PORT` asks one replica",
    "restore": "`snapline host list` shows whether its hosts are there, `snapline doctor --store STORE` whether its store is",
    "rollback": "fix the cause, then `snapline recovery restore ID`: the agent may ask again",
    "rpo": "`snapline snapshot history` says how long epochs take, and why they are aborted; or let triggers come more often",
    "rto": "`snapline recovery history` says what recoveries wait for",
    "spare": "see to what held the fleet up; it is used again after a minute or so, a new process of it at once",
    "stop": "`snapline host list` and `snapline effect list --open` show whom the fleet waits for",
    "store": "bring the store back, as `snapline doctor --store STORE` finds it; the recovery goes on by itself",
    "turn": "`snapline agent describe {agent}` shows its journal; run the code that began the turn, or `snapline recovery restore ID` to before it",
}
"""Kind → remedy, a sentence without its full stop. `{host}` and `{agent}` are the first host and agent concerned."""

URGENT = frozenset(
    ("certificate", "epochs", "hosts", "in_doubt", "killer", "log", "memory", "rollback", "rpo", "store", "turn")
)
"""Kinds that need an operator now: those whose alert is critical, and effects in doubt, which may wait for an operator alone."""


class Concern(msgspec.Struct, frozen=True):
    """A condition that the fleet waits for, or a resource that it lacks.

    Attributes:
        kind: one of `KINDS`.
        hosts: hosts concerned.
        since_ns: duration so far, as seen by this leader.
        text: description, a sentence without its full stop.
        agents: agents concerned.
        remedy: remedy, also a sentence without its full stop.
    """

    kind: str
    hosts: tuple[str, ...]
    since_ns: int
    text: str
    agents: tuple[str, ...] = ()
    remedy: str = ""


def remedy_of(concern: Concern) -> str:
    """Return the remedy: the concern's own, or that of its kind."""
    host, agent = next(iter(concern.hosts), "ID"), next(iter(concern.agents), "AGENT")
    return concern.remedy or KINDS[concern.kind].format(host=host, agent=agent)
