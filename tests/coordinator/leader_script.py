"""Scenario scripts of the whole leader: events in, commands out, as text (`tests/scenarios/leader/*.txt`).

    python -m tests.coordinator.leader_script [--rewrite] FILE…    check scripts, or renew their traces

A script has the form of `sim/script/script_text.py`: commands, `----`, and beneath it everything that the leader wants done, in order:
what it tells whom, what it proposes to the log, what it asks of the store. `<-` is the answer that it gets at once, unless the
class of its command is held.

    leader [hosts=2] [agents=4] [protocol=p] [period_ms=0] [timeout_ms=0] [client=leader]    a fleet's first leader
    successor client=NAME            another leader on the same log; all streams are gone
    running h1,h2                    these hosts join and apply the first plan: shown is nothing of that
    join h1 [instance=NAME]          a host's stream opens, and it does what its Welcome asks for
    apply h1,h2                      hosts have applied the current plan
    report h1,h2 epoch=1             their part of an epoch is durable
    refuse h1 epoch=1 reason=WORD    a host cannot take part
    stored h1 a0=1 a2=1 [round=1]    checkpoints of these agents are durable, with these numbers; `a0.sent=a1:2` and
                                     `a0.received=a1:2` say what has changed on their channels
    frozen h1 [running=a0]           the host stands still, as it was asked to
    answers h1 a0=1                  agents answer the round's questions, each with its tentative checkpoint's number
    live h1 a0=3 request=1           where agents stand: turns since their checkpoint
    stop h1 epoch=1 reached=yes      the answer to EvaluateStop
    leave h1; drop h1; exit h1       the host says goodbye; its stream breaks; a launcher says that its process is over
    snapshot 7; line 1 a0,a1; forget 2 h1       a tool asks, under this number
    restore 3 epoch=1 [drop=yes]     an operator takes the fleet back
    move 4 [drain=h1,h2] [resume=h3] [even=yes]  an operator wants agents elsewhere
    end h1                           an operator wants the host's process to end
    pass 1500 [silent=h1]            so many milliseconds; hosts that have a stream send heartbeats
    hold WriteManifest,CommitPlan; release      commands, or proposals of a kind, are kept waiting; then carried out
    fail WriteManifest reason=WORD   the next such command fails
"""

import sys
from typing import Any

import msgspec
from tests.coordinator.bench import MS, Bench, BenchStore
from tests.kit.checkpoints import Packs, taken
from tests.kit.golden import main, names_of, run_script
from tests.kit.golden import show as show_value

from snapline.agent_runtime.host.checkpoint_writer import write_checkpoints
from snapline.coordinator.leader import events as ev
from snapline.coordinator.leader import events as words
from snapline.coordinator.state.fleet_records import Committed
from snapline.messages import host_messages as msg
from snapline.sim.script.script_text import ScriptCommand

QUIET = (
    ev.TimerFired,
    ev.MessageReceived,
    ev.LeaderStarted,
    ev.StreamClosed,
    ev.SnapshotRequested,
    ev.LineRequested,
    words.ForgetHostRequested,
    words.MovesRequested,
    words.EndHostRequested,
    ev.RestoreRequested,
)
"""Events that stand in the script itself, or that are time."""


