"""The Epochs screen: how the last ones ended, what took their time, and which host was last. Read from the log, so it outlives every coordinator."""

from collections.abc import Sequence

import msgspec

from snapline.diagrams.style import px
from snapline.view.figures import NOTHING, age, count, plural, seconds, size
from snapline.view.frame import section, table
from snapline.view.links import Targets, shown_epochs
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.tones import pill

BAR, GAP, HEIGHT = 5, 1, 120
"""Lengths in the chart, in its own units."""

PHASES = (
    ("start", "start_delay_s", "waited for a turn to end"),
    ("capture", "capture_s", "its state was captured"),
    ("alignment", "alignment_s", "waited for what other agents had sent before"),
    ("store", "store_s", "stored"),
)
"""Class, figure and description of each phase, in the order of the phases."""

COLUMNS = (
    ("Epoch", ""),
    ("Begun", ""),
    ("Why", ""),
    ("Ended", ""),
    ("Took", "number"),
    ("New", "number"),
    ("Full", "number"),
    ("In transit", "number"),
    ("Last, and why", "wide"),
)


class PartFacts(msgspec.Struct, frozen=True):
    """One host's part; times in seconds, None: its release does not report them."""

    host: str = ""
    agent: str = ""
    after_s: float = 0.0
    start_delay_s: float | None = None
    capture_s: float | None = None
    alignment_s: float | None = None
    store_s: float | None = None

    def phases(self) -> list[tuple[str, float, str]]:
        """Return the known phases: class, time, words."""
        found = [(name, getattr(self, figure), words) for name, figure, words in PHASES]
        return [(name, time_s, words) for name, time_s, words in found if time_s is not None]


class EpochFacts(msgspec.Struct, frozen=True):
    """One epoch that has ended; None: unknown."""

    epoch: int = 0
    status: str = ""
    plan: int = 0
    trigger: str = ""
    begun_s: float = 0.0
    took_s: float = 0.0
    reason: str = ""
    state_bytes: int | None = None
    channel_state_messages: int | None = None
    new_bytes: int | None = None
    last: PartFacts | None = None
    late: PartFacts | None = None

    @property
    def is_aborted(self) -> bool:
        """Return whether it was aborted: nothing of it is kept."""
        return self.status == "aborted"


class EndedEpochs(msgspec.Struct, frozen=True):
    """Ended epochs as the coordinator's log has them, oldest first."""

    protocol: str = ""
    epochs: tuple[EpochFacts, ...] = ()


def epochs_body(document: dict[str, object]) -> Markup:
    """Draw the screen of what `snapline snapshot history -o json` prints."""
    history = msgspec.convert(document, EndedEpochs)
    title = tag("div", tag("h1", "Epochs"), class_="title")
    if not history.epochs:
        return join([title, tag("p", "No epoch has ended yet.", class_="quiet")])
    targets = Targets(epochs=shown_epochs(document))
    rows = [_row(epoch, targets) for epoch in reversed(history.epochs)]
    aborted = sum([epoch.is_aborted for epoch in history.epochs])
    told = f"{plural(len(history.epochs), 'epoch')}, {aborted:,} aborted"
    chart = section("course", "How long they took", _chart(history.epochs), _legend(history.epochs))
    return join([title, chart, section("ended", told, table(COLUMNS, rows, label="Epochs that have ended"))])


def no_history() -> Markup:
    """Draw the notice that the coordinator is of an older release."""
    told = "This coordinator keeps no history of epochs: it is of an older release. `snapline snapshot list` has what is in the store."
    return join([tag("div", tag("h1", "Epochs"), class_="title"), tag("p", told, class_="strip warn")])


# ---- the chart ------------------------------------------------------------------------------------------------------


