"""Draw the screen *Epochs*: outcome and phases of the newest epochs, and the host that reported last in each.

The data comes from the log and survives restarts.
"""

from collections.abc import Sequence

import msgspec

from snapline.diagrams.style import px
from snapline.view.display_text import NOTHING, age, count, pill, plural, seconds, size
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.page_elements import Targets, section, shown_epochs, table

BAR, GAP, HEIGHT = 5, 1, 120
"""Width of a bar, gap between bars, and height of the chart, in SVG units."""

PHASES = (
    ("start", "start_delay_s", "waited for a turn to end"),
    ("capture", "capture_s", "its state was captured"),
    ("alignment", "alignment_s", "waited for what other agents had sent before"),
    ("store", "store_s", "stored"),
)
"""CSS class, field and description of each phase of an epoch, in chronological order."""

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
    """One host's part of an epoch. Times are in seconds; None if the host's release does not report them."""

    host: str = ""
    agent: str = ""
    after_s: float = 0.0
    start_delay_s: float | None = None
    capture_s: float | None = None
    alignment_s: float | None = None
    store_s: float | None = None

    def phases(self) -> list[tuple[str, float, str]]:
        """Return CSS class, duration and description of each known phase."""
        all_phases = [(name, getattr(self, figure), label) for name, figure, label in PHASES]
        return [(name, time_s, label) for name, time_s, label in all_phases if time_s is not None]


class EpochFacts(msgspec.Struct, frozen=True):
    """One epoch that has ended. Unknown values are None."""

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
        """Return whether the epoch was aborted and therefore left no data."""
        return self.status == "aborted"


class EndedEpochs(msgspec.Struct, frozen=True):
    """Ended epochs recorded in the coordinator's log, oldest first."""

    protocol: str = ""
    epochs: tuple[EpochFacts, ...] = ()


def epochs_body(document: dict[str, object]) -> Markup:
    """Draw the screen from the output of `snapline snapshot history -o json`."""
    history = msgspec.convert(document, EndedEpochs)
    title = tag("div", tag("h1", "Epochs"), class_="title")
    if not history.epochs:
        return join([title, tag("p", "No epoch has ended yet.", class_="quiet")])
    targets = Targets(epochs=shown_epochs(document))
    rows = [_row(epoch, targets) for epoch in reversed(history.epochs)]
    aborted = sum([epoch.is_aborted for epoch in history.epochs])
    summary = f"{plural(len(history.epochs), 'epoch')}, {aborted:,} aborted"
    chart = section("course", "How long they took", _chart(history.epochs), _legend(history.epochs))
    return join([title, chart, section("ended", summary, table(COLUMNS, rows, label="Epochs that have ended"))])


def no_history() -> Markup:
    """Draw the notice that the coordinator's release is too old to report the history."""
    notice = "This coordinator keeps no history of epochs: it is of an older release. `snapline snapshot list` has what is in the store."
    return join([tag("div", tag("h1", "Epochs"), class_="title"), tag("p", notice, class_="strip warn")])


# ---- the chart ------------------------------------------------------------------------------------------------------


def _chart(epochs: Sequence[EpochFacts]) -> Markup:
    """Draw a bar for each epoch, oldest first.

    The longest complete epoch fills the height, because an aborted epoch may have waited for minutes.
    """
    most_s = max([epoch.took_s for epoch in epochs if not epoch.is_aborted], default=0.0)
    most_s = most_s or max([epoch.took_s for epoch in epochs]) or 1.0
    bars = [_bar(index * (BAR + GAP), epoch, most_s) for index, epoch in enumerate(epochs)]
    box = f"0 0 {max(60, len(epochs)) * (BAR + GAP)} {HEIGHT}"
    label = f"Duration of {plural(len(epochs), 'epoch')}, up to {seconds(most_s)}; the table has the figures"
    return tag("svg", *bars, class_="epochs", viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


def _bar(x: int, epoch: EpochFacts, most_s: float) -> Markup:
    about = tag("title", f"epoch {epoch.epoch}: {epoch.status}, {seconds(epoch.took_s)}")
    bar_height = min(HEIGHT, max(1.0, HEIGHT * epoch.took_s / most_s))
    if epoch.is_aborted:
        return tag("g", about, _part(x, HEIGHT - bar_height, bar_height, "aborted"))
    parts, y = [_part(x, HEIGHT - bar_height, bar_height, "rest")], float(HEIGHT)
    for name, time_s, _ in epoch.last.phases() if epoch.last is not None else ():
        height = min(HEIGHT * time_s / most_s, y - (HEIGHT - bar_height))
        y -= height
        parts.append(_part(x, y, height, name))
    return tag("g", about, *parts)


def _part(x: int, y: float, height: float, name: str) -> Markup:
    return tag("rect", x=x, y=px(y), width=BAR, height=px(height), class_=name)


def _legend(epochs: Sequence[EpochFacts]) -> Markup:
    names = [
        *[(name, f"the last host {label}") for name, _, label in PHASES],
        ("rest", "the coordinator, and the network"),
    ]
    marks = [tag("span", tag("i", class_=f"mark {name}"), label) for name, label in (*names, ("aborted", "aborted"))]
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
    sentences = [f"{epoch.reason}."] if epoch.reason else []
    if last is None:
        return sentences[0] if sentences else NOTHING
    sentences.append(f"{last.host} reported last, {_ms(last.after_s)} after the begin{_longest(last)}.")
    if late is not None and late.host != last.host and late.agent:
        took_s = (late.start_delay_s or 0.0) + (late.capture_s or 0.0)
        sentences.append(f"Recorded latest: {late.agent} on {late.host}, after {_ms(took_s)}.")
    return " ".join(sentences)


def _longest(last: PartFacts) -> str:
    """Return the phase in which the host spent the most time."""
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
