"""Scenario scripts: those of tests/scenarios hold, traces are renewed exactly, a wrong command gets one sentence."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.errors import UsageError
from snapline.protocols.dependency_vector import FdasRule
from snapline.protocols.epoch_stamped import Command as EpochCommand
from snapline.protocols.epoch_stamped import EpochRecording, EpochStampedCore, MessageArrived
from snapline.protocols.epoch_stamped import Event as EpochEvent
from snapline.protocols.index_based import BcsRule, HmnrRule
from snapline.protocols.koo_toueg import KooTouegCore
from snapline.protocols.names import PROTOCOLS
from snapline.recovery.trace import MessageReceived, MessageSent
from snapline.sim.explorer.chandy_lamport import ChandyLamportCore
from snapline.sim.explorer.chandy_lamport import Command as MarkerCommand
from snapline.sim.explorer.chandy_lamport import Event as MarkerEvent
from snapline.sim.script.__main__ import main
from snapline.sim.script.script_runner import MARKERS, check_script, make_fleet, rewrite_script, run_script
from snapline.sim.script.script_text import ScriptCommand, read_blocks

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
SCRIPTS = sorted(SCENARIOS.glob("*.txt"))

EXAMPLE = """# A new channel needs no marker.
fleet a b
record a epoch=1
send a b m1
deliver a->b
----
a: RecordState(epochs=[1])
a: StoreCheckpoint(number=1, state=[])
a: SendMarkers(epoch=1, last_numbers={})
a: SendMessage(m1, to=b, number=1, stamp=1)
b: RecordState(epochs=[1])
b: StoreCheckpoint(number=1, state=[])
b: SendMarkers(epoch=1, last_numbers={})
b: Deliver(m1)
"""


def trace_of(*commands: str) -> list[str]:
    """What these commands write."""
    return run_script("\n".join(commands)).partition("----\n")[2].splitlines()


# -- the scripts of this project --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_holds(path: Path) -> None:
    assert check_script(path) == ""


def test_the_scripts_show_every_protocol_and_start_with_their_lesson() -> None:
    assert len(SCRIPTS) >= 14
    texts = [path.read_text() for path in SCRIPTS]
    assert all(text.startswith("# ") for text in texts)
    shown = set(re.findall(r"^fleet .*protocol=(\S+)", "\n".join(texts), re.MULTILINE))
    assert shown >= {MARKERS, *PROTOCOLS} - {"chandy-lamport"}
    assert any(re.search(r"^fleet [^=]*$", text, re.MULTILINE) for text in texts)


def test_only_the_script_on_broken_channels_shows_a_wrong_cut() -> None:
    assert [path.stem for path in SCRIPTS if "IS WRONG" in path.read_text()] == ["fifo-is-needed"]


# -- cores with one fault: the scripts notice -------------------------------------------------------------------------


def forget_channel_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochRecording, "record", lambda self, message: None)


def deliver_before_recording(patch: pytest.MonkeyPatch) -> None:
    handle = EpochStampedCore.handle

    def ignores_stamps(self: EpochStampedCore, now_ns: int, event: EpochEvent) -> list[EpochCommand]:
        is_news = isinstance(event, MessageArrived) and event.stamp > self.recorded
        return [] if is_news else handle(self, now_ns, event)

    patch.setattr(EpochStampedCore, "handle", ignores_stamps)


def close_without_looking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochRecording, "close", lambda self, channel, number: self.markers.__setitem__(channel, number))


def never_send_markers(patch: pytest.MonkeyPatch) -> None:
    handle = ChandyLamportCore.handle

    def keeps_markers(self: ChandyLamportCore, now_ns: int, event: MarkerEvent) -> list[MarkerCommand]:
        return [command for command in handle(self, now_ns, event) if type(command).__name__ != "SendMarker"]

    patch.setattr(ChandyLamportCore, "handle", keeps_markers)


def ask_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KooTouegCore, "_requests", lambda self: {})


def ask_everybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KooTouegCore, "_is_needed", lambda self, event: True)


def never_force(rule: type) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(rule, "forces", lambda self, sender, piggyback: False)


def without_condition(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(HmnrRule, name, lambda self, *about: False)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "channel state dropped": (forget_channel_state, "lai-yang"),
    "delivered before recording": (deliver_before_recording, "new-channel"),
    "marker not compared": (close_without_looking, "fifo-is-needed"),
    "no markers": (never_send_markers, "marker-rule"),
    "koo-toueg asks nobody": (ask_nobody, "koo-toueg-minimal"),
    "koo-toueg takes more than it must": (ask_everybody, "koo-toueg-minimal"),
    "bcs never forces": (never_force(BcsRule), "bcs-forces"),
    "fdas never forces": (never_force(FdasRule), "fdas-tracks"),
    "hmnr without C1": (without_condition("_lets_a_clock_fall"), "hmnr-forces-less"),
    "hmnr without C2": (without_condition("_closes_a_cycle"), "z-cycle"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_core_changes_a_trace(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, script = FAULTS[fault]
    break_it(monkeypatch)
    assert notices(SCENARIOS / f"{script}.txt")


def notices(path: Path) -> bool:
    """By a difference, by a command that cannot be carried out any more, or by a core that finds itself broken."""
    try:
        return check_script(path) != ""
    except (UsageError, AssertionError):
        return True


def test_the_books_find_an_orphan_that_the_coordinator_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """b consumes m1 of the new epoch and records after it, and a's report says that a sent it inside."""
    deliver_before_recording(monkeypatch)
    report = EpochStampedCore.record_of
    lie = {"b": 1}
    monkeypatch.setattr(
        EpochStampedCore,
        "record_of",
        lambda self, epoch: (
            type(found := report(self, epoch))(epoch, False, lie, found.received, found.in_transit)
            if self.agent == "a"
            else report(self, epoch)
        ),
    )
    trace = trace_of(
        "fleet a b", "record a epoch=1", "send a b m1", "deliver a->b", "record b epoch=1", "report a,b epoch=1"
    )
    assert trace[-1] == "epoch 1 IS WRONG: m1 is an orphan"