class ScriptedStore(BenchStore):
    """A store of packs, whose next calls fail if the script says so.

    Attributes:
        failing: class of a command → why the next one fails.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.packs = Packs()
        self.failing: dict[str, str] = {}
        self._bases: dict[int, tuple[ev.StoredCheckpoint, ...]] = {0: ()}

    def write_manifest(self, command: ev.WriteManifest) -> ev.ManifestWritten:
        reason = self._reason(command)
        return ev.ManifestWritten(command.epoch, "", reason) if reason else super().write_manifest(command)

    def publish(self, command: ev.PublishEpoch) -> ev.EpochPublished:
        reason = self._reason(command)
        return ev.EpochPublished(command.epoch, reason) if reason else super().publish(command)

    def release(self, command: ev.ReleaseEpoch) -> ev.EpochReleased:
        reason = self._reason(command)
        return ev.EpochReleased(command.epoch, reason) if reason else super().release(command)

    def materialise(self, command: ev.MaterialiseLine) -> ev.LineMaterialised:
        if reason := self._reason(command):
            return ev.LineMaterialised(command.epoch, "", error=reason)
        self._bases[command.epoch] = tuple([self._based(x, command.epoch) for x in command.agents])
        return ev.LineMaterialised(command.epoch, f"root-{command.epoch}")

    def scan(self, command: ev.ScanCheckpoints) -> ev.CheckpointsScanned:
        found = [x for plan, stored in self.packs.found.values() if plan == command.plan for x in stored]
        found.sort(key=lambda x: (x.agent, x.number, x.epoch))
        return ev.CheckpointsScanned(command.plan, command.base_epoch, self._bases[command.base_epoch], tuple(found))

    def _reason(self, command: ev.Command) -> str:
        return self.failing.pop(type(command).__name__, "")

    def _based(self, agent: ev.LineAgent, epoch: int) -> ev.StoredCheckpoint:
        known = [x for _, stored in self.packs.found.values() for x in stored if x.agent == agent.agent]
        sent: dict[str, int] = {}
        received: dict[str, int] = {}
        for x in [x for x in known if x.number <= agent.number]:
            sent.update(x.sent)
            received.update(x.received)
        pack = msg.ReportedPack(f"packs/{epoch}", 1, b"")
        return ev.StoredCheckpoint(agent.agent, agent.number, "basic", epoch, pack, sent, received)


class ScriptedLeader(Bench):
    """A leader core whose commands are written down; it is told what a script says."""

    UNANSWERED = ()

    def __init__(self, command: ScriptCommand) -> None:
        options = command.options
        self.trace: list[str] = []
        self.names: dict[int, str] = {}
        self.held_names: tuple[str, ...] = ()
        self.scripted_store = ScriptedStore(self)
        self.reported: dict[str, int] = {}
        super().__init__(
            int(options.get("hosts", "2")),
            agents=int(options.get("agents", "4")),
            period_ns=int(options.get("period_ms", "0")) * MS,
            timeout_ns=int(options.get("timeout_ms", "0")) * MS,
            store=self.scripted_store,
        )
        self.definition = msgspec.structs.replace(self.definition, protocol=options.get("protocol", "p"))

    # ---- commands of a script ---------------------------------------------------------------------------------------

    def do_successor(self, command: ScriptCommand) -> None:
        self.waiting, self.names = [], {}
        self.start_leader(command.options["client"])

    def do_running(self, command: ScriptCommand) -> None:
        self.start_fleet(*names_of(command))
        self.trace = []

    def do_join(self, command: ScriptCommand) -> None:
        host = command.words[0]
        self.attach(host, command.options.get("instance", ""), plan=self.state.plan_number)

    def do_apply(self, command: ScriptCommand) -> None:
        self.apply_plan(*names_of(command))

    def do_report(self, command: ScriptCommand) -> None:
        for host in names_of(command):
            self.report(host, int(command.options["epoch"]))

    def do_refuse(self, command: ScriptCommand) -> None:
        self.say(command.words[0], msg.EpochRefused(int(command.options["epoch"]), command.options["reason"]))

    def do_leave(self, command: ScriptCommand) -> None:
        self.say(command.words[0], msg.Leave())

    def do_drop(self, command: ScriptCommand) -> None:
        self.drop(command.words[0])

    def do_exit(self, command: ScriptCommand) -> None:
        host = command.words[0]
        self.feed(ev.HostExitReported(host, self.state.image.hosts[host].instance, "exit code 1"))

    def do_snapshot(self, command: ScriptCommand) -> None:
        self.feed(ev.SnapshotRequested(int(command.words[0])))

    def do_line(self, command: ScriptCommand) -> None:
        self.feed(ev.LineRequested(int(command.words[0]), (tuple(command.words[1].split(",")),)))

    def do_move(self, command: ScriptCommand) -> None:
        drained, resumed = (tuple(filter(None, command.options.get(key, "").split(","))) for key in ("drain", "resume"))
        is_even = command.options.get("even") == "yes"
        self.feed(words.MovesRequested(int(command.words[0]), drained, resumed, is_even))

    def do_end(self, command: ScriptCommand) -> None:
        self.feed(words.EndHostRequested(command.words[0]))

    def do_forget(self, command: ScriptCommand) -> None:
        self.feed(words.ForgetHostRequested(int(command.words[0]), command.words[1]))

    def do_restore(self, command: ScriptCommand) -> None:
        request, epoch = int(command.words[0]), int(command.options["epoch"])
        self.feed(ev.RestoreRequested(request, f"token-{request}", epoch, "on purpose", "drop" in command.options))

    def do_stop(self, command: ScriptCommand) -> None:
        is_reached = command.options["reached"] == "yes"
        self.say(command.words[0], msg.StopEvaluated(int(command.options["epoch"]), is_reached))

    def do_pass(self, command: ScriptCommand) -> None:
        silent = tuple(command.options.get("silent", "").split(","))
        self.pass_time(int(command.words[0]) / 1000, silent=silent)

    def do_hold(self, command: ScriptCommand) -> None:
        self.held_names = tuple(command.words[0].split(","))

    def do_release(self, command: ScriptCommand) -> None:
        self.held_names = ()
        self.release()

    def do_fail(self, command: ScriptCommand) -> None:
        self.scripted_store.failing[command.words[0]] = command.options["reason"]

    # ---- hosts of logged fleets --------------------------------------------------------------------------------------

    def do_stored(self, command: ScriptCommand) -> None:
        host, options = command.words[0], dict(command.options)
        round_ = int(options.pop("round", "0"))
        numbers = {agent: int(number) for agent, number in options.items() if "." not in agent}
        tables = {name: _table(text) for name, text in options.items() if "." in name}
        basis = "tentative" if round_ else "basic" if all(numbers.values()) else "initial"
        captures = [
            taken(agent, number, basis, round_, (tables.get(f"{agent}.sent", {}), tables.get(f"{agent}.received", {})))
            for agent, number in numbers.items()
        ]
        count = self.reported[host] = self.reported.get(host, 0) + 1
        store: Any = self.scripted_store.packs
        report = write_checkpoints(store, host, self.state.plan_number, captures)
        start = self.state.image.hosts[host].start
        self.say(host, msgspec.structs.replace(report, host_start=start, sequence=count))

    def do_frozen(self, command: ScriptCommand) -> None:
        host = command.words[0]
        asked = [x for x in self.directives(host) if isinstance(x, msg.FreezeAgents)][-1]
        running = tuple(x for x in command.options.get("running", "").split(",") if x)
        start = self.state.image.hosts[host].start
        self.say(host, msg.AgentsFrozen(asked.plan, asked.number, start, running))

    def do_answers(self, command: ScriptCommand) -> None:
        host = command.words[0]
        asked = [x for x in self.directives(host) if isinstance(x, msg.RequestCheckpoints)][-1]
        agents, count = tuple(command.options), len(command.options)
        askers = dict(zip(asked.agents, asked.askers, strict=True))
        answers = msg.CheckpointsAnswered(
            asked.epoch,
            asked.plan,
            self.state.image.hosts[host].start,
            agents,
            (True,) * count,
            (True,) * count,
            tuple(map(int, command.options.values())),
            askers=tuple(askers.get(agent, "") for agent in agents),
        )
        self.say(host, answers)

    def do_live(self, command: ScriptCommand) -> None:
        options = dict(command.options)
        request, names = int(options.pop("request")), tuple(options)
        turns = tuple(map(int, options.values()))
        agents = tuple(range(len(names)))
        live = msg.NumbersReported(request, self.state.plan_number, names, agents, turns=turns)
        self.say(command.words[0], live)

    # ---- what the leader wants done ------------------------------------------------------------------------------------

    def join(self, host: str, *arguments: str, **options: object) -> int:
        self.names[self.sessions + 1] = host
        return super().join(host, *arguments, **options)  # type: ignore[arg-type]  # as they came

    def event_received(self, event: ev.Event) -> None:
        if not isinstance(event, QUIET):
            self.trace.append(f"    <- {_answer(event)}")

    def command_issued(self, command: ev.Command) -> None:
        super().command_issued(command)
        self.trace.append(self._line_of(command))

    def is_held(self, command: ev.Command) -> bool:
        name = type(command.kind if isinstance(command, ev.Propose) else command).__name__
        return name in self.held_names

    def _line_of(self, command: ev.Command) -> str:
        match command:
            case ev.SendDirective():
                hosts = ", ".join([self.names.get(number, str(number)) for number in command.sessions])
                return f"{hosts}: {show(command.directive)}"
            case ev.Propose():
                return f"propose {command.token} of {command.client}: {show(command.kind)}"
            case ev.CloseStream():
                return f"{self.names.get(command.session, command.session)}: CloseStream()"
            case ev.Note():
                return f"{command.level}: {command.text}"
        return show(command)


# ---- text -------------------------------------------------------------------------------------------------------------


def show(value: object) -> str:
    """As the traces of the leader have it."""
    return show_value(value, lambda each: each.path if isinstance(each, msg.ReportedPack) else None)


def _answer(event: ev.Event) -> str:
    """What came back; of a proposal that is committed, what it came to."""
    match event:
        case ev.ProposalEnded(outcome=Committed(result)):
            return show(result).replace(f"{type(result).__name__}(status=", "", 1).removesuffix(")")
    return show(event)


def _table(text: str) -> dict[str, int]:
    return {peer: int(number) for peer, _, number in [part.partition(":") for part in text.split(",")]}


def renew(text: str) -> str:
    """The script with its traces renewed."""
    return run_script(text, "leader", ScriptedLeader)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], renew))
