"""A status as a coordinator would tell it, of which a test names the parts that it is about."""

import msgspec

from snapline.messages.status import FleetStatus, StoreStatus


def fleet_status(figures: int = 0, /, **said: object) -> FleetStatus:
    """Words that are not `said` are empty, numbers `figures`, and what has a default has it."""
    plain = {str: "", int: figures, StoreStatus: StoreStatus("")}
    needed = [field for field in msgspec.structs.fields(FleetStatus) if field.required]
    return msgspec.convert({**{field.name: plain.get(field.type, ()) for field in needed}, **said}, FleetStatus)