# -- rewriting --------------------------------------------------------------------------------------------------------


def test_a_script_without_a_trace_gets_one() -> None:
    assert run_script(EXAMPLE.partition("----")[0]) == EXAMPLE


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_rewriting_is_idempotent_and_needs_nothing_of_the_old_traces(path: Path) -> None:
    text = path.read_text()
    assert run_script(text) == text
    without = re.sub(r"^----\n(?:.+\n)*", "----\n", text, flags=re.MULTILINE)
    assert without != text
    assert run_script(without) == text


def test_comments_and_blank_lines_stay_where_they_are() -> None:
    text = "# Above.\n\nfleet a b\n\n# Between.\nsend a b m1\n----\na: old\n\n# Below.\n"
    assert run_script(text) == text.replace("a: old", "a: SendMessage(m1, to=b, number=1, stamp=0)")


def test_a_block_without_a_trace_says_so_and_the_fleet_goes_on_in_the_next() -> None:
    text = run_script("fleet a b\n----\n\nsend a b m1\n")
    assert text == "fleet a b\n----\n(nothing)\n\nsend a b m1\n----\na: SendMessage(m1, to=b, number=1, stamp=0)\n"
    assert run_script(text) == text


def test_a_corrupted_trace_gives_a_readable_difference(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text(EXAMPLE.replace("stamp=1", "stamp=0"))
    found = check_script(path).splitlines()
    assert found[:2] == ["--- new.txt as written", "+++ new.txt as run"]
    assert "-a: SendMessage(m1, to=b, number=1, stamp=0)" in found
    assert "+a: SendMessage(m1, to=b, number=1, stamp=1)" in found
    assert rewrite_script(path)
    assert path.read_text() == EXAMPLE
    assert check_script(path) == "" and not rewrite_script(path)


@given(st.data())
def test_any_change_of_a_trace_is_found(data: st.DataObject) -> None:
    lines = EXAMPLE.splitlines()
    place = data.draw(st.integers(lines.index("----") + 1, len(lines) - 1))
    match data.draw(st.sampled_from(("drop", "double", "change"))):
        case "drop":
            del lines[place]
        case "double":
            lines.insert(place, lines[place])
        case _:
            lines[place] = lines[place].replace(":", ": ", 1)
    text = "\n".join(lines) + "\n"
    assert run_script(text) == EXAMPLE != text


# -- any script: the books agree with the cores -----------------------------------------------------------------------

STEPS = {
    "send {one} {other} m{number}": 5,
    "deliver {one}->{other}": 8,
    "arrive {one}->{other}": 3,
    "marker {one}->{other}": 6,
    "turn {one}": 4,
    "start {one}": 1,
    "end {one}": 3,
    "record {one} epoch={epoch}": 4,
    "report {one} epoch={epoch}": 6,
    "checkpoint {one}": 3,
    "checkpoint {one} refusing={other}": 1,
    "timeout": 0.1,
    "abort epoch={epoch}": 0.1,
    "crash {one}": 0.2,
}
"""Commands and their weights; what cannot be done just then is refused."""

RUNS_PER_PROTOCOL, STEPS_PER_RUN = 12, 400


class RandomScript:
    """A script that grows by random commands, each carried out at once."""

    def __init__(self, protocol: str, seed: int) -> None:
        self.random = Random(f"{protocol} {seed}")
        self.lines: list[str] = []
        self.trace: list[str] = []
        self.begun = 0
        self.fleet = make_fleet(self.command(f"fleet a b c protocol={protocol}"))
        self.lines.append(f"fleet a b c protocol={protocol}")

    def command(self, line: str) -> ScriptCommand:
        return read_blocks(line)[0].commands[0]

    def try_step(self, line: str) -> bool:
        try:
            trace = self.fleet.run(self.command(line))
        except UsageError as error:
            assert str(error).startswith("line 1: ")
            return False
        self.trace += trace
        self.lines.append(line)
        return True

    def grow(self) -> None:
        steps = self.random.choices(list(STEPS), list(STEPS.values()), k=STEPS_PER_RUN)
        for number, step in enumerate(steps):
            one, other = self.random.choice("abc"), self.random.choice("abc")
            epoch = self.random.randint(max(self.begun - 1, 1), self.begun + 1)
            if self.try_step(step.format(one=one, other=other, number=number, epoch=epoch)) and "record" in step:
                self.begun = max(self.begun, epoch)

    def drain(self) -> None:
        """End every turn, deliver and consume everything."""
        self.try_step("timeout")
        channels = [f"{one}->{other}" for one in "abc" for other in "abc"]
        steps = [f"end {one}" for one in "abc"] + [
            f"{verb} {channel}" for channel in channels for verb in ("marker", "deliver")
        ]
        steps += [f"turn {one}" for one in "abc"]
        while sum(self.try_step(step) for step in steps):
            pass


@pytest.mark.parametrize("protocol", [MARKERS, *PROTOCOLS])
def test_whatever_a_script_does_its_cuts_are_right_and_every_message_takes_effect_once(protocol: str) -> None:
    """And a command that is refused changes nothing: the script without it gives the same trace."""
    said = ""
    for seed in range(RUNS_PER_PROTOCOL):
        script = RandomScript(protocol, seed)
        script.grow()
        script.drain()
        events = script.fleet.book.trace().events
        sent = sorted(event.message for event in events if isinstance(event, MessageSent))
        consumed = sorted(event.message for event in events if isinstance(event, MessageReceived))
        assert sent == consumed == sorted(name for agent in script.fleet.agents.values() for name in agent.state)
        text = run_script("\n".join(script.lines))
        assert text.partition("----\n")[2].splitlines() == script.trace
        said += text
    assert "WRONG" not in said and "ProtocolError" not in said
    assert [pattern for pattern in expected(protocol) if not re.search(pattern, said)] == []


def test_the_books_find_a_channel_state_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search above can fail."""
    monkeypatch.setattr(ChandyLamportCore, "_record_message", lambda self, channel, payload: None)
    scripts = [RandomScript(MARKERS, seed) for seed in range(RUNS_PER_PROTOCOL)]
    for script in scripts:
        script.grow()
    assert any("IS WRONG: really in transit" in line for script in scripts for line in script.trace)


def expected(protocol: str) -> list[str]:
    """Patterns of lines, or the test above would have tested little."""
    always = [r"Restore\(checkpoint=[1-9]", r"Deliver\("]
    match protocol:
        case "markers":
            return [*always, r"CompleteSnapshot\(", r"in transit: \w->", r"SendAgain\("]
        case "chandy-lamport":
            return [
                *always,
                r"CompleteEpoch\(",
                r"AbortEpoch\(",
                r"in transit: \w->",
                r"Enqueue\(",
                r"epochs=\[\d, \d\]",
            ]
        case "koo-toueg":
            return [*always, "MakePermanent", "Discard", "is_willing=no", "is_participant=no", "=live", "ParkMessage"]
        case "uncoordinated":
            return [*always, "basis=basic", "=live", "=0"]
        case _:
            return [*always, "basis=basic", "basis=forced", "=live"]


# -- wrong commands ---------------------------------------------------------------------------------------------------

WRONG = {
    "send a b m1": "line 1: there is no fleet: write `fleet AGENT AGENT …` first",
    "fleet": "line 1: 'fleet' is not understood: write fleet AGENT",
    "fleet a a": "line 1: 'fleet a a' names no fleet: give up to 26 agents different names",
    "fleet A": "names no fleet",
    "fleet a all": "names no fleet",
    "fleet a b protocol=raft": "there is no protocol 'raft': use one of markers, chandy-lamport, koo-toueg",
    "fleet a b channels=a->b": "channels of chandy-lamport open by themselves",
    "fleet a b protocol=markers channels=a->c": "'a->c' is no channel of this fleet",
    "fleet a b size=3": "is not understood: write fleet",
    "fleet a b\nfly a": "line 2: 'fly' is no command of this fleet: use one of abort, arrive, begin,",
    "fleet a b\nsend a b": "line 2: 'send a b' is not understood: write send AGENT AGENT MESSAGE",
    "fleet a b\nsend a b m1 at=5": "is not understood: write send",
    "fleet a b\nsend a b =": "line 2: '=' is no option",
    "fleet a b\nrecord a": "is not understood: write record AGENT,AGENT,… epoch=N",
    "fleet a b\nrecord a epoch=1 epoch=1": "is no option: write each once",
    "fleet a b\nrecord a epoch=zero": "epoch=zero is no number: write epoch=1, 2, 3",
    "fleet a b\nrecord a epoch=0": "epoch=0 is no number",
    "fleet a b\nrecord a epoch=2": "epoch 2 has not begun: epoch 1 comes first",
    "fleet a b\nbegin epoch=2": "epoch 1 is next",
    "fleet a b\nrecord c epoch=1": "there is no agent 'c': the fleet has a, b",
    "fleet a b\nsend a c m1": "there is no agent 'c'",
    "fleet a b\nsend a b m1\nsend b a m1": "line 3: there is a message m1 already",
    "fleet a b\nstart a\nsend a b m1\nsend b a m1": "there is a message m1 already",
    "fleet a b\ndeliver a-b": "'a-b' is no channel: write AGENT->AGENT",
    "fleet a b\ndeliver a->c": "'a->c' is no channel",
    "fleet a b\ndeliver a->b": "no message is on its way from a to b: send one first",
    "fleet a b\nmarker a->b": "no marker is on its way from a to b: record a first",
    "fleet a b\nsend a b m1\nrecord a epoch=1\nmarker a->b": "m1 stands before the marker on a->b: deliver it first",
    "fleet a b\nturn a": "the mailbox of a is empty",
    "fleet a b\nend a": "no turn of a runs",
    "fleet a b\nstart a\nstart a": "a turn of a runs: end it with `end a`",
    "fleet a b\nreport a epoch=1": "epoch 1 is not open: begin it first",
    "fleet a b\nbegin epoch=1\nreport a epoch=1": "a has not recorded epoch 1: `record` it first",
    "fleet a b\nabort epoch=1": "epoch 1 is not open",
    "fleet a b\njoin a": "there is, or was, an agent a",
    "fleet a b c\nstop c\nsend c a m1": "c has left the fleet: name another agent",
    "fleet a b c\nbegin epoch=1\nstop c\nsend c a m1": "c has left and sends nothing more",
    "fleet a b c\nbegin epoch=1\nstop c\nstart c": "c has left and takes no more turns",
    "fleet a b\ncheckpoint a": "'checkpoint' is no command of this fleet",
    "fleet a b protocol=markers\narrive a->b": "'arrive' is no command of this fleet",
    "fleet a b protocol=markers\nsend a a m1": "there is no channel a->a",
    "fleet a b protocol=markers\nrecord a epoch=1\nsend a b m1\ndeliver a->b": "the marker 1 stands first on a->b",
    "fleet a b protocol=bcs\nrecord a epoch=1": "'record' is no command of this fleet",
    "fleet a b protocol=bcs\nstart b\ncrash a": "a turn of b runs, and survivors freeze between turns",
    "fleet a b protocol=koo-toueg\nsend b a m1\ndeliver b->a\nstart b\ncheckpoint a\nstart a": (
        "line 6: a is blocked until the round is decided and takes no turn: use `arrive`"
    ),
    "fleet a b protocol=koo-toueg\ntimeout": "no round is open",
    "fleet a b protocol=koo-toueg\nstart a\ncheckpoint a\ncheckpoint b": "round 1 is open",
    "fleet a b\nsend a b m1\nrecord a,b epoch=1\novertake a->b\nshow b": "the core of b has raised an error",
    "----": "line 1: no command stands above this ----",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_command_gives_one_sentence_with_its_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_script(text)
    sentence = str(caught.value)
    assert WRONG[text] in sentence
    assert re.match(r"line \d+: ", sentence) and "\n" not in sentence and not sentence.endswith(".")


def test_every_error_of_the_script_package_is_expected_above() -> None:
    """`command.error("…` and its kin, by the words around what is filled in."""
    folder = Path(__file__).resolve().parents[2] / "sim" / "script"
    raised = "\n".join(WRONG.values())
    missing = []
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "error":
                words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                texts = [
                    word.strip(" :'`").partition(":")[0] for word in words if isinstance(word, str) and len(word) > 8
                ]
                if texts and not any(text in raised for text in texts):
                    missing.append(f"{path.name}:{node.lineno} {texts}")
    assert not missing, "\n".join(missing)


def test_a_timeout_frees_a_blocked_agent() -> None:
    blocked = ["fleet a b protocol=koo-toueg", "send b a m1", "deliver b->a", "start b", "checkpoint a", "send a b m2"]
    trace = trace_of(*blocked, "timeout")
    assert trace[-3:] == [
        "coordinator: Decide(is_committed=no)",
        "a: Discard(round=1)",
        "a: SendMessage(m2, to=b, number=1)",
    ]


def test_a_message_to_an_agent_that_has_left_is_a_dead_letter() -> None:
    """While an epoch needs the agent its core goes on recording: m1 is channel state, and nobody consumes it."""
    trace = trace_of(
        "fleet a b c",
        "send a c m1",
        "begin epoch=1",
        "stop c",
        "record a,b,c epoch=1",
        "deliver a->c",
        "report a,b,c epoch=1",
    )
    assert trace[-2:] == ["epoch 1: cut a=1 b=1 c=1; in transit: a->c m1", "c: Go()"]
    assert "c: DiscardMessage(m1)" in trace and "c: Deliver(m1)" not in trace


def test_who_left_before_an_epoch_stays_away_and_who_left_after_comes_back() -> None:
    before = ["fleet a b c", "send c a m1", "stop c", "record a,b epoch=1", "arrive c->a", "report a,b epoch=1"]
    assert trace_of(*before, "crash a")[-4:] == [
        "coordinator: recovery to epoch 1",
        "a: Restore(checkpoint=1, state=[])",
        "b: Restore(checkpoint=1, state=[])",
        "a: Enqueue(m1)",
    ]
    after = ["fleet a b c", "record a,b,c epoch=1", "report a,b,c epoch=1", "stop c", "crash a"]
    assert trace_of(*after)[-1] == "c: Restore(checkpoint=1, state=[])"


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_checks_and_rewrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new.txt"
    path.write_text(EXAMPLE.partition("----")[0])
    assert main([str(path)]) == 6
    assert "+b: Deliver(m1)" in capsys.readouterr().out
    assert main(["--rewrite", str(path)]) == 0
    assert path.read_text() == EXAMPLE
    assert main([str(path)]) == 0
    path.write_text("fly a\n")
    assert main([str(path)]) == 2
    assert capsys.readouterr().err == "new.txt, line 1: there is no fleet: write `fleet AGENT AGENT …` first\n"
    assert main([]) == main(["--what"]) == main([str(tmp_path / "none.txt")]) == 2
