"""Uncoordinated and communication-induced rules: where they force, that nothing is useless (G6), and what they cost.

The vectors and the table are those of the project's protocol page. Executions and oracles: `executions.py`. Scripts with
an odd seed are FIFO and driven with deltas, the others are not and driven with absolute piggybacks.
"""

from collections.abc import Callable
from random import Random

import pytest
from tests.protocols.executions import (
    BASIC,
    RECEIVE,
    REFERENCES,
    SEND,
    Execution,
    Full,
    Graph,
    Reference,
    Script,
    agents_of,
    drive,
    parse,
    random_script,
    small_scripts,
    useless_by_all_cuts,
)

from snapline.errors import DamagedDataError, ProtocolError, UsageError
from snapline.protocols.piggyback import ORDINALS_MAX, encode
from snapline.protocols.rule import CheckpointRule
from snapline.protocols.rules import RULES, make_rule, restore_rule

EXECUTIONS, EXECUTIONS_SLOW = 300, 12_000

INDUCED = [name for name in RULES if name != "uncoordinated"]
RDT = ["fdas", "fdi", "bhmr", "nras", "cbr", "cas"]
WITH_VECTORS = ["hmnr", "fdas", "fdi", "bhmr"]


def run(name: str, script: Script, *, full: bool = False) -> Execution:
    rules = [make_rule(name, agent) for agent in range(agents_of(script))]
    return drive(script, [Full(rule) for rule in rules] if full else rules)


def run_reference(name: str, script: Script) -> Execution:
    agents = agents_of(script)
    return drive(script, [REFERENCES[name](agent, agents) for agent in range(agents)])


def check(name: str, seeds: range) -> None:
    """Product and reference force at the same places, and the protocol keeps its promise."""
    for seed, script in zip(seeds, small_scripts(seeds), strict=True):
        execution = run(name, script, full=seed % 2 == 0)
        assert execution.forced == run_reference(name, script).forced, f"seed {seed}: not where the paper forces"
        graph = Graph(execution.histories)
        assert not graph.useless(), f"seed {seed}: useless {graph.useless()}"
        assert name not in RDT or not graph.untracked(), f"seed {seed}: untracked {graph.untracked()}"


# -- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INDUCED)
def test_no_checkpoint_is_useless_and_rdt_protocols_track_every_path(name: str) -> None:
    check(name, range(EXECUTIONS))


@pytest.mark.slow
@pytest.mark.parametrize("name", INDUCED)
def test_no_checkpoint_is_useless_and_rdt_protocols_track_every_path_in_many_executions(name: str) -> None:
    check(name, range(1_000_000, 1_000_000 + EXECUTIONS_SLOW))


def test_without_a_protocol_there_are_useless_checkpoints() -> None:
    """Or the tests above could not fail."""
    useless = sum(bool(Graph(run("uncoordinated", script).histories).useless()) for script in small_scripts(range(200)))
    assert useless > 20


@pytest.mark.parametrize("name", ["bcs", "hmnr"])
def test_scalar_clocks_leave_paths_untracked(name: str) -> None:
    scripts = small_scripts(range(200), is_fifo=True)
    assert sum(bool(Graph(run(name, script).histories).untracked()) for script in scripts) > 20


def test_the_graph_finds_what_all_cuts_find() -> None:
    found = 0
    for seed in range(400):
        script = random_script(Random(seed), agents=3, steps=20, basic=0.3, is_fifo=False)
        histories = drive(script, [Reference(agent, 3) for agent in range(3)]).histories
        useless = useless_by_all_cuts(histories)
        assert Graph(histories).useless() == useless, f"seed {seed}"
        found += len(useless)
    assert found > 50


# -- where, and how many ----------------------------------------------------------------------------------------------

VECTORS = {
    "H1": ("a>b c! b>c c>d e>d", [], [3]),
    "H2": ("b>c c>a a>b", [], []),
    "H3": ("b>c c! c>a a>b*", [3], [2, 3]),
    "H4": ("b>c a>b", [], []),
    "H5": ("b>c a! a>b*", [2], [2]),
}
"""By name: the script, and which of its words force under HMNR and under BCS, counted from 0."""


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("full", [False, True])
def test_vectors_force_exactly_there(vector: str, full: bool) -> None:
    text, hmnr, bcs = VECTORS[vector]
    script = parse(text)
    words = [step.message for step in script]
    assert [words[position] for position in run("hmnr", script, full=full).forced] == hmnr
    assert [words[position] for position in run("bcs", script, full=full).forced] == bcs


