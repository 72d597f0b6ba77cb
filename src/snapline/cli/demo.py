"""`snapline demo` runs a real workload, kills a host and the coordinator's leader meanwhile, and shows that the result is exact.

The work is PageRank over the import graph of a Python source tree (`examples/pagerank.py`). PageRank's total mass is counted in integers,
so an inconsistency of a single unit can be detected. A space-time diagram shows some agents of every host around the time of the kill. The
diagram is drawn from the hosts' own traces.
"""

import asyncio
import contextlib
import importlib.util
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapline.cli.command import Display, command
from snapline.cli.output import Document, DocumentTables, OutputFormat, Printer, document, rows_of
from snapline.cli.progress import FleetProgress
from snapline.cli.ui import ViewOptions, shown_in_browser
from snapline.errors import SnaplineError, UnknownOutcomeError, UsageError
from snapline.folders import make_private
from snapline.protocols.names import is_autonomous, mode_of

if TYPE_CHECKING:
    from snapline.agent_runtime.snapshots.snapshot_cut import Cut
    from snapline.deploy.local import Ending, LocalFleet
    from snapline.diagrams.scene import Arrow
    from snapline.examples.import_graph import ImportGraph
    from snapline.messages.coordinator_client import CoordinatorClient
    from snapline.messages.status import FleetStatus
    from snapline.storage.store.store import Store


@command
def demo(
    display: Display,
    view: ViewOptions,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="DIR",
            help="Folder of the Python source to rank.",
            show_default="the standard library's own",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Folder for all files, which is kept.", show_default="a temporary folder"
        ),
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", min=2, metavar="N", help="Number of host processes.")] = 4,
    protocol: Annotated[
        str, typer.Option("--protocol", metavar="NAME", help="Checkpointing protocol; an unknown name lists all.")
    ] = "chandy-lamport",
) -> None:
    """Rank modules on several hosts, kill a host and the coordinator's leader, and compare the ranks.

    The ranks are compared with those of an undisturbed run.
    """

    raise typer.Exit(
        run_demo(
            source=source,
            data_dir=data_dir,
            hosts=hosts,
            protocol=protocol,
            output=display.printer().format.value,
            ui_port=view.port(),
        )
    )


FLEET = "snapline.examples.pagerank:fleet"
EPOCHS_BEFORE_KILL = 5
TURNS_BEFORE_KILL = 20_000
SECONDS_BEFORE_KILL = 4.0
"""Conditions that must hold before the host is killed. By then every host works, and mass is in transit everywhere."""

COORDINATORS = 3
"""Number of coordinator replicas. Two of them continue without the third."""

SECONDS_TO_LEADER_KILL = 4.0
"""Time in seconds between the recovery from the host's loss and the kill of the leader. The fleet takes more snapshots during this time."""

WAIT_LIMIT_S = 300.0
"""Time limit in seconds for each wait. The demo takes half a minute, and also completes on a machine that is ten times slower."""

TRACE_EVERY = 25
"""N, if every N-th message of each channel is traced for the diagram."""


def run_demo(
    *, source: str | None, data_dir: Path | None, hosts: int, protocol: str, output: str, ui_port: int | None = None
) -> int:
    """Run the demo. Return the exit code, which is 0 if all results are exact, otherwise 1.

    `ui_port` is the port of the browser view, or None for no view.
    """
    mode_of(protocol)  # raises an error for an unknown name before anything is started
    if importlib.util.find_spec("numpy") is None:
        raise UsageError("the demo computes with NumPy, which is not installed: pip install 'snapline[numpy]'")
    printer = Printer(OutputFormat(output))
    with _folder(data_dir) as folder:
        result = asyncio.run(_Demo(printer, folder, hosts, protocol, source, ui_port).run())
    printer.result(result, _show)
    return 0 if result["exact"] else 1


@contextlib.contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        make_private(data_dir)
        yield data_dir
        return
    yield Path(tempfile.mkdtemp(prefix="snapline-demo-"))


