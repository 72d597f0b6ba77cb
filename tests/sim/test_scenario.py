"""Scenario files: what is written is read back, and what is wrong is said in one readable sentence."""

import math
import tomllib
from fractions import Fraction
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.sim.faults.fault_kinds import REFUSED_FAULT_KINDS
from snapline.sim.scenario import (
    FAULT_KINDS,
    PATTERN_NAMES,
    PATTERNS_KNOWN,
    FaultPart,
    FleetPart,
    Scenario,
    coordinator_names,
    duration_ns,
    format_duration,
    format_scenario,
    format_toml,
    host_names,
    joining_hosts,
    parse_scenario,
)
from snapline.sim.search.swarm import BUILT_IN, draw

seeds = st.integers(min_value=0, max_value=2**63)
templates = st.sampled_from(sorted(BUILT_IN))
drawn = st.builds(lambda name, seed: draw(BUILT_IN[name], seed), templates, seeds)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

EXAMPLE = """
schema = 1
name   = "cut-during-commit"
budget = "within"                  # "beyond": safety oracles only

[fleet]
agents = 40
hosts = 4
coordinators = 3
protocol = "chandy-lamport"
pattern  = { name = "request-reply", rate_per_s = 200, payload_bytes = 256 }
trigger  = { kind = "period", every = "2s" }

[network]
delay = { least = "1ms", jitter = "4ms" }

[[fault]]
partition = { shape = "isolate-leader", direction = "one-way", at = "5s", for = "3s" }

[[fault]]
crash = { failpoint = "store.manifest.linked", hit = 2, restart_after = "1s" }    # whoever gets there

[[fault]]
disk = { host = "h2", mode = "power-cut", at = "9s" }

[liveness]
heal = "15s"
within = "30s"
"""


def test_the_example_of_the_design_is_read() -> None:
    scenario = parse_scenario(EXAMPLE, source="cut.toml")
    assert scenario.fleet.pattern.rate_per_s == 200.0
    assert [fault.kind for fault in scenario.fault] == ["partition", "crash", "disk"]
    partition, crash, disk = (fault.word for fault in scenario.fault)
    assert (partition.at_ns, partition.ends_ns(4)) == (5 * 10**9, 8 * 10**9)
    assert (crash.point, crash.at_ns) == ("store.manifest.linked", 0)
    assert (disk.at_ns, disk.ends_ns(4)) == (9 * 10**9, 9_500_000_000)
    assert scenario.liveness.heal_ns == 15 * 10**9


@given(drawn)
@settings(deadline=None)
def test_what_is_written_is_read_back(scenario: Scenario) -> None:
    assert parse_scenario(format_scenario(scenario), source="drawn.toml") == scenario


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_templates_are_files_too(name: str) -> None:
    assert parse_scenario(format_scenario(BUILT_IN[name]), source=name) == BUILT_IN[name]


@given(name=text, arguments=st.dictionaries(text, text, max_size=3))
@settings(deadline=None)
def test_any_text_survives(name: str, arguments: dict[str, str]) -> None:
    scenario = Scenario(name=name, fleet=FleetPart(module="my:fleet", arguments=arguments))
    assert parse_scenario(format_scenario(scenario), source="text.toml") == scenario


@pytest.mark.parametrize("word", FAULT_KINDS)
def test_every_word_may_stand_without_keys(word: str) -> None:
    scenario = parse_scenario(f"[[fault]]\n{word} = {{}}\n", source="word.toml")
    assert [fault.kind for fault in scenario.fault] == [word]
    assert parse_scenario(format_scenario(scenario), source="word.toml") == scenario


@given(st.integers(min_value=0, max_value=10**16))
def test_a_formatted_duration_is_the_same_time(ns: int) -> None:
    assert duration_ns(format_duration(ns)) == ns


