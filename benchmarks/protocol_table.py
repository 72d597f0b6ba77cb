"""Which protocol for which pattern: the table "Which protocol?" of docs/protocols.md, made over seeds.

    .venv/bin/python benchmarks/protocol_table.py [--write] [--quick]

A *script* is what a fleet does by itself: turns, which each may consume one message and then send some, and the basic
checkpoints in front of some of them. Every protocol gets the same scripts. The rules of the product are driven through
them: piggybacks are theirs, as deltas, and forced checkpoints fall where a live fleet has them, those of `cas` after all
sends of a turn. Channels are FIFO. The analysis of the product judges the execution. At its end one agent fails: each in
turn, so that no luck is in the choice.

In all patterns but the domino one turn in `TURNS_PER_BASIC` begins with a basic checkpoint, by chance, as under a policy
that counts turns, with much jitter. A live policy counts the forced ones too, and then takes fewer basic ones; here they
stand still, so that all protocols are compared over the same ones. The same seeds give the same table on every machine.

`--write` replaces the table in docs/protocols.md; without it the table is printed. `--quick` takes few seeds: its figures
are rough, so it cannot write.
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from snapline.protocols.rules import RULES, make_rule
from snapline.recovery.execution import Execution, rounds
from snapline.recovery.trace import CheckpointTaken, Event, Kind, MessageReceived, MessageSent, Trace
from snapline.recovery.trace_analysis import components_of, edges_of, useless

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocols.md"
BEGIN = "<!-- protocol table: made by benchmarks/protocol_table.py --write -->"
END = "<!-- end of the protocol table -->"

SEEDS, SEEDS_QUICK = 20, 2
TURNS_EACH = 150
"""Average number of turns of each agent."""

TURNS_PER_BASIC = 20
EXCHANGES_EACH = 20
"""Domino adversary: average number of exchanges of each agent."""

RECEIVES = 0.6
"""Random pattern: share of turns in which an agent with mail receives. Below one half, mailboxes grow without limit."""

SERVER_SHARE = 5
"""Client and server: one of this number of agents is a server."""

UNDER_WAY = 2
"""Turns pattern: messages in transit for each agent."""


class Turn(NamedTuple):
    """One turn of a script.

    Attributes:
        is_basic: a basic checkpoint comes right before the turn.
        received: the message consumed; None: none, a timer woke the agent, or the outside.
        sends: message and receiver.
    """

    agent: int
    is_basic: bool
    received: int | None
    sends: tuple[tuple[int, int], ...]


Script = list[Turn]


class Mail:
    """Builder of a script: the messages in transit, and the random generator."""

    def __init__(self, random: Random, agents: int) -> None:
        self.random = random
        self.agents = range(agents)
        self.script: Script = []
        self._sent = 0
        self._waiting: list[dict[int, deque[int]]] = [{} for _ in self.agents]

    def has_mail(self, agent: int) -> bool:
        return bool(self._waiting[agent])

    def other(self, agent: int) -> int:
        """Any agent but this one."""
        return (agent + self.random.randrange(1, len(self.agents))) % len(self.agents)

    def take(self, agent: int) -> tuple[int, int]:
        """The oldest message of one of the channels with mail, and its sender."""
        channels = self._waiting[agent]
        sender = self.random.choice(list(channels))
        message = channels[sender].popleft()
        if not channels[sender]:
            del channels[sender]
        return sender, message

    def turn(self, agent: int, received: int | None, *to: int, is_basic: bool | None = None) -> None:
        """One turn, which sends to each of `to`; whether a checkpoint comes before is left to chance unless told."""
        if is_basic is None:
            is_basic = self.random.random() * TURNS_PER_BASIC < 1
        sends = []
        for receiver in to:
            self._waiting[receiver].setdefault(agent, deque()).append(self._sent)
            sends.append((self._sent, receiver))
            self._sent += 1
        self.script.append(Turn(agent, is_basic, received, tuple(sends)))


# -- patterns: one script each ----------------------------------------------------------------------------------------


def point_to_point(mail: Mail) -> None:
    """Any agent sends to any other, and receives, in turns of their own."""
    for _ in range(TURNS_EACH * len(mail.agents)):
        agent = mail.random.choice(mail.agents)
        if mail.has_mail(agent) and mail.random.random() < RECEIVES:
            mail.turn(agent, mail.take(agent)[1])
        else:
            mail.turn(agent, None, mail.other(agent))


def ring(mail: Mail) -> None:
    """Each turn receives from the left and sends to the right; one message an agent is under way."""
    count = len(mail.agents)
    for agent in mail.agents:
        mail.turn(agent, None, (agent + 1) % count)
    for agent in _with_mail(mail):
        mail.turn(agent, mail.take(agent)[1], (agent + 1) % count)


def client_server(mail: Mail) -> None:
    """Clients send a request to any server and wait for the reply, which it sends in the turn of the request."""
    servers = range(max(1, len(mail.agents) // SERVER_SHARE))
    is_asking = [False for _ in mail.agents]
    for _ in range(TURNS_EACH * len(mail.agents)):
        able = [one for one in mail.agents if mail.has_mail(one) or (one not in servers and not is_asking[one])]
        agent = mail.random.choice(able)
        if not mail.has_mail(agent):
            mail.turn(agent, None, mail.random.choice(servers))
            is_asking[agent] = True
            continue
        sender, message = mail.take(agent)
        if agent in servers:
            mail.turn(agent, message, sender)
        else:
            mail.turn(agent, message)
            is_asking[agent] = False


def turns(mail: Mail) -> None:
    """Each turn receives, and sends to any other agent: what a fleet that computes PageRank does."""
    for agent in mail.agents:
        mail.turn(agent, None, *(mail.other(agent) for _ in range(UNDER_WAY)))
    for agent in _with_mail(mail):
        mail.turn(agent, mail.take(agent)[1], mail.other(agent))


def domino(mail: Mail) -> None:
    """Any two exchange two messages, with a basic checkpoint before each send: with two agents, a staircase."""
    for _ in range(EXCHANGES_EACH * len(mail.agents) // 2):
        first, second = sorted(mail.random.sample(mail.agents, 2))
        mail.turn(first, None, second, is_basic=True)
        mail.turn(second, mail.take(second)[1], is_basic=False)
        mail.turn(second, None, first, is_basic=True)
        mail.turn(first, mail.take(first)[1], is_basic=False)


def _with_mail(mail: Mail) -> Iterator[int]:
    """So many times, any agent with mail."""
    for _ in range(TURNS_EACH * len(mail.agents)):
        yield mail.random.choice([agent for agent in mail.agents if mail.has_mail(agent)])


class Pattern(NamedTuple):
    """A pattern, its title in the table, and the numbers of agents it is measured with."""

    make: Callable[[Mail], None]
    title: str
    sizes: tuple[int, ...] = (3, 10, 30)


PATTERNS = {
    pattern.make.__name__: pattern
    for pattern in (
        Pattern(point_to_point, "Random point to point"),
        Pattern(ring, "Ring"),
        Pattern(client_server, "Client and server"),
        Pattern(turns, "Turns"),
        Pattern(domino, "Domino adversary", (2, 10)),
    )
}


def make_script(pattern: str, agents: int, seed: int) -> Script:
    """The script of this seed; the same whatever else is made."""
    mail = Mail(Random(f"{pattern} {agents} {seed}"), agents)
    PATTERNS[pattern].make(mail)
    return mail.script


# -- a protocol in a pattern ------------------------------------------------------------------------------------------


class Driven:
    """An execution: a script, driven through the rules of one protocol."""

    def __init__(self, protocol: str, agents: int, script: Script) -> None:
        self.names = [str(agent) for agent in range(agents)]
        self.rules = [make_rule(protocol, agent, agents) for agent in range(agents)]
        self.events: list[Event] = []
        self.messages = self.size_bytes = self.forced = self.basic = 0
        self._numbers = [0] * agents
        self._carried: dict[int, tuple[int, bytes]] = {}
        for turn in script:
            self._drive(turn)

    def _drive(self, turn: Turn) -> None:
        agent, rule = turn.agent, self.rules[turn.agent]
        if turn.is_basic:
            rule.checkpoint()
            self._note_checkpoint(agent, "basic")
        if turn.received is not None:
            sender, piggyback = self._carried.pop(turn.received)
            if rule.forces(sender, piggyback):
                rule.checkpoint(piggyback)
                self._note_checkpoint(agent, "forced")
            rule.receive(sender, piggyback)
            self.events.append(MessageReceived(self.names[agent], str(turn.received)))
        for message, to in turn.sends:
            piggyback = rule.send(to)
            self._carried[message] = (agent, piggyback)
            self.messages += 1
            self.size_bytes += len(piggyback)
            self.events.append(MessageSent(self.names[agent], str(message), self.names[to]))
        if turn.sends and rule.checkpoints_after_sends:
            rule.checkpoint()
            self._note_checkpoint(agent, "forced")

    def _note_checkpoint(self, agent: int, kind: Kind) -> None:
        self._numbers[agent] += 1
        self.events.append(CheckpointTaken(self.names[agent], self._numbers[agent], kind))
        if kind == "basic":
            self.basic += 1
        else:
            self.forced += 1


class Failure(NamedTuple):
    """Cost of one failure.

    Attributes:
        moved_share: share of agents that go back to a checkpoint, including the failed one.
        undone_each: sends and receives undone, per agent that moves.
        depth: depth of the domino in rounds; 0 if only the failed agent moves.
    """

    moved_share: float
    undone_each: float
    depth: int


class Figures(NamedTuple):
    """One protocol in one pattern with so many agents, over all seeds."""

    forced_per_basic: float
    useless_share: float
    bytes_per_message: float
    failures: list[Failure]


def measure(protocol: str, agents: int, scripts: Iterable[Script]) -> Figures:
    """Drive a protocol through scripts of so many agents, and judge what comes out."""
    basic = forced = useless_count = messages = size_bytes = 0
    failures: list[Failure] = []
    for script in scripts:
        driven = Driven(protocol, agents, script)
        execution = Execution.of(Trace(driven.names, driven.events))
        basic += driven.basic
        forced += driven.forced
        messages += driven.messages
        size_bytes += driven.size_bytes
        useless_count += sum(map(len, useless(execution, components_of(edges_of(execution)))))
        failures += [fail(execution, agent) for agent in range(agents)]
    return Figures(forced / basic, useless_count / (basic + forced), size_bytes / messages, failures)


def fail(execution: Execution, agent: int) -> Failure:
    """What happens if this agent fails at the end."""
    steps = rounds(execution, [agent])
    line: dict[int, int] = {}
    for step in steps:
        line.update(step.moved)
    undone = sum(execution.events[node] for one, number in line.items() for node in execution.intervals[one][number:])
    return Failure(len(line) / len(execution.agents), undone / len(line), len(steps) - 1)


def measure_all(patterns: Iterable[str], seeds: int) -> dict[tuple[str, int, str], Figures]:
    """By pattern, agents and protocol."""
    figures = {}
    for pattern in patterns:
        for agents in PATTERNS[pattern].sizes:
            scripts = [make_script(pattern, agents, seed) for seed in range(seeds)]
            for protocol in RULES:
                figures[pattern, agents, protocol] = measure(protocol, agents, scripts)
    return figures


# -- the table --------------------------------------------------------------------------------------------------------

Cell = Callable[[Figures], str]

COLUMNS: dict[str, Cell] = {
    "forced : basic": lambda figures: rounded(figures.forced_per_basic),
    "useless": lambda figures: percent(figures.useless_share),
    "bytes a message": lambda figures: rounded(figures.bytes_per_message),
    "agents moved": lambda figures: percent(mean([failure.moved_share for failure in figures.failures])),
    "events undone": lambda figures: rounded(mean([failure.undone_each for failure in figures.failures])),
    "90 % within": lambda figures: rounded(ninetieth([failure.undone_each for failure in figures.failures])),
    "depth": lambda figures: rounded(mean([failure.depth for failure in figures.failures])),
    "depth, 90 % within": lambda figures: str(ninetieth([failure.depth for failure in figures.failures])),
}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Value = TypeVar("Value", int, float)


def ninetieth(values: Sequence[Value]) -> Value:
    """The least of the values that nine tenths of them do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1]


