"""House rules on structure: who inherits from whom, how much one object holds, names, circles of files, size.

A rule has a list of what it does not hold for, each entry with its reason: a name, or what several names begin with.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tests.house import product as house
from tests.house.product import Product

pytestmark = pytest.mark.usefixtures("without_collections")

PROGRAMS = ("examples/", "sim/workloads/")
"""What users write: every file is a program of its own, in its story's words, built on kinds that are made for it."""

FILE_LINES_MAX = 900
ATTRIBUTES_MAX = 20


@pytest.fixture(scope="module")
def product(root: Path, files: list[Path]) -> Product:
    return house.read(root, files)


def agree(offences: Iterable[str], excused: Mapping[str, str]) -> None:
    """Nothing offends but what is excused, and nothing is excused any more that does not offend."""
    found = sorted(set(offences))
    new = [name for name in found if not name.startswith(tuple(excused))]
    assert not new, "against a house rule:\n" + "\n".join(new)
    old = [name for name in excused if not any(each.startswith(name) for each in found)]
    assert not old, "nothing is against it any more, so take it off the list:\n" + "\n".join(old)


# -- inheritance ------------------------------------------------------------------------------------------------------

LADDERS = {
    "protocols/dependency_vector.py:": "a rule, its family, the face of all rules, which has no state but an ordinal",
    "protocols/rule.py:": "the same",
}


def several_bases(product: Product) -> list[str]:
    """Classes with more than one product base; a shape for the type checker and an error's kind do not count."""
    return [
        name
        for name, found in product.classes.items()
        if not product.is_error(name) and sum(not product.is_protocol(base) for base in found.bases) > 1
    ]


def ladders(product: Product) -> list[str]:
    """Classes whose product base has a product base. A record of values that extends one inherits no state."""
    return [
        name
        for name in product.classes
        if not (product.is_error(name) or product.is_protocol(name) or product.is_record(name))
        and sum(not product.is_protocol(above.name) for above in product.ancestors(name)) > 1
        and not name.startswith(PROGRAMS)
    ]


def test_no_class_has_two_bases(product: Product) -> None:
    agree(several_bases(product), {})


def test_no_class_stands_on_a_ladder(product: Product) -> None:
    agree(ladders(product), LADDERS)


BASES = "class A: pass\nclass B: pass\nclass Shape(Protocol): pass\nclass E(Exception): pass\n"


def test_the_search_finds_two_bases_and_ladders() -> None:
    imported = "from snapline.sim.a import A, Shape\nfrom snapline.sim import a as x\n"
    found = house.product(
        {
            "sim/a.py": BASES,
            "sim/b.py": imported + "class Two(A, x.B): pass\nclass Up(A): pass\nclass Ladder(Up): pass",
        }
    )
    assert several_bases(found) == ["sim/b.py:Two"]
    assert ladders(found) == ["sim/b.py:Two", "sim/b.py:Ladder"]


def test_shapes_errors_and_records_are_no_ladders() -> None:
    fine = "class C(A, Shape): pass\nclass F(E): pass\nclass G(F, E): pass\n"
    records = "class R(Struct): x: int\nclass S(R): y: int\nclass T(S): z: int"
    found = house.product({"sim/a.py": BASES + fine + records})
    assert several_bases(found) == [] and ladders(found) == []


# -- how much one object holds ------------------------------------------------------------------------------------------

LARGE = {
    "agent_runtime/host/host_state.py:LocalAgent": "a record, with slots: what a host keeps of one agent, each field documented",
    "agent_runtime/host/host_state.py:HostState": "a record: what the components of a host core share, each field documented",
    "agent_runtime/host/driver.py:HostDriver": "an adapter: what it carries commands out with",
    "agent_runtime/host/checkpoint_writer.py:CheckpointWriter": "an adapter: a queue, a worker, a timer",
    "agent_runtime/host/process.py:Host": "an adapter: what surrounds a host in production",
    "coordinator/raft/journal.py:SqliteJournal": "frozen: nothing more grows on it",
}


def large(product: Product) -> list[str]:
    return [name for name, c in product.classes.items() if len(house.set_in_init(c.node)) > ATTRIBUTES_MAX]


def test_no_object_holds_more_than_one_can_keep_in_mind(product: Product) -> None:
    agree(large(product), LARGE)