@given(
    number=st.decimals(min_value=0, max_value=10**6, places=3, allow_nan=False),
    unit=st.sampled_from([("us", 10**3), ("ms", 10**6), ("s", 10**9), ("m", 60 * 10**9), ("h", 3600 * 10**9)]),
)
def test_durations_are_exact(number: object, unit: tuple[str, int]) -> None:
    assert duration_ns(f"{number}{unit[0]}") == Fraction(str(number)) * unit[1]


@pytest.mark.parametrize("wrong", ["5", "5 s", "s", "5sec", "1e3s", "٣s", "nan s", "--1s", "1.s ", "5smm"])
def test_what_is_no_duration_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        duration_ns(wrong)


def test_hosts_that_join_come_after_those_that_are_there() -> None:
    faults = "".join(
        f"[[fault]]\nmembership = {{ {keys} }}\n" for keys in ('kind = "join"', 'kind = "join", host = "h3"')
    )
    scenario = parse_scenario(f"[fleet]\ncoordinators = 3\n{faults}", source="join.toml")
    assert host_names(scenario) == ("h1", "h2", "h3", "h4")
    assert joining_hosts(scenario) == ("h3", "h4")
    assert coordinator_names(scenario) == ("c1", "c2", "c3")


WRONG = [
    ("schema = 2", "schema is 2: this snapline reads schema 1"),
    ("x =", "is not TOML"),
    ("foo = 1", 'the file has no key "foo": use schema, name'),
    ("[fleet]\nagent = 1", 'fleet has no key "agent": use agents, hosts'),
    ('[fleet]\nagents = "3"', 'fleet.agents is "3": use a whole number'),
    ("[fleet]\nagents = 0", "fleet.agents is 0: use a whole number >= 1"),
    ("[fleet]\ncoordinators = 2", "fleet.coordinators is 2: use 1, 3, 5"),
    ("[fleet]\nhosts = 100000", "fleet.hosts is 100000: use a whole number <= 1000"),
    ('[fleet]\nprotocol = "x"', 'fleet.protocol is "x": use chandy-lamport, koo-toueg'),
    ('[fleet]\npattern = "x"', 'fleet.pattern is "x": use a table'),
    ('[fleet.pattern]\nname = "x"', 'fleet.pattern.name is "x": use ring, pipeline'),
    ("[fleet.pattern]\nrate_per_s = inf", "fleet.pattern.rate_per_s is inf"),
    ("[fleet]\narguments = { a = 1 }", "fleet.arguments"),
    ('[network]\ndelay = { least = "5 sec" }', 'network.delay.least is "5 sec": use a duration such as'),
    (
        '[fleet]\ntrigger = { kind = "messages" }',
        'fleet.trigger.kind is "messages": chandy-lamport takes period, none',
    ),
    ("fault = 3", "fault is 3: use a list"),
    ("[[fault]]", "fault[0] has no word: each [[fault]] has exactly one of delay"),
    ("[[fault]]\ncrash = {}\npause = {}", "fault[0] has the words crash and pause"),
    ("[[fault]]\nboom = {}", 'fault[0] has no key "boom": use delay'),
    ("[[fault]]\ncrash = 3", "fault[0].crash is 3: use a table"),
    (
        '[[fault]]\ncrash = {}\n[[fault]]\npartition = { shape = "isolate-leder" }',
        'fault[1].partition.shape is "isolate-leder": use one, pair, majority',
    ),
    ('[[fault]]\ncrash = { host = "h7" }', 'fault[0].crash.host is "h7": use h1, h2'),
    ('[[fault]]\nclog = { between = ["h1", "c2"] }', 'fault[0].clog.between[1] is "c2": use h1, h2, c1'),
    ('[[fault]]\nhold = { between = ["h1", "c1"] }', 'fault[0].hold.between[1] is "c1": use h1, h2'),
    ('[[fault]]\nloss = { between = ["h1"] }', "name two different nodes"),
    ('[[fault]]\nloss = { between = ["h1", "h1"] }', "name two different nodes"),
    ("[[fault]]\nloss = { per_mille = 2000 }", "fault[0].loss.per_mille is 2000: use a whole number <= 1000"),
    ('[[fault]]\ncrash = { failpoint = "store.manifest.link" }', "near it are store.manifest.linked"),
    ('[[fault]]\ncrash = { at = "20s" }', "fault[0].crash is over at 20500ms, after run.until 10s: raise run.until"),
    ('[[fault]]\npause = {}\n[liveness]\nheal = "1s"', "after liveness.heal 1s: raise liveness.heal"),
    ('[[fault]]\ncrash = { all = true, host = "h1" }', "fault[0].crash.host does not go with all"),
    ("[[fault]]\ncrash = { power_cut = true }", "power_cut goes with failpoint or when only"),
    ('[[fault]]\ncrash = { rolling = true, restart_after = "" }', "rolling needs a restart_after"),
    ('[[fault]]\ndisk = { mode = "full", failpoint = "store.ref.synced" }', 'failpoint goes with mode = "eio"'),
    ('[[fault]]\ndisk = { mode = "power-cut", host = "c1" }', 'fault[0].disk.host is "c1": use h1, h2'),
    ('[[fault]]\ncoordinator = { node = "c1" }', 'node goes with kind = "kill" only'),
    ('[[fault]]\ncoordinator = { kind = "kill", node = "h1" }', 'fault[0].coordinator.node is "h1": use c1'),
    ('[[fault]]\npartition = { host = "h1" }', 'host goes with shape = "isolate-host" only'),
    ('[[fault]]\nmembership = { kind = "join", host = "h1" }', 'fault[0].membership.host is "h1": use h3'),
    ('[[fault]]\nclock = { skew = "--3s" }', 'fault[0].clock.skew is "--3s": use a duration'),
    ('[swarm]\nfaults = ["boom"]', 'swarm.faults is "boom": use delay'),
    ("[swarm]\nfleet = 3", "swarm.fleet is 3: use true or false"),
]