def percent(share: float) -> str:
    """Format as a whole percentage; values near 0 % and 100 % are not rounded to them."""
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{share:.0%}".replace("%", " %")


def rounded(value: float) -> str:
    """Format with two significant digits; only an exact zero is a plain 0."""
    if not value:
        return "0"
    digits = next(digits for digits, top in ((2, 1), (1, 10), (0, float("inf"))) if round(value, digits) < top)
    return f"{value:.{digits}f}"


def table(figures: dict[tuple[str, int, str], Figures]) -> str:
    """Markdown: one table a pattern, one row a protocol; a cell has one value for each number of agents."""
    parts = []
    for name in dict.fromkeys(pattern for pattern, _, _ in figures):
        pattern = PATTERNS[name]
        description = " ".join((pattern.make.__doc__ or "").split())
        sizes = " / ".join(map(str, pattern.sizes))
        rows = [row(name, protocol, figures) for protocol in RULES]
        heads = ["protocol", *COLUMNS]
        lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(COLUMNS), *rows]
        parts.append(f"**{pattern.title}**, {sizes} agents. {description}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def row(pattern: str, protocol: str, figures: dict[tuple[str, int, str], Figures]) -> str:
    cells = [
        " / ".join(cell(figures[pattern, agents, protocol]) for agents in PATTERNS[pattern].sizes)
        for cell in COLUMNS.values()
    ]
    return f"| {' | '.join([protocol, *cells])} |"


def replaced(page: str, new: str) -> str:
    """The page with another table between the two markers.

    Raises:
        SystemExit: the page does not hold each marker once, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in before + after:
        raise SystemExit(f"{PAGE.name} must hold each of these lines once, in this order: {BEGIN} {END}")
    return f"{before}{BEGIN}\n\n{new}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the table in docs/protocols.md")
    parser.add_argument("--quick", action="store_true", help=f"{SEEDS_QUICK} seeds instead of {SEEDS}")
    options = parser.parse_args()
    if options.write and options.quick:
        parser.error("--quick is too rough for the page: leave out one of the two")
    new_table = table(measure_all(PATTERNS, SEEDS_QUICK if options.quick else SEEDS))
    if options.write:
        PAGE.write_text(replaced(PAGE.read_text("utf-8"), new_table), "utf-8")
    else:
        print(new_table, end="")


if __name__ == "__main__":
    main()