ORDER = ["hmnr", "bcs", "bhmr", "fdas", "fdi", "nras", "cbr", "cas"]

TABLE = {
    (3, 0.05): (52, 0.74, 0.88, 2.2, 3.2, 4.2, 4.7, 9.2, 11),
    (3, 0.2): (18, 0.16, 0.30, 0.40, 0.56, 0.82, 0.75, 1.8, 2.1),
    (6, 0.05): (64, 1.1, 1.3, 3.4, 3.7, 5.9, 4.3, 8.9, 9.8),
    (6, 0.2): (32, 0.27, 0.41, 0.61, 0.68, 1.1, 0.77, 1.9, 2.1),
    (10, 0.05): (65, 1.4, 1.6, 3.7, 3.8, 6.6, 4.2, 8.7, 9.4),
    (10, 0.2): (47, 0.28, 0.44, 0.67, 0.70, 1.3, 0.76, 1.9, 2.0),
}
"""By agents and probability of a basic checkpoint: useless checkpoints without a protocol, per cent of all with the
initial ones; then per protocol of ORDER the forced per basic checkpoint."""


def totals(scripts: list[Script]) -> dict[str, int]:
    """Forced checkpoints over all scripts."""
    return {name: sum(len(run(name, script, full=True).forced) for script in scripts) for name in ORDER}


def check_order(forced: dict[str, int], scripts: list[Script]) -> None:
    for chain in (["hmnr", "bcs"], ["bhmr", "fdas", "fdi", "cbr"], ["fdas", "nras", "cbr"]):
        counts = [forced[name] for name in chain]
        assert counts == sorted(set(counts)), dict(zip(chain, counts, strict=True))
    assert forced["cbr"] == sum(step.kind == RECEIVE for script in scripts for step in script)
    assert forced["cas"] == sum(step.kind == SEND for script in scripts for step in script)


def check_row(agents: int, basic: float, *, seeds: range) -> None:
    """The row of the table, as a magnitude: each figure within a fifth (and 0.04)."""
    scripts = [
        random_script(Random(seed), agents=agents, steps=60 * agents, basic=basic, is_fifo=False) for seed in seeds
    ]
    useless_percent, *ratios = TABLE[agents, basic]
    taken = sum(step.kind == BASIC for script in scripts for step in script)
    forced = totals(scripts)
    measured = [forced[name] / taken for name in ORDER]
    assert measured == [pytest.approx(ratio, rel=0.2, abs=0.04) for ratio in ratios]
    check_order(forced, scripts)
    useless = sum(len(Graph(run("uncoordinated", script).histories).useless()) for script in scripts)
    assert 100 * useless / (taken + agents * len(scripts)) == pytest.approx(useless_percent, abs=10)


def test_forced_checkpoints_are_as_many_as_the_table_says() -> None:
    check_row(3, 0.05, seeds=range(20))
    check_row(6, 0.2, seeds=range(10))


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "basic"), TABLE)
def test_forced_checkpoints_are_as_many_as_the_table_says_in_every_row(agents: int, basic: float) -> None:
    check_row(agents, basic, seeds=range(80))


def test_the_order_of_the_protocols_holds_for_executions_of_turns_too() -> None:
    """Which cost the RDT protocols more."""
    shapes = [
        [random_script(Random(seed), agents=4, steps=240, basic=0.1, in_turns=in_turns) for seed in range(15)]
        for in_turns in (False, True)
    ]
    apart, in_turns = (totals(scripts) for scripts in shapes)
    check_order(apart, shapes[0])
    check_order(in_turns, shapes[1])
    for name in RDT:
        assert 1 < in_turns[name] / apart[name] < 3, name


