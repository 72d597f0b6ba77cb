"""Compares what hosts run on with what the hosts of a snapshot, or the previous process of a host, ran on.

A **report** describes what one host runs on, as a map from names to values:

| Name             | Value                                                                  | Kind          |
|------------------|------------------------------------------------------------------------|---------------|
| `numpy`          | version of a distribution, or of `python`; "missing" if it is missing  | `version`     |
| `source:MODULE`  | digest of a module that defines agents or messages                     | `source`      |
| `variable:NAME`  | keyed digest of an environment variable, as `key id:digest`            | `variable`    |
| `describes:NAME` | text from `Fleet(describes=…)`                                         | `description` |
| `policy:KIND`    | what happens after a change of this kind, if it is not the default     |               |

Only names that both sides have reported are compared, so a newly declared dependency is no change. A change is a value in use now that was
not in use before. Hosts may differ from each other, so each name has a set of values.

Policies are those of the newer side. A person's request, such as a restore, is refused if the policy is "refuse". Automatic recovery never
compares: a fleet that stops because of a patch release would be worse.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

Policy = Literal["warn", "refuse", "ignore"]
"""What happens after a change: it is reported, the request is refused, or nothing."""

POLICIES: tuple[Policy, ...] = get_args(Policy)
WARN, REFUSE, IGNORE = POLICIES

VERSION, SOURCE, VARIABLE, DESCRIPTION = KINDS = ("version", "source", "variable", "description")

Report = Mapping[str, str]

MISSING = "missing"
"""Version of a distribution that is not installed."""

_PREFIXES = {"source": SOURCE, "variable": VARIABLE, "describes": DESCRIPTION}

ENTRIES_MAX, TEXT_CHARACTERS_MAX = 200, 100
"""Largest number of entries of a report, and largest length of a declared name or value in characters."""

REPORT_BYTES_MAX = 24 * 1024
"""Largest size of a report's names and values in bytes. So a report fits into one entry of the coordinator's log."""

CHANGES_NAMED_MAX = 8
"""Largest number of changes that one sentence names."""


class DependencyChange(msgspec.Struct, frozen=True, gc=False):
    """A dependency that has changed.

    Attributes:
        name: name as in a report, such as `numpy` or `source:my_agents`.
        before, now: values in use before and now, sorted.
        is_refused: whether the fleet's policy refuses the change.
    """

    name: str
    before: tuple[str, ...]
    now: tuple[str, ...]
    is_refused: bool = False

    def describe(self) -> str:
        """Return the change as part of a sentence. Digests are not shown."""
        kind, name = kind_of(self.name), self.name.partition(":")[2]
        if kind == SOURCE:
            return f"another source of {name}"
        if kind == VARIABLE:
            return f"another value of variable {name}"
        return f"{name or self.name} {' and '.join(self.now)} instead of {' and '.join(self.before)}"


def kind_of(name: str) -> str:
    """Return the kind of a report's entry, or "policy" for a policy."""
    prefix, colon, _ = name.partition(":")
    return _PREFIXES.get(prefix, "policy") if colon else VERSION


def bounded_report(report: Report) -> dict[str, str]:
    """Return the first entries of a report that are within the limits."""
    kept, size_bytes = dict[str, str](), 0
    for name, value in list(report.items())[:ENTRIES_MAX]:
        size_bytes += len(name.encode()) + len(value.encode())
        if size_bytes > REPORT_BYTES_MAX:
            break
        kept[name] = value
    return kept


def values_of(reports: Iterable[Report]) -> dict[str, tuple[str, ...]]:
    """Return for each name the values that these reports contain, sorted."""
    found: dict[str, dict[str, None]] = {}
    for report in reports:
        for name, value in report.items():
            found.setdefault(name, {})[value] = None
    return {name: tuple(sorted(values)) for name, values in found.items()}


def merged(reports: Mapping[str, Report]) -> dict[str, str]:
    """Return the hosts' reports as one map, as a snapshot contains it. Entries that are equal on all hosts are contained once. Others have
    names like `host:HOST:NAME`. Policies are left out.

    The argument maps each host to its report.
    """
    different = list({id(report): report for report in reports.values()}.values())
    first = different[0] if different else {}
    common = {name: value for name, value in first.items() if all(report.get(name) == value for report in different)}
    own = {
        f"host:{host}:{name}": value
        for host, report in sorted(reports.items())
        for name, value in report.items()
        if name not in common and kind_of(name) != "policy"
    }
    return {name: common[name] for name in sorted(common) if kind_of(name) != "policy"} | own


def reports_in(dependencies: Report) -> list[dict[str, str]]:
    """Return reports with all values that a snapshot contains: the common entries first, then those of each host that differs."""
    found: dict[str, dict[str, str]] = {"": {}}
    for key, value in dependencies.items():
        prefix, _, rest = key.partition(":")
        host, _, name = rest.partition(":") if prefix == "host" else ("", "", key)
        found.setdefault(host, {})[name] = value
    return list(found.values())


def changes_between(before: Iterable[Report], now: Iterable[Report]) -> tuple[DependencyChange, ...]:
    """Return the changes between two sets of reports, in the order of their names. Ignored changes are left out."""
    old, new = values_of(before), values_of(now)
    changes = []
    for name, values in sorted(new.items()):
        policy = _policy_of(new, name)
        if name not in old or policy == IGNORE or kind_of(name) == "policy":
            continue
        known = [value for value in values if _is_comparable(name, value, old[name])]
        if any(value not in old[name] for value in known):
            changes.append(DependencyChange(name, old[name], values, policy == REFUSE))
    return tuple(changes)


def _policy_of(reported: Mapping[str, tuple[str, ...]], name: str) -> str:
    """Return the policy for this name. If the hosts' policies differ, the strictest one counts."""
    policies = reported.get(f"policy:{kind_of(name)}", (WARN,))
    return next((policy for policy in (REFUSE, WARN) if policy in policies), IGNORE)


def _is_comparable(name: str, value: str, others: tuple[str, ...]) -> bool:
    """Return whether the digest of a variable was made with the same key as one of the others."""
    if kind_of(name) != VARIABLE:
        return True
    return any(other.partition(":")[0] == value.partition(":")[0] for other in others)


def describe_report(dependencies: Report) -> str:
    """Return the versions and descriptions that a snapshot contains, as a list in one line. Digests are left out."""
    shown = [(name, values) for name, values in values_of(reports_in(dependencies)).items() if is_text(name)]
    return ", ".join([f"{name.partition(':')[2] or name} {' and '.join(values)}" for name, values in shown])


def is_text(name: str) -> bool:
    """Return whether the entry's value is text for people, and not a digest."""
    return kind_of(name) in (VERSION, DESCRIPTION)


def describe_changes(changes: Iterable[DependencyChange]) -> str:
    """Return the changes as part of a sentence."""
    texts = [change.describe() for change in changes]
    more = f" and {len(texts) - CHANGES_NAMED_MAX} more" if len(texts) > CHANGES_NAMED_MAX else ""
    return ", ".join(texts[:CHANGES_NAMED_MAX]) + more


def refused(changes: Iterable[DependencyChange]) -> tuple[DependencyChange, ...]:
    """Return the changes that the fleet's policy refuses."""
    return tuple([change for change in changes if change.is_refused])
