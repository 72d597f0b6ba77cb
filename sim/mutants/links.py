"""Seeded bugs of links."""

from snapline.channels.frame import Items
from snapline.channels.incoming import IncomingOrder
from snapline.channels.link_events import Command
from snapline.channels.order import OutgoingOrder
from snapline.sim.world.product_patches import Patch


def no_dedupe() -> list[Patch]:
    """Disable deduplication at both ends: the sender ignores the Hello's received count, and the receiver does not skip."""
    take_original, rewind_original = IncomingOrder.take, OutgoingOrder.rewind

    def take(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        if first_number <= self.received and self.opened.issuperset(items.channel):
            first_number = self.received + 1
        return take_original(self, first_number, items)

    def rewind(self: OutgoingOrder, received: int) -> None:
        rewind_original(self, self.acked)

    return [(IncomingOrder, "take", take), (OutgoingOrder, "rewind", rewind)]


def no_resend() -> list[Patch]:
    take_original, rewind_original = IncomingOrder.take, OutgoingOrder.rewind

    def take(self: IncomingOrder, first_number: int, items: Items) -> list[Command]:
        return take_original(self, min(first_number, self.received + 1), items)

    def rewind(self: OutgoingOrder, received: int) -> None:
        rewind_original(self, self.written)

    return [(IncomingOrder, "take", take), (OutgoingOrder, "rewind", rewind)]