# -- state and bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_an_image_carries_the_whole_state(name: str) -> None:
    """Rules frozen and restored at every step decide as those that were not, and freeze to the same bytes."""
    for seed, script in enumerate(small_scripts(range(50), is_fifo=True)):
        rules = [make_rule(name, agent) for agent in range(agents_of(script))]
        random = Random(seed)

        def renew(position: int, rules: list[CheckpointRule] = rules, random: Random = random) -> None:
            agent = random.randrange(len(rules))
            image = rules[agent].freeze()
            rules[agent] = restore_rule(name, agent, image)
            assert rules[agent].freeze() == image

        assert drive(script, rules, renew).forced == run_reference(name, script).forced, f"seed {seed}"


@pytest.mark.parametrize("name", RULES)
def test_asking_changes_nothing(name: str) -> None:
    for script in small_scripts(range(1, 60, 2)):
        rules = [Unasked(make_rule(name, agent)) for agent in range(agents_of(script))]
        drive(script, rules)


class Unasked(Full):
    """Checks that `forces` leaves the state alone."""

    def __init__(self, rule: CheckpointRule) -> None:
        super().__init__(rule)
        self.send, self.rule = rule.send, rule
        self.forces = self._forces

    def _forces(self, sender: int, piggyback: bytes) -> bool:
        image = self.rule.freeze()
        decision = self.rule.forces(sender, piggyback)
        assert decision == self.rule.forces(sender, piggyback)
        assert self.rule.freeze() == image
        return decision


@pytest.mark.parametrize("name", RULES)
def test_ordinals_may_be_any_and_joiners_need_no_word(name: str) -> None:
    """An agent never heard of reads as one idle from the start, so numbering and fleet size decide nothing."""
    ordinals = (130, 7, 900, 20, 1) if name == "bhmr" else (130, 7, ORDINALS_MAX - 1, 20_000, 1)  # rows of bits: slow
    for script in small_scripts(range(1, 200, 2)):
        agents = agents_of(script)
        rules = [Renumbered(make_rule(name, ordinals[agent], agent + 1), ordinals) for agent in range(agents)]
        assert drive(script, rules).forced == run_reference(name, script).forced


class Renumbered(Full):
    """Agent k of the script has the ordinal `ordinals[k]`."""

    def __init__(self, rule: CheckpointRule, ordinals: tuple[int, ...]) -> None:
        super().__init__(rule)
        self.send = lambda to: rule.send(ordinals[to])
        self.forces = lambda sender, piggyback: rule.forces(ordinals[sender], piggyback)
        self.receive = lambda sender, piggyback: rule.receive(ordinals[sender], piggyback)


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_deltas_are_shorter_where_checkpoints_are_rare(name: str) -> None:
    """RDT protocols force so often in this traffic that news never ends: they gain less."""
    script = random_script(Random(1), agents=6, steps=4_000, basic=0.002)
    sizes = []
    for full in (False, True):
        rules = [Counting(make_rule(name, agent), full) for agent in range(6)]
        drive(script, rules)
        sizes.append(sum(rule.size for rule in rules))
    assert sizes[0] < (0.4 if name == "hmnr" else 0.75) * sizes[1]


class Counting(Full):
    """Counts the bytes of its piggybacks."""

    def __init__(self, rule: CheckpointRule, full: bool) -> None:
        super().__init__(rule)
        self.size = 0
        self._send = rule.send_full if full else rule.send
        self.send = self._count

    def _count(self, to: int) -> bytes:
        piggyback = self._send(to)
        self.size += len(piggyback)
        return piggyback


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_a_second_message_without_news_carries_nothing(name: str) -> None:
    rule = make_rule(name, 3)
    assert rule.send(1) != b""
    assert rule.send(1) == b""
    assert rule.send(2) != b""
    rule.checkpoint()
    assert rule.send(1) != b""


PIGGYBACKS = {
    "uncoordinated": "",
    "bcs": "ac02",  # index 300
    "hmnr": "ad02" + "00" + "01" + "b709",  # clock 301; pairs: agent 1, count 301, not taken, not greater
    "fdas": "00" + "01" + "ad02",
    "fdi": "00" + "01" + "ad02",
    "bhmr": "01" + "db04" + "02",  # agent 1, entry 301, simple; row 1 has the bit of agent 1
    "nras": "",
    "cbr": "",
    "cas": "",
}
"""Of agent 1 to agent 0 after 300 checkpoints. Changing these means that versions cannot run in one fleet."""