class _Demo:
    """One run of the demo, which injects the faults and collects the results."""

    def __init__(
        self, printer: Printer, folder: Path, hosts: int, protocol: str, source: str | None, ui_port: int | None
    ) -> None:
        self._say = printer.progress
        self._progress = FleetProgress(printer)
        self._folder = folder
        self._host_count = hosts
        self._protocol = protocol
        self._source = source
        self._ui_port = ui_port
        self._started_ns = 0
        self._pinned_lines: set[int] = set()
        self._result: dict[str, object] = {}

    async def run(self) -> dict[str, object]:
        from snapline.deploy.local import LocalFleet
        from snapline.examples.import_graph import read_tree, write_graph
        from snapline.messages.coordinator_client import CoordinatorClient
        from snapline.security.transport import Security

        graph = read_tree(self._source)
        path = self._folder / "graph.json"
        write_graph(graph, path)
        self._describe_graph(graph)
        fleet = LocalFleet(
            data_dir=self._folder,
            fleet=FLEET,
            hosts=self._host_count,
            coordinators=COORDINATORS,
            arguments=self._arguments(),
            trace_every=TRACE_EVERY,
            on_note=self._progress.note,
            on_status=self._on_status,
        )
        started_s, self._started_ns = time.monotonic(), time.time_ns()
        async with fleet:
            client = CoordinatorClient(fleet.address, Security.loopback())
            try:
                async with shown_in_browser(fleet, self._ui_port, self._progress):
                    ending = await _run_during(fleet.wait(WAIT_LIMIT_S), self._inject_faults(fleet, client))
            finally:
                self._progress.end()
                await client.close()
        self._result["elapsed_s"] = round(time.monotonic() - started_s, 1)
        if ending.outcome != "stopped":
            raise SnaplineError(f"the fleet failed: {ending.reason}; see {self._folder}/logs")
        self._judge(graph, ending.epoch)
        return document("DemoResult", **self._result, data_dir=str(self._folder))

    def _arguments(self) -> dict[str, str]:
        return {"graph": str(self._folder / "graph.json"), "protocol": self._protocol}

    def _on_status(self, status: "FleetStatus") -> None:
        self._progress.status(status)
        self._result["epochs_completed"] = status.epochs_completed

    def _describe_graph(self, graph: "ImportGraph") -> None:
        edges = graph.edge_count()
        self._result["graph"] = {
            "modules": len(graph.modules), "imports": edges, "unparsed": len(graph.unparsed),
            "source": self._source or "the standard library of this Python",
        }  # fmt: skip
        self._say(
            f"import graph of {self._source or 'the standard library'}: {len(graph.modules):,} modules, {edges:,} "
            f"imports, {len(graph.unparsed)} files do not parse"
        )

    # ---- faults --------------------------------------------------------------------------------

    async def _inject_faults(self, fleet: "LocalFleet", client: "CoordinatorClient") -> None:
        await self._wait(client, self._is_at_work)
        await asyncio.sleep(SECONDS_BEFORE_KILL)
        await self._kill_host(fleet, client, "h3" if "h3" in fleet.hosts else fleet.hosts[-1])
        await asyncio.sleep(SECONDS_TO_LEADER_KILL)
        await self._kill_leader(fleet, client)

    def _is_at_work(self, status: "FleetStatus") -> bool:
        """Return whether the fleet has made enough progress for a host to be killed.

        For autonomous protocols, progress is measured in turns, because the recovery line may not advance.
        """
        if is_autonomous(self._protocol):
            return sum(host.turns for host in status.hosts) >= TURNS_BEFORE_KILL
        return bool(status.epochs_completed >= EPOCHS_BEFORE_KILL)

    async def _wait(self, client: "CoordinatorClient", is_there: "Callable[[FleetStatus], bool]") -> None:
        deadline = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(SnaplineError):
                status = await client.status()
                if is_there(status) or status.phase in ("finished", "failed"):
                    return
            await asyncio.sleep(0.05)
        raise UnknownOutcomeError(f"the fleet did not go on within {WAIT_LIMIT_S:g} s; see {self._folder}/logs")

    async def _kill_host(self, fleet: "LocalFleet", client: "CoordinatorClient", host: str) -> None:
        plans = len(rows_of(await client.recovery_history(), "recoveries"))
        self._progress.note(f"SIGKILL to host {host}")
        killed_ns = time.time_ns()
        fleet.kill(host)
        plan = await self._wait_for_plan(client, plans)
        line = int(str(plan["line_epoch"]))
        with contextlib.suppress(SnaplineError):
            self._account_for_line(line)
        detect_s, recover_s = _seconds_after(killed_ns, plan["suspected"]), _seconds_after(killed_ns, plan["done"])
        self._result["host_kill"] = {
            "host": host, "at_s": self._since_start(killed_ns), "line_epoch": line, "detected_after_s": detect_s, "recovered_after_s": recover_s,
        }  # fmt: skip
        self._progress.note(f"detected after {detect_s:.2f} s, recovered to epoch {line} after {recover_s:.2f} s")
        self._draw(host, line, killed_ns, plan)

    async def _wait_for_plan(self, client: "CoordinatorClient", plans: int) -> "Document":
        deadline = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(SnaplineError):
                recoveries = rows_of(await client.recovery_history(), "recoveries")
                if len(recoveries) > plans:
                    self._pin_line(int(str(recoveries[-1]["line_epoch"])))
                    if recoveries[-1].get("done"):
                        return recoveries[-1]
            await asyncio.sleep(0.02)
        raise UnknownOutcomeError(f"no recovery within {WAIT_LIMIT_S:g} s; see {self._folder}/logs")

    async def _kill_leader(self, fleet: "LocalFleet", client: "CoordinatorClient") -> None:
        status = await client.status()
        if status.phase != "running":
            return
        leader = status.leader
        self._progress.note(f"SIGKILL to {leader}, which leads the coordinator's {COORDINATORS} replicas")
        killed_s, killed_ns = time.monotonic(), time.time_ns()
        fleet.kill(leader)
        await self._wait(client, lambda now: now.term > status.term)
        answered_s = time.monotonic() - killed_s
        successor = (await client.status()).leader
        await self._wait(client, lambda now: now.epochs_completed > status.epochs_completed)
        completed_s = time.monotonic() - killed_s
        self._result["leader_kill"] = {
            "replica": leader, "at_s": self._since_start(killed_ns), "new_leader": successor,
            "new_leader_after_s": round(answered_s, 3), "next_epoch_after_s": round(completed_s, 3),
        }  # fmt: skip
        self._progress.note(
            f"{successor} led {answered_s:.2f} s after the kill; the next epoch was complete after {completed_s:.2f} s"
        )

    def _since_start(self, time_ns: int) -> float:
        return round((time_ns - self._started_ns) / 1e9, 1)

    # ---- results ------------------------------------------------------------------------------------------

    def _cut(self, epoch: int) -> "Cut":
        from snapline.agent_runtime.fleet import load_fleet
        from snapline.agent_runtime.snapshots.snapshot_cut import load_cut

        return load_cut(self._store(), epoch, load_fleet(FLEET, self._arguments()))

    def _store(self) -> "Store":
        from snapline.storage.store.store import Store

        return Store.open(str(self._folder / "store"))

    def _pin_line(self, line: int) -> None:
        """Pin the snapshot at the recovery line.

        A recovery plan that has not finished keeps this snapshot. On a slow machine, however, ten newer epochs may complete before the demo
        reads the snapshot.
        """
        from snapline.storage.store.store import Holds

        if line not in self._pinned_lines:
            with contextlib.suppress(SnaplineError):
                Holds(self._store(), now_s=time.time).pin(line)
                self._pinned_lines.add(line)

    def _account_for_line(self, line: int) -> None:
        """Record the total mass in the cut at the recovery line."""
        from snapline.examples import pagerank

        account = pagerank.account(self._cut(line))
        self._result["line"] = {
            "epoch": line, "messages_in_transit": account.messages, "mass_in_states": account.in_states,
            "mass_in_transit": account.in_transit, "mass": account.in_states + account.in_transit,
            "mass_expected": account.expected, "exact": account.is_exact,
        }  # fmt: skip

    def _draw(self, host: str, line: int, killed_ns: int, plan: "Document") -> None:
        path = self._folder / "spacetime.svg"
        draw_recovery(self._folder, host=host, line=line, killed_ns=killed_ns, plan=plan, path=path)
        self._result["picture"] = str(path)

    def _judge(self, graph: "ImportGraph", epoch: int) -> None:
        from snapline.examples import pagerank

        cut = self._cut(epoch)
        account, comparison = pagerank.account(cut), pagerank.compare(cut, graph)
        line = self._result.get("line")
        is_line_exact = isinstance(line, dict) and bool(line["exact"])
        self._result["final"] = {
            "epoch": epoch, "mass": account.in_states + account.in_transit, "mass_expected": account.expected,
            "exact": account.is_exact, "difference_max": comparison.difference_max, "bound": comparison.bound,
        }  # fmt: skip
        self._result["exact"] = is_line_exact and account.is_exact and comparison.is_within
        self._result["top"] = [{"module": name, "rank": rank} for name, rank in pagerank.top_modules(cut, graph)]