def _chart(epochs: Sequence[EpochFacts]) -> Markup:
    """Draw a bar for each, oldest first. The longest complete one fills the height: an aborted one may have waited for minutes."""
    most_s = max([epoch.took_s for epoch in epochs if not epoch.is_aborted], default=0.0)
    most_s = most_s or max([epoch.took_s for epoch in epochs]) or 1.0
    bars = [_bar(place * (BAR + GAP), epoch, most_s) for place, epoch in enumerate(epochs)]
    box = f"0 0 {max(60, len(epochs)) * (BAR + GAP)} {HEIGHT}"
    label = f"Duration of {plural(len(epochs), 'epoch')}, up to {seconds(most_s)}; the table has the figures"
    return tag("svg", *bars, class_="epochs", viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


def _bar(x: int, epoch: EpochFacts, most_s: float) -> Markup:
    about = tag("title", f"epoch {epoch.epoch}: {epoch.status}, {seconds(epoch.took_s)}")
    whole = min(HEIGHT, max(1.0, HEIGHT * epoch.took_s / most_s))
    if epoch.is_aborted:
        return tag("g", about, _part(x, HEIGHT - whole, whole, "aborted"))
    parts, y = [_part(x, HEIGHT - whole, whole, "rest")], float(HEIGHT)
    for name, time_s, _ in epoch.last.phases() if epoch.last is not None else ():
        height = min(HEIGHT * time_s / most_s, y - (HEIGHT - whole))
        y -= height
        parts.append(_part(x, y, height, name))
    return tag("g", about, *parts)


def _part(x: int, y: float, height: float, name: str) -> Markup:
    return tag("rect", x=x, y=px(y), width=BAR, height=px(height), class_=name)


def _legend(epochs: Sequence[EpochFacts]) -> Markup:
    names = [
        *[(name, f"the last host {words}") for name, _, words in PHASES],
        ("rest", "the coordinator, and the way to it"),
    ]
    marks = [tag("span", tag("i", class_=f"mark {name}"), words) for name, words in (*names, ("aborted", "aborted"))]
    unknown = any(epoch.last is None and not epoch.is_aborted for epoch in epochs)
    more = "Of epochs that no host reports, made of checkpoints that agents take on their own, phases are not known."
    return tag("p", *marks, f" {more}" if unknown else None, class_="legend quiet")


# ---- the table ------------------------------------------------------------------------------------------------------


def _row(epoch: EpochFacts, targets: Targets) -> Markup:
    figures = (
        seconds(epoch.took_s),
        size(epoch.new_bytes),
        size(epoch.state_bytes),
        count(epoch.channel_state_messages),
    )
    cells = [
        tag("td", targets.epoch(epoch.epoch)),
        tag("td", age(epoch.begun_s)),
        tag("td", epoch.trigger),
        tag("td", pill("epoch", epoch.status)),
    ]
    cells += [tag("td", figure, class_="number") for figure in figures]
    return tag("tr", *cells, tag("td", _why(epoch), class_="wide"))


def _why(epoch: EpochFacts) -> Child:
    last, late = epoch.last, epoch.late
    said = [f"{epoch.reason}."] if epoch.reason else []
    if last is None:
        return said[0] if said else NOTHING
    said.append(f"{last.host} reported last, {_ms(last.after_s)} after the begin{_longest(last)}.")
    if late is not None and late.host != last.host and late.agent:
        took_s = (late.start_delay_s or 0.0) + (late.capture_s or 0.0)
        said.append(f"Recorded latest: {late.agent} on {late.host}, after {_ms(took_s)}.")
    return " ".join(said)


def _longest(last: PartFacts) -> str:
    """Return what took most of a host's time."""
    phases = last.phases()
    if not phases:
        return "; its release does not say why"
    _, time_s, words = max(phases, key=lambda phase: phase[1])
    agent = f" {last.agent}" if last.agent else " it"
    return (
        f":{agent} {words} for {_ms(time_s)}" if words.startswith("waited") else f":{agent}, {words} in {_ms(time_s)}"
    )


def _ms(time_s: float) -> str:
    return f"{time_s * 1000:.1f} ms" if time_s < 1 else seconds(time_s)
