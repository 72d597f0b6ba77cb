"""A fleet's definition: wrong ones are refused in one sentence, right ones mean the same in every process."""

import functools
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import snapline
from snapline.agent_runtime.fleet import load_fleet
from snapline.errors import EncodingError, FleetDefinitionError, UsageError


class Store(msgspec.Struct):
    blob: bytes = b""
    counts: list[int] = []


class Keeper(snapline.Agent):
    state: Store


class Undoing(snapline.Agent):
    state: Store
    on_error = "undo"


class Careful(snapline.Agent):
    state: Store
    on_error = "keep"


class Undeclared(snapline.Agent):
    pass


class Counted(snapline.Agent):
    state: dict[str, int]


def make_keeper(size: int = 1) -> Keeper:
    return Keeper(Store(b"x" * size))


def fleet(name: Any = "f", agents: Any = None, **options: Any) -> snapline.Fleet:
    return snapline.Fleet(name, agents={"a": Keeper(Store())} if agents is None else agents, **options)


# ---- definition -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (lambda: fleet("two words"), "'two words' is no valid fleet id"),
        (lambda: fleet(agents={}), "fleet 'f' has no agents"),
        (lambda: fleet(agents={"a b": make_keeper}), "'a b' is no valid agent id"),
        (lambda: fleet(agents={7: make_keeper}), "agent 7"),
        (lambda: fleet(agents={"a": 7}), "agent 'a' is a int"),
        (lambda: fleet(protocol="hope"), "protocol 'hope' is not known: use one of chandy-lamport"),
        (lambda: fleet(triggers=[0.5]), "0.5 is no trigger"),
        (lambda: fleet(triggers=snapline.Every(seconds=1)), "triggers"),
        (lambda: fleet(triggers=[1.0]), r"1.0 is no trigger"),
        (lambda: fleet(triggers=[snapline.EveryMessages(10)]), "chandy-lamport takes snapline.Every"),
        (lambda: fleet(triggers=[snapline.Every(seconds=1)] * 2), "at most one snapline.Every"),
        (lambda: fleet(epoch_timeout_s=0), "epoch_timeout_s"),
        (lambda: fleet(epoch_timeout_s="60"), "epoch_timeout_s"),
        (lambda: fleet(epoch_timeout_s=float("inf")), "epoch_timeout_s"),
        (lambda: fleet(stop_when=True), "stop_when"),
        (lambda: fleet(recovery="locally"), 'recovery is "global" or "local", not \'locally\''),
        (
            lambda: fleet(recovery="local", protocol="bcs"),
            "recovery=\"local\" needs the protocol 'chandy-lamport', not 'bcs'",
        ),
        (lambda: fleet(rpo_s=0), "rpo_s is a time in seconds above 0, or None, not 0"),
        (lambda: fleet(rto_s=-1.0), "rto_s is a time"),
        (lambda: fleet(rto_s="1m"), "rto_s is a time"),
        (lambda: fleet(rto_s=True), "rto_s is a time"),
        (lambda: fleet(rpo_s=float("inf")), "rpo_s is a time"),
        (lambda: fleet(rpo_s=float("nan")), "rpo_s is a time"),
        (lambda: fleet(rpo_s=5, triggers=[snapline.Every(10)]), "rpo_s=5 cannot be kept with an epoch every 10 s"),
        (lambda: fleet(rpo_s=1, protocol="bcs"), "rpo_s=1 cannot be kept with an epoch every 1 s"),
    ],
)
def test_wrong_definitions_are_refused_in_one_sentence(wrong: Callable[[], object], names: str) -> None:
    with pytest.raises(UsageError, match=names) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_the_period_is_that_of_the_trigger() -> None:
    assert fleet(triggers=[snapline.Every(seconds=0.3)]).period_ns == 300_000_000
    assert fleet().period_ns == 0


# ---- making agents --------------------------------------------------------------------------------------------------


def test_what_is_made_can_be_changed_without_changing_the_definition() -> None:
    defined = Keeper(Store(b"x", [1]))
    made = fleet(agents={"a": defined}).make("a")
    made.state.counts.append(2)
    assert isinstance(made, Keeper) and defined.state == Store(b"x", [1])
    assert fleet(agents={"a": defined}).make("a").state == Store(b"x", [1])


class Forking(Undoing):
    capture = "fork"


def test_states_that_a_child_process_saves_are_refused_with_local_recovery() -> None:
    agents = {"a": Forking(Store())}
    assert isinstance(fleet(agents=agents).make("a"), Forking)
    with pytest.raises(
        FleetDefinitionError, match='agent \'a\' has capture="fork", and recovery="local" saves its state'
    ):
        fleet(agents=agents, recovery="local").make("a")


