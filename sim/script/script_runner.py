"""Runs scenario scripts, and either rewrites their traces or reports differences.

    run_script(text) -> text      the same script, with the traces that its commands currently produce
    check_script(path) -> str     a unified diff of the traces, or "" if they are equal
    rewrite_script(path) -> bool  write the new traces, and return whether any trace differed

The command `fleet a b c protocol=NAME` creates a fleet. The protocol NAME is chandy-lamport (the default, with epoch stamps as in
production), markers, koo-toueg, uncoordinated, or one of the communication-induced protocols. The protocol markers is the original
Chandy-Lamport algorithm, where `channels=a->b,b->a` lists the channels. By default, there is a channel from every agent to every other
agent.

    all protocols             send a b m1; deliver a->b; crash a,b; line [failed=a,b]; show a
    all but markers           arrive a->b (into the mailbox); turn a; start a … end a (a long turn)
    chandy-lamport, markers   record a epoch=1; marker a->b; overtake a->b (the marker overtakes messages ahead of it)
    chandy-lamport            begin epoch=1; report a,b epoch=1; abort epoch=1; join c [by=a]; stop a
    the others                checkpoint a,b; join c; useless
    koo-toueg                 checkpoint a refusing=b; timeout
    rules                     untracked (Z-paths without a causal twin)

The command `deliver` combines the arrival of a message with its turn. The command `record` announces an epoch to agents. The word `all`
represents every agent.
"""

import difflib
import re
from pathlib import Path

from snapline.errors import UsageError
from snapline.protocols.names import CHANDY_LAMPORT, KOO_TOUEG, PROTOCOLS
from snapline.protocols.rules import RULES
from snapline.sim.script.script_text import ScriptCommand, check_form, read_blocks, write_block
from snapline.sim.script.scripted_chandy_lamport import ScriptedMarkers, ScriptedStamps
from snapline.sim.script.scripted_checkpoints import ScriptedKooToueg, ScriptedRule
from snapline.sim.script.scripted_fleet import COORDINATOR, ScriptedFleet

MARKERS = "markers"

FLEET_USAGE = "fleet AGENT [AGENT…] [protocol=NAME] [channels=AGENT->AGENT,…]"

AGENTS_MAX = 26
"""Maximum number of agents in a script. With more agents, scripts would be unreadable; use the simulator for larger fleets."""


def run_script(text: str) -> str:
    """Return the script with the traces that its commands produce.

    Raises:
        UsageError: If a command is unknown or cannot be executed. The error message names the line.
    """
    fleet: ScriptedFleet | None = None
    written = []
    for block in read_blocks(text):
        trace: list[str] = []
        for command in block.commands:
            if command.verb == "fleet":
                fleet = make_fleet(command)
            elif fleet is None:
                raise command.error("there is no fleet: write `fleet AGENT AGENT …` first")
            else:
                trace += fleet.run(command)
        written.append(write_block(block, trace))
    return "\n".join(written)


def check_script(path: Path) -> str:
    """Return a unified diff between the traces in the file and the current traces, or "" if they are equal.

    Raises:
        UsageError: If a command is unknown or cannot be executed. The error message names the file and the line.
    """
    text = path.read_text(encoding="utf-8")
    diff = difflib.unified_diff(
        text.splitlines(),
        _run_file(path, text).splitlines(),
        f"{path.name} as written",
        f"{path.name} as run",
        lineterm="",
    )
    return "\n".join(diff)


def rewrite_script(path: Path) -> bool:
    """Replace the traces in the file with the traces that its commands currently produce. Return whether the file has changed."""
    text = path.read_text(encoding="utf-8")
    renewed = _run_file(path, text)
    if renewed != text:
        path.write_text(renewed, encoding="utf-8")
    return renewed != text


def _run_file(path: Path, text: str) -> str:
    try:
        return run_script(text)
    except UsageError as error:
        raise UsageError(f"{path.name}, {error}") from error


def make_fleet(command: ScriptCommand) -> ScriptedFleet:
    """Create the fleet that a `fleet` command defines.

    Raises:
        UsageError: If the names, the protocol or the channels are invalid.
    """
    names = command.words
    check_form(command, FLEET_USAGE)
    bad = [name for name in names if not re.fullmatch("[a-z][a-z0-9-]*", name) or name in (COORDINATOR, "all", "live")]
    if bad or len(names) != len(dict.fromkeys(names)) or len(names) > AGENTS_MAX:
        raise command.error(
            f"{command.text!r} names no fleet: give up to {AGENTS_MAX} agents different names like a, b"
        )
    protocol = command.options.get("protocol", CHANDY_LAMPORT)
    if protocol == MARKERS:
        channels = _read_channels(command)
        return ScriptedFleet(names, lambda fleet: ScriptedMarkers(fleet, channels))
    if "channels" in command.options:
        raise command.error(
            f"channels of {protocol} open by themselves: leave channels= out, or use protocol={MARKERS}"
        )
    match protocol:
        case _ if protocol == CHANDY_LAMPORT:
            return ScriptedFleet(names, ScriptedStamps)
        case _ if protocol == KOO_TOUEG:
            return ScriptedFleet(names, ScriptedKooToueg)
        case _ if protocol in RULES:
            return ScriptedFleet(names, lambda fleet: ScriptedRule(fleet, protocol))
    raise command.error(f"there is no protocol {protocol!r}: use one of {', '.join([MARKERS, *PROTOCOLS])}")


def _read_channels(command: ScriptCommand) -> list[tuple[str, str]]:
    names = command.words
    if "channels" not in command.options:
        return [(sender, receiver) for sender in names for receiver in names if sender != receiver]
    channels = []
    for word in command.options["channels"].split(","):
        sender, _, receiver = word.partition("->")
        if sender not in names or receiver not in names:
            raise command.error(f"{word!r} is no channel of this fleet: write AGENT->AGENT")
        channels.append((sender, receiver))
    return list(dict.fromkeys(channels))
