"""File formats of a run folder, with writers and readers.

JSON documents begin with `apiVersion` and `kind`, as all of snapline's do. The trace has the format of `snapline analyze`,
compressed with gzip; each line also holds the virtual time `t_ns`, which other readers ignore. The timeline holds what a trace
lacks (epochs, hosts, orphans); both together make a `Recording`. The same run gives the same bytes: no file holds a wall-clock
time, and the compressed trace holds neither a name nor a date.
"""

import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from snapline.errors import UsageError
from snapline.recovery.trace import CheckpointTaken, Event, Header, MessageReceived, MessageSent, Recovery, encode
from snapline.sim.choices import Key, Record
from snapline.sim.result import GUARANTEES, ExecutedFault, Result, seconds
from snapline.sim.scenario import format_toml
from snapline.sim.world.recording import EpochSpan, HostSpan, Orphan, Recording, TimedEvent

API_VERSION = "snapline/v1"

RESULT_KIND, CHOICES_KIND, TIMELINE_KIND = "SimulationResult", "SimulationChoices", "SimulationTimeline"


class Provenance(msgspec.Struct, frozen=True):
    """Origin of a result. `schema`: version of the scenario format. `commit`: commit of the code, "" if unknown."""

    schema: int
    commit: str


# -- result -------------------------------------------------------------------------------------------------------------


def result_json(result: Result, provenance: Provenance) -> bytes:
    """Return `result.json`: the whole result, with the text of each violated guarantee."""
    fields = msgspec.to_builtins(result)
    # JSON cannot represent infinite and NaN values; null is read back as NaN.
    fields["metrics"] = {
        name: value if math.isfinite(value) else None for name, value in sorted(result.metrics.items())
    }
    for violation in fields["violations"]:
        violation["at"] = seconds(violation["t_ns"])
        violation["promise"] = GUARANTEES.get(violation["guarantee"], "")
    return _json(_document(RESULT_KIND, **msgspec.to_builtins(provenance), **fields))


def read_result(path: Path) -> tuple[Result, Provenance]:
    """Read the output of `result_json`.

    Raises:
        UsageError: the file is missing or has another format.
    """
    fields = _read_document(path, RESULT_KIND)
    metrics = fields.get("metrics")
    if isinstance(metrics, dict):
        fields["metrics"] = {name: math.nan if value is None else value for name, value in metrics.items()}
    try:
        return msgspec.convert(fields, Result), msgspec.convert(fields, Provenance)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no result of this release: {error}; run the simulation again") from error


def metrics_csv(result: Result) -> str:
    """Return `metrics.csv`: name and value, sorted by name."""
    rows = [f"{_csv(name)},{value!r}" for name, value in sorted(result.metrics.items())]
    return "\n".join(["name,value", *rows]) + "\n"


def _csv(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(sign in cell for sign in ',"\n\r') else cell


# -- faults -------------------------------------------------------------------------------------------------------------


def faults_toml(faults: Iterable[ExecutedFault]) -> str:
    """Return `faults.toml`: the executed faults, in order. A fault without `until` has no end."""
    return format_toml({"executed": [_fault(fault) for fault in faults]}).lstrip("\n")


def _fault(fault: ExecutedFault) -> dict[str, str]:
    fields = {"kind": fault.kind, "text": fault.text, "at": exact(fault.at_ns)}
    if fault.until_ns:
        fields["until"] = exact(fault.until_ns)
    # TOML cannot hold half of a surrogate pair.
    return {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}


def exact(time_ns: int) -> str:
    """Format a duration exactly, in scenario syntax: `5s`, `1.25s`, `0.000000001s`."""
    whole, rest = divmod(time_ns, 1_000_000_000)
    return f"{whole}.{rest:09d}".rstrip("0") + "s" if rest else f"{whole}s"


# -- choices ------------------------------------------------------------------------------------------------------------


def choices_json(choices: Record) -> bytes:
    """Return `choices.json`: one choice per line (stream, key, value), in the order of the run."""
    rows = [json.dumps([stream, _plain(key), value], ensure_ascii=False) for (stream, key), value in choices.items()]
    opening = f'{{"apiVersion": "{API_VERSION}", "kind": "{CHOICES_KIND}", "choices": ['
    return _bytes(opening + "".join(f"\n{row}," for row in rows).rstrip(",") + "\n]}\n")


def _plain(part: object) -> object:
    """Return a part of a key for JSON. Tuples become lists; other types than text and integers would not be read back."""
    if isinstance(part, tuple):
        return [_plain(item) for item in part]
    if part is None or isinstance(part, str | int):
        return part
    raise UsageError(f"the key {part!r} of a choice cannot be written: use text, whole numbers and tuples of them")


def read_choices(path: Path) -> Record:
    """Read the output of `choices_json`.

    Raises:
        UsageError: the file is missing or has another format.
    """
    rows = _read_document(path, CHOICES_KIND).get("choices")
    try:
        return {
            (stream, _key(key)): value for stream, key, value in msgspec.convert(rows, list[tuple[str, list[Any], int]])
        }
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} holds no choices: {error}; run the simulation again") from error