@pytest.mark.parametrize(("toml", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_errors_name_file_key_and_what_is_allowed(toml: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_scenario(toml, source="cut.toml")
    message = str(raised.value)
    assert message.startswith("cut.toml: ") and said in message
    assert "`" not in message and "\n" not in message and "$" not in message


@pytest.mark.parametrize("word", sorted(REFUSED_FAULT_KINDS))
def test_words_without_effect_are_refused_with_a_reason(word: str) -> None:
    with pytest.raises(UsageError, match=rf"fault\[0\]\.{word} cannot be: .*: use "):
        parse_scenario(f"[[fault]]\n{word} = {{}}", source="x.toml")


junk = st.one_of(
    st.booleans(), st.integers(-5, 5), st.just(math.nan), text, st.just([]), st.just([1]), st.just({"a": 1})
)


@given(drawn, junk, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_any_wrong_value_is_an_error_of_ours_or_no_error(scenario: Scenario, value: object, random: Random) -> None:
    document = msgspec.to_builtins(scenario)
    node = document
    while True:
        keys = list(range(len(node))) if isinstance(node, list) else sorted(node)
        if not keys:
            break
        key = keys[int(random.random() * len(keys))]
        if isinstance(node[key], (dict, list)) and node[key] and random.random() < 0.8:
            node = node[key]
            continue
        node[key] = value
        break
    toml = format_toml(document)
    tomllib.loads(toml)
    try:
        read = parse_scenario(toml, source="junk.toml")
    except UsageError as error:
        assert str(error).startswith("junk.toml: ")
    else:
        assert parse_scenario(format_scenario(read), source="junk.toml") == read


def test_a_fault_is_shown_by_its_word() -> None:
    for word in FAULT_KINDS:
        part = parse_scenario(f"[[fault]]\n{word} = {{}}", source="x").fault[0]
        assert isinstance(part, FaultPart) and part.kind == word


def test_every_pattern_is_known_to_the_workloads() -> None:
    registry = pytest.importorskip("snapline.sim.workloads.patterns")
    assert set(PATTERN_NAMES) <= set(PATTERNS_KNOWN) == set(registry.PATTERNS)