def test_functions_make_a_new_agent_each_time() -> None:
    defined = fleet(agents={"a": functools.partial(make_keeper, 3)})
    defined.make("a").state.counts.append(1)
    assert defined.make("a").state == Store(b"xxx")


def test_a_large_state_must_say_what_an_error_means() -> None:
    """Above 64 KiB the image before each turn costs more than the turn: nobody shall pay for that unasked."""
    source = functools.partial(make_keeper, 70_000)
    with pytest.raises(
        FleetDefinitionError, match=r"agent 'a' takes 70,0\d\d bytes.*65,536.*set on_error in class Keeper"
    ):
        fleet(agents={"a": source}).make("a")
    for made in (Undoing, Careful):
        assert len(fleet(agents={"a": made(Store(b"x" * 70_000))}).make("a").state.blob) == 70_000


def test_a_state_that_cannot_be_saved_is_refused_at_the_start() -> None:
    with pytest.raises(
        EncodingError, match=r"the state of agent 'a' \(Store\) cannot be saved: state.counts\[0\] cannot be saved"
    ):
        fleet(agents={"a": Keeper(Store(counts=[object()]))}).make("a")  # type: ignore[list-item]  # that is the point


@pytest.mark.parametrize("is_function", [True, False])
@pytest.mark.parametrize(
    ("made", "names"),
    [
        (Keeper(Store(counts=["one"])), r"\$.counts\[0\]"),  # type: ignore[list-item]  # that is the point
        (Keeper({"size": 1}), "state"),
        (Undeclared({"size": 1}), "declare"),
        (Counted({1: 2}), "key"),
        (Counted(np.zeros(1)), "ext"),
    ],
    ids=["field", "dict", "undeclared", "keys", "array"],
)
def test_a_state_that_would_not_come_back_is_refused_at_the_start(
    made: snapline.Agent, names: str, is_function: bool
) -> None:
    """It could be saved; without this, the first recovery would find out that it cannot be restored."""
    source = (lambda: made) if is_function else made
    with pytest.raises(FleetDefinitionError, match=rf"the state of agent 'a'.*{names}") as caught:
        fleet(agents={"a": source}).make("a")
    assert "\n" not in str(caught.value)


def test_what_a_function_made_must_be_an_agent() -> None:
    with pytest.raises(FleetDefinitionError, match="the function for agent 'a' made a int, no Agent"):
        fleet(agents={"a": lambda: 3}).make("a")


def test_a_class_that_a_recovery_could_not_find_is_refused_at_the_start() -> None:
    """A class inside a function has no name that another process could import."""

    class Local(snapline.Agent):
        state: Store

    with pytest.raises(FleetDefinitionError, match=r"agent 'a'.*Local.*module level"):
        fleet(agents={"a": lambda: Local(Store())}).make("a")
    assert isinstance(fleet(agents={"a": Local(Store())}).make("a"), Local)


# ---- the same fleet everywhere --------------------------------------------------------------------------------------

DEFINITION = """
import functools, msgspec, snapline
class Store(msgspec.Struct):
    counts: dict[str, int] = {}
class Keeper(snapline.Agent):
    state: Store
class Maker:
    def __call__(self): return Keeper(Store())
    def make(self): return Keeper(Store())
def make(number, names): return Keeper(Store({name: number for name in names}))
maker = Maker()
sources = [Keeper(Store()), functools.partial(make, 1, {"x", "y"}), lambda: make(2, ()), maker, maker.make, Keeper,
           functools.partial(functools.partial(make, 1), ())]
fleet = snapline.Fleet("same", agents={f"agent-{n}": source for n, source in enumerate(sources)},
                       triggers=[snapline.Every(seconds=0.1)], stop_when=lambda cut: False)
"""


def test_the_digest_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Hosts that disagree are turned away, so nothing of one process may be in it: no addresses, no hash order."""
    (tmp_path / "same_fleet.py").write_text(DEFINITION)
    code = "import same_fleet; print(same_fleet.fleet.definition_digest().hex())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1 and re.fullmatch(r"[0-9a-f]{64}\n", digests.pop())


def test_other_definitions_have_other_digests() -> None:
    one = [Keeper(Store())]
    definitions = [
        fleet(),
        fleet("g"),
        fleet(agents={"a": one[0], "b": one[0]}),
        fleet(agents={"b": one[0]}),
        fleet(agents={"a": Careful(Store())}),
        fleet(agents={"a": make_keeper}),
        fleet(triggers=[snapline.Every(seconds=1)]),
        fleet(epoch_timeout_s=5),
        fleet(rpo_s=5),
        fleet(rto_s=5),
        fleet(rpo_s=5, rto_s=5),
    ]
    assert fleet(rpo_s=5).definition_digest() == fleet(rpo_s=5.0).definition_digest()
    assert len({definition.definition_digest() for definition in definitions}) == len(definitions)


# ---- MODULE:FLEET ---------------------------------------------------------------------------------------------------

MODULE = """
import snapline
class Keeper(snapline.Agent):
    state: int
