"""The oracle: counts the tokens of a cut from what the store has. It asks no agent, and knows where tokens can be."""

from collections.abc import Mapping

import msgspec
from tests.adapters.autogen.token_fleet import held as held_by_purse
from tests.adapters.grpc_services.bank_fleets import TOKENS, Kept
from tests.adapters.grpc_services.meshes import CutOfBanks
from tests.adapters.one_cut.native_cycle import amount_of, held_by_natives
from tests.adapters.one_cut.one_fleet import BANKS

import snapline
from snapline.adapters.autogen import AutogenState
from snapline.adapters.grpc.service_agent import ServiceState
from snapline.adapters.langgraph import GraphMemory


class CountedCut(msgspec.Struct):
    """Tokens of one cut.

    Attributes:
        held: in agents' states, and in services'.
        channels: in messages, by sender and receiver: channel states and outboxes.
        turns: in the hands of durable turns in their middle.
        calls: in calls of gRPC that no service has, and in answers that no caller has.
        is_quiet: nothing goes on any more.
    """

    held: int
    channels: dict[str, int]
    turns: int
    calls: int
    is_quiet: bool

    @property
    def total(self) -> int:
        return self.held + sum(self.channels.values()) + self.turns + self.calls


def count(cut: snapline.Cut, addresses: Mapping[str, str]) -> CountedCut:
    """`addresses`: of the banks."""
    channels: dict[str, int] = {}
    for sent in cut.in_transit:
        name = f"{sent.sender} to {sent.receiver}"
        channels[name] = channels.get(name, 0) + amount_of(sent.message)
    banks = {bank: msgspec.convert(cut.states[bank], ServiceState) for bank in BANKS}
    kept = {
        bank: TOKENS if state.service is None else msgspec.msgpack.decode(state.service, type=Kept).tokens
        for bank, state in banks.items()
    }
    plain = {bank: msgspec.to_builtins(state, builtin_types=(bytes,)) for bank, state in banks.items()}
    of_banks = CutOfBanks(plain, {address: name for name, address in addresses.items()}, kept)
    held = held_by_natives(cut) + sum(kept.values())
    for agent, state in cut.states.items():
        if isinstance(state, AutogenState) and agent.startswith("purse"):
            held += held_by_purse(state)
        elif isinstance(state, GraphMemory):
            held += state.values(agent).get("held", 0)
    return CountedCut(
        held=held,
        channels=channels,
        turns=sum(amount_of(turn.message) for turn in cut.pending_turns),
        calls=of_banks.total() - sum(kept.values()),
        is_quiet=cut.is_quiet and of_banks.is_quiet(),
    )