@pytest.mark.parametrize("name", RULES)
def test_the_bytes_are_these(name: str) -> None:
    rule = make_rule(name, 1)
    for _ in range(300):
        rule.checkpoint()
    assert rule.send(0).hex() == PIGGYBACKS[name]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_damaged_piggybacks_are_refused_or_harmless(name: str) -> None:
    """No other error, and the rule can go on in either case."""
    refused = 0
    for seed in range(1_500):
        random = Random(seed)
        rule = make_rule(name, 2)
        rule.send(0)
        data = bytes(random.choice((0, 1, 2, 3, 5, 8, 130, 255)) for _ in range(random.randrange(1, 12)))
        try:
            if rule.forces(1, data):
                rule.checkpoint(data)
            rule.receive(1, data)
        except ProtocolError:
            refused += 1
        assert restore_rule(name, 2, rule.freeze()).send(5) == rule.send(5)
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("uncoordinated", b"\x01"),
        ("nras", b"\x01"),
        ("cbr", b"\x01"),
        ("cas", b"\x01"),
        ("bcs", b""),
        ("bcs", b"\x01\x02"),
        *((name, b"\x05\x80") for name in INDUCED),  # ends within a number
        ("fdas", b"\x03\x01\x01"),  # an unknown form
        ("fdas", b"\x02\x01"),  # a value that nobody has
        ("fdas", b"\x02\x01\x06\x02\x04"),  # an agent with two values
        ("fdi", b"\x02" + encode((1, 1 << ORDINALS_MAX))),
        ("hmnr", b"\x02\x02\x08\x01"),  # agent 0 has taken one checkpoint, not two
        ("hmnr", b"\x02\x02\x03\x02"),  # agent 1 without a checkpoint
        ("fdas", b"\x00\x01"),  # a pair without its value
        ("fdi", b"\x00" + encode((ORDINALS_MAX, 1))),
        ("fdi", b"\x00\x00\x02"),  # agent 0 has taken one checkpoint, not two
        ("hmnr", b"\x02\x00\x00\x08"),  # likewise
        ("bhmr", b"\x00\x05\x01"),  # likewise
        ("hmnr", b"\x02\x00\x01\x03"),  # agent 1 without a checkpoint
        ("bhmr", b"\x01\x01\x02"),  # likewise
        ("bhmr", b"\x01\x03"),
        ("bhmr", encode((1, 3, 1 << ORDINALS_MAX))),
    ],
)
def test_impossible_piggybacks_are_refused(name: str, data: bytes) -> None:
    rule = make_rule(name, 0)
    image = rule.freeze()
    with pytest.raises(ProtocolError):
        rule.receive(1, data)
    assert rule.freeze() == image


@pytest.mark.parametrize("name", RULES)
def test_damaged_images_are_refused(name: str) -> None:
    rule, peer = make_rule(name, 2), make_rule(name, 1)
    rule.receive(1, peer.send(2))
    rule.send(0)
    image = rule.freeze()
    damaged = [image[:length] for length in range(len(image))] + [image + b"\x01", image + b"\x80"]
    for data in damaged:
        with pytest.raises(DamagedDataError):
            restore_rule(name, 2, data)


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_an_image_of_another_agent_is_refused(name: str) -> None:
    with pytest.raises(DamagedDataError, match="agent 2"):
        restore_rule(name, 2, make_rule(name, 1).freeze())


@pytest.mark.parametrize("agent", [-1, ORDINALS_MAX])
def test_impossible_ordinals_are_misuse(agent: int) -> None:
    with pytest.raises(UsageError, match="ordinals"):
        make_rule("bcs", agent)


@pytest.mark.parametrize("call", [lambda: make_rule("fine", 0), lambda: restore_rule("lazy-fine", 0, b"")])
def test_unknown_protocols_are_misuse_and_the_known_ones_are_named(call: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="uncoordinated, bcs, hmnr, fdas, fdi, bhmr, nras, cbr, cas"):
        call()
