"""Positions of the parts of a scene, in pixels."""

import msgspec

from snapline.diagrams.scene import Place, Scene, Track
from snapline.diagrams.style import shortened
from snapline.diagrams.tracks import ROW_HEIGHT, packed

WIDTH = 1200
"""Width of a picture; it is wider only if a unit of places has a minimum width."""

TOP = 76
MARGIN = 40
"""Space on the right for the signs at the end of agents."""


class Plot(msgspec.Struct, frozen=True):
    """Layout of a scene. `tracks`: packed, one row each. `notes`: omissions. `step`: width of a unit. `top`, `bottom`, `spacing`: of the lanes."""

    first: Place
    left: int
    right: float
    top: int
    step: float
    spacing: int
    row: dict[str, int]
    tracks: list[Track]
    notes: list[str]

    @staticmethod
    def of(scene: Scene, *, step_min: float = 0) -> "Plot":
        """A plot as wide as `WIDTH` allows, or wider if a unit would be narrower than `step_min`."""
        longest = max((len(shortened(agent)) for agent in scene.agents), default=0)
        left = max(32 + 7 * longest, 96 if scene.tracks else 0)
        span = max(scene.last - scene.first, 1e-9)
        step = max(step_min, (WIDTH - MARGIN - left) / span)
        right = left + step * span

        def x(place: Place) -> float:
            return min(max(left + step * (place - scene.first), left), right)

        tracks, notes = packed(scene.tracks, x)
        return Plot(
            first=scene.first,
            left=left,
            right=right,
            top=TOP + (ROW_HEIGHT * len(tracks) + 16 * bool(scene.agents) if tracks else 0),
            step=step,
            # Few agents get more space; sixty still fit on a page.
            spacing=max(16, min(56, 640 // max(len(scene.agents), 1))),
            row={agent: index for index, agent in enumerate(scene.agents)},
            tracks=tracks,
            notes=notes,
        )

    def x(self, place: Place) -> float:
        """Return the x of a place, clamped to the edges."""
        return min(max(self.beyond(place), self.left), self.right)

    def beyond(self, place: Place) -> float:
        """Return the x of a place, outside the plot for a place outside the edges."""
        return self.left + self.step * (place - self.first)

    def y(self, agent: str) -> float:
        return self.top + self.spacing * (self.row[agent] + 0.5)

    @property
    def bottom(self) -> int:
        return self.top + self.spacing * len(self.row)

    @property
    def size(self) -> float:
        """Half the size of a checkpoint's mark."""
        return min(6.0, self.spacing / 3.2)
