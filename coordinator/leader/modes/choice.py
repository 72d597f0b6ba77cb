"""Choice of the checkpoint mode. A fleet's protocol is fixed, so the mode is chosen once: when the log has the definition."""

from snapline.coordinator.leader.modes.mode import Mode
from snapline.coordinator.state.fleet_view import FleetView


class ModeChoice:
    """Choice of the mode, final once the state knows the protocol. Before that no call depends on the mode."""

    def __init__(self, state: FleetView, *, coordinated: Mode, koo_toueg: Mode, autonomous: Mode) -> None:
        self._state = state
        self._coordinated = coordinated
        self._koo_toueg = koo_toueg
        self._autonomous = autonomous
        self._chosen: Mode | None = None

    @property
    def mode(self) -> Mode:
        """Return the mode in which this fleet makes its epochs."""
        if self._chosen is not None:
            return self._chosen
        mode = self._coordinated
        if self._state.is_logged:
            mode = self._autonomous if self._state.is_autonomous else self._koo_toueg
        if self._state.image.protocol:
            self._chosen = mode
        return mode