fleet = snapline.Fleet("loaded", agents={"a": Keeper(1)})
def sized(agents: str, size: str = "2"):
    return snapline.Fleet("sized", agents={f"a{n}": Keeper(int(size)) for n in range(int(agents))})
def wrong(): return 5
number = 5
class Inner:
    fleet = fleet
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "loadable_fleet.py").write_text(MODULE)
    (tmp_path / "unparsable_fleet.py").write_text("fleet = = 1\n")
    (tmp_path / "needing_fleet.py").write_text("import no_such_library_anywhere\n")
    (tmp_path / "raising_fleet.py").write_text(textwrap.dedent("raise RuntimeError('no luck')\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "loadable_fleet"
    for name in list(sys.modules):
        if name.endswith("_fleet"):
            sys.modules.pop(name)


def test_fleets_and_functions_are_loaded(module: str) -> None:
    assert load_fleet(f"{module}:fleet", {}).name == "loaded"
    assert load_fleet(f"{module}:Inner.fleet", {}).name == "loaded"
    assert list(load_fleet(f"{module}:sized", {"agents": "3"}).agents) == ["a0", "a1", "a2"]


@pytest.mark.parametrize(
    ("target", "arguments", "names"),
    [
        ("loadable_fleet", {}, "'loadable_fleet' does not name a fleet: write MODULE:FLEET"),
        (":fleet", {}, "does not name a fleet"),
        ("loadable_fleet:", {}, "does not name a fleet"),
        ("no_module_here:fleet", {}, "there is no module 'no_module_here'"),
        ("loadable_fleet.inside:fleet", {}, "there is no module 'loadable_fleet.inside'"),
        (".relative:fleet", {}, r"there is no module '\.relative'"),
        ("needing_fleet:fleet", {}, "module 'needing_fleet' needs 'no_such_library_anywhere', which is not installed"),
        ("unparsable_fleet:fleet", {}, "module 'unparsable_fleet' does not parse"),
        ("raising_fleet:fleet", {}, "module 'raising_fleet' .*RuntimeError.*no luck"),
        ("loadable_fleet:nothing", {}, "module 'loadable_fleet' has no 'nothing'"),
        ("loadable_fleet:number", {}, "loadable_fleet:number is a int"),
        ("loadable_fleet:wrong", {}, r"loadable_fleet:wrong\(\) returned a int"),
        ("loadable_fleet:fleet", {"agents": "3"}, "is a fleet, not a function: it takes no --arg agents"),
        ("loadable_fleet:sized", {}, "--arg does not fit loadable_fleet:sized: .*agents"),
        ("loadable_fleet:sized", {"agents": "3", "colour": "red"}, "--arg does not fit .*colour"),
        (
            "loadable_fleet:sized",
            {"agents": "many"},
            "loadable_fleet:sized --arg agents=many raised ValueError: .*many",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_in_one_sentence(
    module: str, target: str, arguments: dict[str, str], names: str
) -> None:
    with pytest.raises(FleetDefinitionError, match=names) as caught:
        load_fleet(target, arguments)
    assert "\n" not in str(caught.value)


def test_places_are_rules_in_their_order() -> None:
    placed = fleet("placed", place={"a": "h1", "b*": ["h2", "h3"]})
    assert placed.place == {"a": ("h1",), "b*": ("h2", "h3")}
    assert placed.definition_digest() != fleet("placed").definition_digest()
    assert fleet("placed", place={}).definition_digest() == fleet("placed").definition_digest()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (["a"], "place is a list"),
        ({"a": []}, "name a host"),
        ({"a": 3}, "name a host"),
        ({"a": "no host"}, "no host"),
        ({"": "h1"}, "place={"),
        ({3: "h1"}, "place={3"),
        ({"a*b": "h1"}, "a\\*b"),
    ],
)
def test_places_that_are_none(place: Any, words: str) -> None:
    with pytest.raises(FleetDefinitionError, match=words):
        fleet("placed", place=place)