def test_the_search_counts_attributes() -> None:
    many = "class A:\n  def __init__(self, o):\n" + "".join(f"    self.x{n} = o.y = 1\n" for n in range(21))
    few = many.replace("class A", "class B").replace("self.x20 = o.y = 1", "self.x0 += 1")
    assert large(house.product({"sim/a.py": many + few})) == ["sim/a.py:A"]


# -- names ------------------------------------------------------------------------------------------------------------

ALPHABETS = {
    "BeginEpoch",
    "CloseStream",
    "Command",
    "Event",
    "FrameReceived",
    "MarkerReceived",
    "MessageReceived",
    "MessageSent",
    "Note",
    "RecordState",
    "StreamClosed",
    "StreamOpened",
    "TimerFired",
    "Trace",
    "WriteFrame",
    "WriteReady",
}
"""Every core has an alphabet of its own, read as `ev.TimerFired`: the same word says the same in each."""

OUTCOMES = {
    "Committed",
    "Rejected",
    "Unknown",
}
"""Of an entry in Raft, which could stand alone, and of an operation in the fleet's log: `coordinator/service/leadership.py`
leads from one to the other."""

SAME_NAMES = ALPHABETS | OUTCOMES


def same_names(product: Product) -> dict[str, list[str]]:
    """Public class names that stand more than once: name → files."""
    homes: dict[str, list[str]] = defaultdict(list)
    for found in product.classes.values():
        if not found.node.name.startswith("_") and not found.file.startswith(PROGRAMS):
            homes[found.node.name].append(found.file)
    return {name: files for name, files in homes.items() if len(files) > 1}


def test_one_name_for_one_thing(product: Product) -> None:
    twice = same_names(product)
    new = [f"{name}: {', '.join(twice[name])}" for name in sorted(set(twice) - SAME_NAMES)]
    assert not new, "one name, several classes:\n" + "\n".join(new)
    assert not (old := sorted(SAME_NAMES - set(twice))), f"these stand once, so take them off the list: {old}"


def test_the_search_finds_a_name_that_stands_twice() -> None:
    texts = {"sim/a.py": "class A: pass\nclass _B: pass", "recovery/b.py": "class A: pass\nclass _B: pass"}
    assert same_names(house.product(texts)) == {"A": ["sim/a.py", "recovery/b.py"]}


# -- circles ----------------------------------------------------------------------------------------------------------

CIRCLES = {
    "agent_runtime/fleet.py, agent_runtime/snapshots/snapshot_cut.py": (
        "a fleet's `stop_when` takes a Cut, and a Cut restores agents of its fleet; one of the two is there by type only"
    ),
    "agent_runtime/host/entries.py, agent_runtime/host/host_state.py": (
        "an entry names its inlet, whose agent has a mailbox of entries; `host_state` is compiled and may define no struct"
    ),
}


def circles(product: Product) -> list[str]:
    edges = {name: house.imported_files(tree, product.trees) for name, tree in product.trees.items()}
    return [", ".join(group) for group in house.circles(edges)]


def test_files_import_each_other_in_no_circle(product: Product) -> None:
    """Imports for the type checker and those inside functions count: a reader has to follow them as well."""
    agree(circles(product), CIRCLES)


@pytest.mark.parametrize(
    "back",
    [
        "from snapline.sim.a import A",
        "from snapline.sim import a",
        "def f() -> None:\n    import snapline.sim.a",
        "if TYPE_CHECKING:\n    from snapline.sim.a import A",
    ],
)
def test_the_search_finds_circles(back: str) -> None:
    texts = {"sim/a.py": "from snapline.sim.b import B", "sim/b.py": "import snapline.sim.c", "sim/c.py": back}
    assert circles(house.product(texts)) == ["sim/a.py, sim/b.py, sim/c.py"]
    assert circles(house.product({**texts, "sim/c.py": "import sim.a, os"})) == []


# -- pictures ---------------------------------------------------------------------------------------------------------

PICTURES: dict[str, str] = {}


def pictures(product: Product) -> list[str]:
    """Files of the ground floor that draw."""
    return [
        name
        for name, tree in product.trees.items()
        if name.startswith(("protocols/", "recovery/"))
        and any(word in f"{name}\n{ast.unparse(tree)}".lower() for word in ("svg", "<html", "diagrams"))
    ]


def test_the_ground_floor_draws_nothing(product: Product) -> None:
    agree(pictures(product), PICTURES)


@pytest.mark.parametrize("text", ["A = '<svg>'", "import snapline.diagrams.scene", "'<HTML lang=\"en\">'"])
def test_the_search_finds_pictures(text: str) -> None:
    assert pictures(house.product({"recovery/a.py": text, "sim/a.py": text})) == ["recovery/a.py"]
    assert pictures(house.product({"recovery/a.py": "A = 1"})) == []


