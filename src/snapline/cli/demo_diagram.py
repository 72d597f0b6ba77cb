"""The demo's space-time picture: some agents of every host around the kill, from the hosts' own traces."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from snapline.diagrams.scene import Arrow, Band, Front, Mark, Scene, Sign, beside, clock
from snapline.diagrams.svg import draw
from snapline.storage.store.store import Store

AGENTS_PER_HOST = 3
"""Agents shown of each host. Twelve lines are readable; the diagram shows all traced messages between them."""

MESSAGES_MAX = 150
"""Largest number of arrows; more would hide each other. Those nearest to the cut are kept."""

BEFORE_NS, AFTER_NS = 900_000_000, 300_000_000
"""Time shown before the first checkpoint of the cut, and after the recovery."""

TraceLine = Mapping[str, object]


def draw_recovery(
    folder: Path, *, host: str, line: int, killed_ns: int, plan: Mapping[str, object], path: Path
) -> None:
    """Write the space-time diagram of one recovery as SVG."""
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
                words=(f"epoch {epoch}", _seconds(time_ns, start_ns)),
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
            Sign(name, killed_ns, "kill", f"SIGKILL to {host}, {_seconds(killed_ns, start_ns)}") for name in host_agents
        ],
        meanings={"cut": f"cut of epoch {line}", "kill": "killed", "band undone": "undone by the recovery"},
        values={"start_ns": window[0], "end_ns": window[1]},
    )
    path.write_text(draw(scene), encoding="utf-8")


def time_ns_of(written: object) -> int:
    """Convert a time from a document to nanoseconds since 1970."""
    return round(datetime.fromisoformat(str(written)).timestamp() * 1e9)


def _placement(folder: Path, epoch: int) -> dict[str, str]:
    """Return agent → host from the epoch's manifest; empty for the initial states."""
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
    """Yield the lines of all hosts' traces. The last line of a killed host may be incomplete."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _records(trace: list[TraceLine], chosen: list[str]) -> dict[str, dict[int, int]]:
    """Return agent → epoch → time of its checkpoint."""
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
) -> list[Arrow]:
    """Return arrows for the traced messages between the chosen agents.

    A message undone by the plan is sent again under the same number. So a receive after `undone_ns` does not belong to a send before it.
    """
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


def _classified(bare: Arrow, cut: Mapping[str, int], undone_ns: int, origin_ns: int) -> Arrow:
    state = beside(cut, bare)
    if state == "ordinary" and cut.get(bare.sender, undone_ns) < (bare.sent or 0) < undone_ns:
        state = "undone"
    meaning = {"ordinary": "", "in-transit": "in transit"}.get(state, state)
    arrival = f"received {_seconds(bare.received[0], origin_ns)}" if bare.received else "never received"
    return replace(bare, state=state, words=(meaning, f"sent {_seconds(bare.sent or 0, origin_ns)}, {arrival}"))


def _seconds(time_ns: float, origin_ns: int) -> str:
    return f"{(time_ns - origin_ns) / 1e9:.6f} s"
