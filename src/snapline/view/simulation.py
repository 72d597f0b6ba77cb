"""Requests for reports of simulations. Their content is read from files in a thread, one at a time: drawing a run takes half a second.

GET  /simulation                          the reports in the folders
GET  /simulation/runs/{place}             one run
GET  /simulation/pairs/{place}            a failing run next to its shrunk form
GET  /simulation/sweeps/{place}           one sweep
GET  /simulation/reports/{place}          the run's report, generated anew, as a page of its own
GET  /simulation/pictures/{kind}/{place}  its timeline, or its space-time diagram
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from snapline.errors import NotFoundError
from snapline.view.auth import HEADERS
from snapline.view.markup import Markup
from snapline.view.sim_reports import SHRUNK, SimReports
from snapline.view.sim_run_page import SPACETIME, TIMELINE, pair_body, run_body
from snapline.view.simulation_page import PLACE, RunSearch, simulation_body, sweep_body

if TYPE_CHECKING:
    from snapline.sim.report.folder import StoredRun
    from snapline.view.sim_reports import FoundRun

_Found = TypeVar("_Found")

OWN_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Policy of reports and pictures, which are generated here with inline styles and without scripts."""

OWN_HEADERS = {**HEADERS, "Content-Security-Policy": OWN_POLICY}

EVENTS_MAX = 2_000
"""Largest number of events of a diagram, as in `report.html`: more make a browser slow."""

RUNS_KEPT = 4
"""Number of cached runs: a page, its pictures, and those of its shrunk form are requested one after the other."""

Handler = Callable[[Request], Awaitable[Response]]
Page = Callable[[str, str, Markup], Response]


class SimulationPages:
    """Answers requests; `page` puts the frame around a screen: id, title, body. Use it from one event loop."""

    def __init__(self, reports: SimReports, page: Page) -> None:
        self._reports = reports
        self._page = page
        self._reading = asyncio.Lock()
        self._stored: dict[tuple[str, float], tuple[StoredRun, str]] = {}

    def routes(self) -> dict[str, Handler]:
        """Return the handlers, by address."""
        return {
            PLACE: self.show,
            f"{PLACE}/runs/{{place:path}}": self.show_run,
            f"{PLACE}/pairs/{{place:path}}": self.show_pair,
            f"{PLACE}/sweeps/{{place:path}}": self.show_sweep,
            f"{PLACE}/reports/{{place:path}}": self.serve_report,
            f"{PLACE}/pictures/{{kind}}/{{place:path}}": self.serve_picture,
        }

    async def show(self, request: Request) -> Response:
        """Show the reports."""
        search = RunSearch(request.query_params.get("q", "").strip(), request.query_params.get("verdict", ""))
        reports = await self._read(self._reports.found)
        return self._page("simulation", "Simulation", simulation_body(reports, search, self._reports.names))

    async def show_run(self, request: Request) -> Response:
        """Show one run."""
        place = request.path_params["place"]

        def read() -> Markup:
            found, (run, too_large) = self._run(place)
            return run_body(found, run, too_large)

        return self._page("simulation", "A run", await self._read(read))

    async def show_pair(self, request: Request) -> Response:
        """Show a run and its shrunk form."""
        place = request.path_params["place"]

        def read() -> Markup:
            whole, (before, _) = self._run(place)
            if not whole.shrunk:
                raise NotFoundError(f"{whole.head.name} has no shrunk form: `snapline sim shrink FOLDER` makes one")
            shrunk, (after, _) = self._run(f"{place.rstrip('/')}/{SHRUNK}")
            return pair_body(whole, before, shrunk, after, self._reports.steps(shrunk.place))

        return self._page("simulation", "Shrunk", await self._read(read))

    async def show_sweep(self, request: Request) -> Response:
        """Show one sweep."""
        place = request.path_params["place"]

        def read() -> Markup:
            return sweep_body(self._reports.sweep(place), self._reports.found().runs)

        return self._page("simulation", "A sweep", await self._read(read))

    async def serve_report(self, request: Request) -> Response:
        """Return a generated report, not the file next to the run, which may come from anyone."""
        place = request.path_params["place"]

        def read() -> str:
            from snapline.sim.report.folder import report_of

            return report_of(self._run(place)[1][0])

        return HTMLResponse(await self._read(read), headers=OWN_HEADERS)

    async def serve_picture(self, request: Request) -> Response:
        """Return one of its pictures."""
        kind, place = request.path_params["kind"], request.path_params["place"]
        return Response(
            await self._read(lambda: self._draw(kind, place)), media_type="image/svg+xml", headers=OWN_HEADERS
        )

    def _draw(self, kind: str, place: str) -> str:
        from snapline.sim.report.folder import page_of
        from snapline.sim.report.space_time_svg import draw_run
        from snapline.sim.report.timeline import draw_timeline

        run = self._run(place)[1][0]
        if kind == TIMELINE:
            of = page_of(run)
            return draw_timeline(run.result, run.recording, heal_ns=of.heal_ns, within_ns=of.within_ns)
        if kind != SPACETIME or run.recording is None:
            raise NotFoundError(f"this run has no {kind}")
        is_at_end = bool(run.result.violations)
        return draw_run(run.recording, run.result, events_max=EVENTS_MAX, is_read_from_end=is_at_end)

    def _run(self, place: str) -> "tuple[FoundRun, tuple[StoredRun, str]]":
        """Return one run, read once until it changes."""
        summary = self._reports.run(place)
        key = (summary.place, summary.written_s)
        if key not in self._stored:
            stored = self._reports.stored(place)
            while len(self._stored) >= RUNS_KEPT:
                del self._stored[next(iter(self._stored))]
            self._stored[key] = stored
        return summary, self._stored[key]

    async def _read(self, read: Callable[[], _Found]) -> _Found:
        async with self._reading:
            return await asyncio.to_thread(read)