async def _run_during(end: "Awaitable[Ending]", work: Awaitable[None]) -> "Ending":
    """Run `work` while a fleet runs, and return how the fleet ended.

    If the fleet's launcher fails, cancel `work` and raise the launcher's error.
    """
    ending, working = asyncio.ensure_future(end), asyncio.ensure_future(work)
    try:
        await asyncio.wait({ending, working}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done() or ending.exception() is None:
            await working
        return await ending
    finally:
        for task in (ending, working):
            task.cancel()
        await asyncio.gather(ending, working, return_exceptions=True)


def _seconds_after(start_ns: int, end: object) -> float:
    return round((time_ns_of(end) - start_ns) / 1e9, 3)


def _show(result: Document, tables: DocumentTables) -> None:
    graph, kill, final = _part(result, "graph"), _part(result, "host_kill"), _part(result, "final")
    line, leader = _part(result, "line"), _part(result, "leader_kill")
    mass, expected = int(str(line.get("mass", 0))), int(str(final["mass_expected"]))
    lost = int(str(line.get("mass_in_transit", 0)))
    tables.fields(
        [
            ("graph", f"{graph['modules']:,} modules, {graph['imports']:,} imports, {graph['unparsed']} unparsed"),
            ("run", f"{result['elapsed_s']} s, {result['epochs_completed']} epochs completed"),
            ("host killed", f"{kill['host']}, SIGKILL after {kill['at_s']} s; detected after {kill['detected_after_s']} s"),
            ("recovered", f"after {kill['recovered_after_s']} s, to the cut of epoch {kill['line_epoch']}"),
            ("in that cut", f"{line.get('messages_in_transit', '?')} messages in transit, with {lost / expected:.2%} of the mass"),
            ("mass there", f"{mass:,} of {expected:,} units{_verdict(mass == expected)}"),
            ("mass at the end", f"{final['mass']:,} of {expected:,} units{_verdict(bool(final['exact']))}"),
            ("without channel state", f"a restart from the agents' own saves would have lost {lost:,} units"),
            ("leader killed", f"{leader['replica']}, SIGKILL after {leader['at_s']} s; {leader['new_leader']} led after {leader['new_leader_after_s']} s" if leader else None),
            ("next epoch", f"complete {leader['next_epoch_after_s']} s after that kill" if leader else None),
            ("against sequential", f"largest difference {final['difference_max']:.2e}, bound {final['bound']:.2e}"),
            ("picture", result.get("picture")),
        ]
    )  # fmt: skip
    tables.line()
    tables.table(("TOP MODULES", "RANK"), [(row["module"], f"{row['rank']:.5f}") for row in rows_of(result, "top")])
    tables.line()
    tables.line("exact: every unit of mass is accounted for" if result["exact"] else "NOT EXACT")


def _verdict(is_exact: bool) -> str:
    return " (exact)" if is_exact else " (NOT EXACT)"


def _part(result: Document, name: str) -> dict[str, object]:
    part = result.get(name)
    return dict(part) if isinstance(part, dict) else {}


# -- the space-time picture -------------------------------------------------------------------------------------------

AGENTS_PER_HOST = 3
"""Number of agents shown for each host. Twelve lines are readable, and the diagram shows all traced messages between these agents."""

MESSAGES_MAX = 150
"""Largest number of arrows in the picture, because more arrows would hide each other. The arrows that are nearest in time to the cut are
kept."""

BEFORE_NS, AFTER_NS = 900_000_000, 300_000_000
"""Times in nanoseconds that the picture shows before the cut's first checkpoint and after the recovery."""

TraceLine = Mapping[str, object]


def draw_recovery(
    folder: Path, *, host: str, line: int, killed_ns: int, plan: Mapping[str, object], path: Path
) -> None:
    """Write the space-time diagram of one recovery as SVG."""
    from snapline.diagrams.scene import Band, Front, Mark, Scene, Sign, clock
    from snapline.diagrams.svg import draw

    placement = _placement(folder, line)
    chosen = _choose(placement)
    trace = list(_read(folder / "traces"))
    done_ns = time_ns_of(plan["done"])
    records = _records(trace, chosen)
    around_ns = min((times[line] for times in records.values() if line in times), default=killed_ns)
    start_ns = around_ns - BEFORE_NS
    window = (start_ns, done_ns + AFTER_NS)
    names = {agent: f"{placement[agent]} {agent}" for agent in chosen}
    cut = {names[agent]: times[line] for agent, times in records.items() if line in times}
    host_agents = [names[agent] for agent in chosen if placement[agent] == host]
    arrows = _arrows(trace, names, window, cut, around_ns=around_ns, undone_ns=time_ns_of(plan["committed"]))
    in_transit = sum(arrow.state == "in-transit" for arrow in arrows)
    scene = Scene(
        heading=f"Host {host} is killed; the fleet goes back to the cut of epoch {line}",
        words=f"{len(chosen)} of {len(placement)} agents, {len(arrows)} traced messages, {in_transit} in transit in the cut",
        agents=[names[agent] for agent in chosen],
        first=window[0],
        last=window[1],
        ticks=clock(*window, origin_ns=start_ns),
        marks=[
            Mark(
                agent=names[agent],
                place=time_ns,
                kind="coordinated",
                is_undone=cut.get(names[agent], done_ns) < time_ns < done_ns,
                words=(f"epoch {epoch}", _seconds_text(time_ns, start_ns)),
            )
            for agent, times in records.items()
            for epoch, time_ns in times.items()
        ],
        arrows=arrows,
        fronts=[Front("cut", f"cut of epoch {line}", cut)],
        bands=[
            *(Band(time_ns, killed_ns, "undone", name, "undone by the recovery") for name, time_ns in cut.items()),
            Band(killed_ns, done_ns, "recovery", label="detection and recovery"),
            *(Band(killed_ns, done_ns, "down", name, f"{host} is down") for name in host_agents),
        ],
        signs=[
            Sign(name, killed_ns, "kill", f"SIGKILL to {host}, {_seconds_text(killed_ns, start_ns)}")
            for name in host_agents
        ],
        meanings={"cut": f"cut of epoch {line}", "kill": "killed", "band undone": "undone by the recovery"},
        values={"start_ns": window[0], "end_ns": window[1]},
    )
    path.write_text(draw(scene), encoding="utf-8")


def time_ns_of(written: object) -> int:
    """Convert a time in a document to nanoseconds since 1970."""
    return round(datetime.fromisoformat(str(written)).timestamp() * 1e9)


def _placement(folder: Path, epoch: int) -> dict[str, str]:
    """Return each agent's host according to the epoch's manifest, or an empty dict for epoch 0, which has no manifest."""
    from snapline.storage.store.store import Store

    if epoch == 0:
        return {}
    store = Store.open(str(folder / "store"))
    manifest = store.read_manifest(store.read_ref(epoch), epoch=epoch)
    return {line.agent: line.host for line in manifest.agents}


def _choose(placement: Mapping[str, str]) -> list[str]:
    taken: dict[str, list[str]] = {}
    for agent, host in sorted(placement.items(), key=lambda item: (item[1], len(item[0]), item[0])):
        if len(taken.setdefault(host, [])) < AGENTS_PER_HOST:
            taken[host].append(agent)
    return [agent for agents in taken.values() for agent in agents]


def _read(folder: Path) -> Iterator[TraceLine]:
    """Yield the trace lines of all hosts. Skip the incomplete last line of a host that was killed."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _records(trace: list[TraceLine], chosen: list[str]) -> dict[str, dict[int, int]]:
    """Return the time of each agent's checkpoint for each epoch, in nanoseconds."""
    times: dict[str, dict[int, int]] = {agent: {} for agent in chosen}
    for line in trace:
        epochs = line.get("epochs")
        if line["event"] == "checkpoint" and line["agent"] in times and isinstance(epochs, list):
            for epoch in epochs:
                times[str(line["agent"])][int(epoch)] = int(str(line["time_ns"]))
    return times


def _arrows(
    trace: list[TraceLine],
    names: Mapping[str, str],
    window: tuple[int, int],
    cut: Mapping[str, int],
    *,
    around_ns: int,
    undone_ns: int,
) -> "list[Arrow]":
    """Return an arrow for each traced message between two of the chosen agents.

    A message that the recovery plan has undone is sent again with the same sequence number. So a message that was sent before `undone_ns`
    cannot be matched with a receive event after `undone_ns`.
    """
    from snapline.diagrams.scene import Arrow

    received: dict[str, list[int]] = {}
    for line in trace:
        if line["event"] == "receive":
            received.setdefault(str(line["message"]), []).append(int(str(line["time_ns"])))
    arrows = []
    for line in trace:
        sender, receiver = str(line.get("agent", "")), str(line.get("to", ""))
        if line["event"] != "send" or sender not in names or receiver not in names or sender == receiver:
            continue
        sent_ns = int(str(line["time_ns"]))
        if window[0] <= sent_ns <= window[1]:
            end_ns = undone_ns if sent_ns < undone_ns else window[1]
            times = [time_ns for time_ns in received.get(str(line["message"]), []) if sent_ns <= time_ns <= end_ns]
            bare = Arrow(str(line["message"]), names[sender], names[receiver], sent_ns, tuple(sorted(times)[:1]))
            arrows.append((abs(sent_ns - around_ns), _classified(bare, cut, undone_ns, window[0])))
    arrows.sort(key=lambda pair: pair[0])
    return [arrow for _, arrow in arrows[:MESSAGES_MAX]]


def _classified(bare: "Arrow", cut: Mapping[str, int], undone_ns: int, origin_ns: int) -> "Arrow":
    from msgspec.structs import replace

    from snapline.diagrams.scene import state_at_cut

    state = state_at_cut(cut, bare)
    if state == "ordinary" and cut.get(bare.sender, undone_ns) < (bare.sent or 0) < undone_ns:
        state = "undone"
    meaning = {"ordinary": "", "in-transit": "in transit"}.get(state, state)
    arrival = f"received {_seconds_text(bare.received[0], origin_ns)}" if bare.received else "never received"
    return replace(bare, state=state, words=(meaning, f"sent {_seconds_text(bare.sent or 0, origin_ns)}, {arrival}"))


def _seconds_text(time_ns: float, origin_ns: int) -> str:
    return f"{(time_ns - origin_ns) / 1e9:.6f} s"