def _key(parts: list[Any]) -> Key:  # Any: JSON of any depth
    return tuple(_key(part) if isinstance(part, list) else part for part in parts)


# -- recording ----------------------------------------------------------------------------------------------------------


class _Timeline(msgspec.Struct, frozen=True):
    agents: list[str]
    placed: dict[str, str]
    epochs: list[EpochSpan]
    hosts: list[HostSpan]
    orphans: list[Orphan]
    is_cut: bool


class _Time(msgspec.Struct, frozen=True):
    t_ns: int = 0


def trace_lines(recording: Recording) -> Iterator[bytes]:
    """Yield the recording's events as lines of a trace, each with its time."""
    yield encode(Header(agents=recording.agents))
    for timed in recording.events:
        yield b'%s,"t_ns":%d}\n' % (encode(timed.event)[:-2], timed.t_ns)


def trace_gz(recording: Recording) -> bytes:
    """Return `trace.jsonl.gz`."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6) as stream:
        for line in trace_lines(recording):
            stream.write(line)
    return packed.getvalue()


def timeline_json(recording: Recording) -> bytes:
    """Return `timeline.json`: the parts of a recording that a trace lacks."""
    epochs = list(recording.epochs.values())
    timeline = _Timeline(
        recording.agents, recording.placed, epochs, recording.hosts, recording.orphans, recording.is_cut
    )
    return _json(_document(TIMELINE_KIND, **msgspec.to_builtins(timeline)))


def read_recording(trace: Path, timeline: Path) -> Recording:
    """Read the recording of a run from its two files.

    Raises:
        UsageError: a file is missing or damaged.
    """
    try:
        stored = msgspec.convert(_read_document(timeline, TIMELINE_KIND), _Timeline)
        events = list(_events(_read(trace)))
    except (msgspec.DecodeError, EOFError, OSError) as error:  # a validation error is a decode error
        raise UsageError(f"{trace} and {timeline.name} cannot be read: {error}; run the simulation again") from error
    recording = Recording()
    recording.agents, recording.placed, recording.hosts = stored.agents, stored.placed, stored.hosts
    recording.epochs = {span.epoch: span for span in stored.epochs}
    recording.orphans, recording.is_cut, recording.events = stored.orphans, stored.is_cut, events
    return recording


def _events(packed: bytes) -> Iterator[TimedEvent]:
    decode_event = msgspec.json.Decoder(CheckpointTaken | MessageSent | MessageReceived | Recovery).decode
    decode_time = msgspec.json.Decoder(_Time).decode
    lines = iter(gzip.GzipFile(fileobj=io.BytesIO(packed)))
    next(lines, None)  # the header
    for line in lines:
        event: Event | Recovery = decode_event(line)
        yield TimedEvent(decode_time(line).t_ns, event)


# -- documents ----------------------------------------------------------------------------------------------------------


def _document(kind: str, **fields: object) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": kind, **fields}


def _json(document: dict[str, object]) -> bytes:
    return _bytes(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def _bytes(words: str) -> bytes:
    """Encode text. Half of a surrogate pair, which UTF-8 cannot encode, becomes a JSON escape."""
    return words.encode("utf-8", "backslashreplace")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; name the folder of a run") from error


def _read_document(path: Path, kind: str) -> dict[str, Any]:  # Any: JSON; callers validate it
    try:
        document = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}; run the simulation again") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise UsageError(f"{path} is no {kind}: name the folder of a run")
    return document