# -- adapters and parts -------------------------------------------------------------------------------------------------

POLLS = {
    "coordinator/service/server.py while self._options": "a follower has no core: it learns the end from its log's state",
}


def polls(product: Product) -> list[str]:
    return [f"{name} while {test}" for name, tree in product.trees.items() for _, test in house.polls(tree)]


def test_no_adapter_polls_a_core(product: Product) -> None:
    """What a core has to say is a command. A loop that looks whether it is so far makes a second protocol."""
    agree(polls(product), POLLS)


@pytest.mark.parametrize(
    "body",
    [
        "while (answer := core.questions.take(1)) is None:\n    await asyncio.sleep(0.02)",
        "while True:\n    if self._driver.core.is_done:\n        break\n    time.sleep(1)",
        "while not done:\n    await asyncio.sleep(1)\n    done = self._state.image.outcome",
    ],
)
def test_the_search_finds_what_polls(body: str) -> None:
    assert polls(house.product({"coordinator/a.py": body}))


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n    await asyncio.sleep(self.core.wakeup_ns)\n    self.feed(TimerFired())",
        "while self.core.is_open:\n    await self.changed.wait()",
        "while not self._is_closing:\n    await asyncio.sleep(1)",
    ],
)
def test_a_timer_is_no_poll(body: str) -> None:
    assert not polls(house.product({"coordinator/a.py": body}))


REACHING = {
    "agent_runtime/host/logged_agent.py self.backlog.log_bytes": "the host's count, kept in line: once for each message",
}

REACHING_ROOMS = ("agent_runtime/host/", "coordinator/leader/")


def reaching(product: Product) -> list[str]:
    """`self.x.y = …`; a shared, and what lies on it, is there to be written on by every part."""
    return [
        f"{name} {target}"
        for name, tree in product.trees.items()
        if name.startswith(REACHING_ROOMS)
        for _, target in house.reaching_assignments(tree)
        if "shared." not in target
    ]


def test_no_part_of_a_core_sets_what_another_part_owns(product: Product) -> None:
    agree(reaching(product), REACHING)


@pytest.mark.parametrize(
    "line",
    [
        "self._epochs.is_held = True",
        "self.a.b += 1",
        "self.a[0].b = 1",
        "x, self.a.b.c = y",
        "def f(self):\n    x, y = self.a, self.b.c\n    y.z = 1",
    ],
)
def test_the_search_finds_what_reaches_into_another_part(line: str) -> None:
    assert reaching(house.product({"coordinator/leader/a.py": line}))


@pytest.mark.parametrize(
    "line",
    ["self.a = b.c = 1", "self._shared.out = []", "self.a.b()", "self.a[0] = self.b.c", "x = self.shared\nx.now = 1"],
)
def test_own_attributes_and_the_shared_state_may_be_set(line: str) -> None:
    assert not reaching(house.product({"coordinator/leader/a.py": line}))


# -- stubs and size -----------------------------------------------------------------------------------------------------


def stubs(product: Product) -> list[str]:
    return [f"{name}:{function}" for name, tree in product.trees.items() for _, function in house.stubs(tree)]


def test_what_a_part_needs_is_a_protocol_not_a_stub(product: Product) -> None:
    """A stub is a call upwards that no type checker follows. (msgspec's hooks raise NotImplementedError as their word.)"""
    agree(stubs(product), {})


@pytest.mark.parametrize("line", ["raise NotImplementedError", "'It does.'\n    raise NotImplementedError('above')"])
def test_the_search_finds_stubs(line: str) -> None:
    assert stubs(house.product({"sim/a.py": f"def f():\n    {line}"})) == ["sim/a.py:f"]


def test_a_hook_is_no_stub() -> None:
    hook = "def f(value):\n    if value:\n        return 1\n    raise NotImplementedError(value)"
    assert stubs(house.product({"sim/a.py": hook})) == []


LONG: dict[str, str] = {}


def long(product: Product) -> list[str]:
    return [name for name, lines in product.lines.items() if lines > FILE_LINES_MAX]


def test_no_file_is_longer_than_one_idea(product: Product) -> None:
    agree(long(product), LONG)


def test_the_search_counts_lines() -> None:
    assert long(house.product({"sim/a.py": "\n" * 901, "sim/b.py": "\n" * 500})) == ["sim/a.py"]
