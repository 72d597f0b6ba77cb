"""Serve the view over HTTP: pages, streams of their changes, and static files. Other modules draw the content of the screens.

    GET  /, /agents/{agent}, /coordinators, /epochs, /epochs/{epoch}, /recovery, /waiting  pages
    GET  /act, /act/{verb}, POST /deeds      operators' actions, if the view was started with actions enabled (`action_requests.py`)
    GET  /space-time, /space-time.svg, …     events of the fleet and of a trace (`space_time_requests.py`)
    GET  /events/fleet, /events/waiting      server-sent events `[[id, html], …]` with the page elements to replace
    GET  /static/{file}                      style, script, icon
    GET  /sign-in; POST /sign-in, /sign-out  sign in with the token, if one is required, and sign out
    GET  /simulation, /simulation/…          simulation reports, if there are any (`simulation_pages.py`)
    GET  /health                             200 while this process answers

All requests except actions only read. Page content comes from `snapline.Client` and from the store's reader.

`serve` runs the view with one client and one server until the process is stopped.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from snapline.diagrams.style import EVENT_RULES, RULES, style
from snapline.errors import AgentMissingError, NotFoundError, SnaplineError, UnknownOutcomeError, UsageError
from snapline.gateway.http_server import serve_app
from snapline.messages.client_requests import AgentState
from snapline.messages.status import FleetStatus
from snapline.security.transport import Security
from snapline.view.action_requests import ActingPages, NotAllowedError, Operators
from snapline.view.epoch_pages import CutFacts, CutSearch, cut_body, cut_of, cut_results, epochs_body, no_history
from snapline.view.fleet_page import AgentSearch, FleetScreen, agent_body, coordinators_body, saved_body
from snapline.view.fleet_queries import open_fleet_queries
from snapline.view.markup import Markup, join, tag
from snapline.view.page_elements import (
    ACT,
    SCREENS,
    SIMULATION,
    SPACE_TIME,
    PageHead,
    Partial,
    Streams,
    Targets,
    ViewerState,
    event,
    page,
    shown_epochs,
)
from snapline.view.pending_work_page import PendingWorkReader, pending_work_body, pending_work_partials
from snapline.view.recovery_page import FATES_MAX, HistoryFacts, LineFacts, LinesFacts, line_result, recovery_body
from snapline.view.sign_in import COOKIE, HEADERS, SESSION_S, Sessions, form_of
from snapline.view.space_time_requests import LiveEvents, SpaceTimePages
from snapline.view.watch import FleetWatch, ViewCalls

if TYPE_CHECKING:
    from snapline.view.simulation_pages import SimulationPages


STATIC = {"view.css": "text/css", "view.js": "text/javascript", "icon.svg": "image/svg+xml"}

KEEP_ALIVE_S = 15.0
"""Time in seconds between keep-alive events of a stream. Proxies close connections on which nothing is sent."""

WRONG_S = 0.5
"""Delay in seconds before the reply to an invalid token."""

DESCRIBE_S = 5.0
"""Longest wait in seconds for a host to describe an agent. The wait is short because a viewer waits for the page."""

LIVE_S, SAVED_S = 1.0, 3.0
"""Longest waits in seconds for an agent's live state, which is available at the end of a turn, and for its state in the newest snapshot."""

CUTS_KEPT = 2

Handler = Callable[[Request], Awaitable[Response]]


class View:
    """Request handlers of the view.

    Args:
        calls: client of the fleet. If None, the view only shows traces and reports.
        token: token for signing in, or "" if everyone on this machine may read the view.
        operators: actions that operators may run, or None if actions are disabled.
        trace: trace file, or folder with the traces of hosts.
        reports: folders with simulation reports.
    """

    def __init__(
        self,
        calls: ViewCalls | None,
        *,
        token: str = "",
        watch: FleetWatch | None = None,
        operators: Operators | None = None,
        trace: Path | None = None,
        reports: Sequence[Path] = (),
    ) -> None:
        self._has_fleet, self._has_trace = calls is not None, trace is not None
        self._space = SpaceTimePages(
            self._show_space, None if calls is None else LiveEvents(calls), trace, self._cut, self._shown_epochs
        )
        calls = cast("ViewCalls", calls)  # if there is no fleet, no route uses `calls`
        self._calls = calls
        self._sessions = Sessions(token)
        self._watch = watch or FleetWatch(calls)
        self._operators = operators
        self._acting = None if operators is None else ActingPages(operators, self._sessions, self._watch, self._page)
        self._simulation = self._simulations(reports) if reports else None
        self._fleet = FleetScreen()
        self._waiting, self._waiting_streams = PendingWorkReader(calls, self._watch, self._may_answer), Streams()
        self._cuts: dict[str, CutFacts] = {}
        self._files = {name: (resources.files(__package__) / "static" / name).read_bytes() for name in STATIC}
        self._files["view.css"] += style(RULES + EVENT_RULES).encode()

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/static/{file}", self._serve_file),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
            Route("/health", self._health),
            *(self._routes_of_fleet() if self._has_fleet else [Route("/", self._guarded(self._to_first_screen))]),
        ]
        if SPACE_TIME in self._screens():
            routes += [
                Route("/space-time", self._guarded(self._space.page)),
                Route("/events/space-time", self._guarded(self._space.events)),
                Route("/space-time.svg", self._guarded(self._space.svg)),
                Route("/space-time.shiviz", self._guarded(self._space.shiviz)),
            ]
        if self._acting is not None:
            routes += [
                Route("/act", self._guarded(self._acting.show)),
                Route("/act/{verb}", self._guarded(self._acting.propose)),
                Route("/deeds", self._guarded(self._acting.carry_out), methods=["POST"]),
                Route("/deeds/{key}", self._guarded(self._acting.outcome)),
            ]
        if self._simulation is not None:
            routes += [Route(path, self._guarded(show)) for path, show in self._simulation.routes().items()]
        return Starlette(routes=routes, exception_handlers={404: self._missing})

    def _routes_of_fleet(self) -> list[Route]:
        return [
            Route("/", self._guarded(self._show_fleet)),
            Route("/agents/{agent}", self._guarded(self._show_agent)),
            Route("/coordinators", self._guarded(self._show_coordinators)),
            Route("/epochs", self._guarded(self._show_epochs)),
            Route("/epochs/{epoch}", self._guarded(self._show_cut)),
            Route("/recovery", self._guarded(self._show_recovery)),
            Route("/waiting", self._guarded(self._show_waiting)),
            Route("/events/waiting", self._guarded(self._waiting_events)),
            Route("/events/fleet", self._guarded(self._fleet_events)),
        ]

    def _screens(self) -> tuple[tuple[str, str, str], ...]:
        """Return the screens that this view offers."""
        screens = [*SCREENS, SPACE_TIME] if self._has_fleet else [SPACE_TIME] if self._has_trace else []
        if self._operators is not None and self._operators.offers(self._watch.last.facts):
            screens.append(ACT)
        if self._simulation is not None:
            screens.append(SIMULATION)
        return tuple(screens)

    def _may_answer(self, facts: FleetStatus | None) -> bool:
        return self._operators is not None and self._operators.answers(facts)

    def _simulations(self, reports: Sequence[Path]) -> "SimulationPages":
        from snapline.view.sim_reports import SimReports  # import the simulator only if there are reports
        from snapline.view.simulation_pages import SimulationPages

        return SimulationPages(SimReports(reports), self._page)

    async def close(self) -> None:
        """Stop sending requests to the fleet."""
        if self._acting is not None:
            await self._acting.close()
        await self._watch.close()

    # ---- access -----------------------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if not self._sessions.may(request):
                return self._rejected(request)
            try:
                return await handler(request)
            except SnaplineError as error:
                return self._failure(error)

        return guarded

    def _rejected(self, request: Request) -> Response:
        if self._sessions.is_token_required and request.url.path == "/":
            return RedirectResponse("/sign-in", 303, HEADERS)
        if self._sessions.is_token_required:
            return PlainTextResponse("sign in first: /sign-in", 401, {**HEADERS, "WWW-Authenticate": "Bearer"})
        sentence = "without a token this view answers only on this machine, as 127.0.0.1 or localhost"
        return PlainTextResponse(sentence, 421, HEADERS)

    async def _sign_in(self, request: Request) -> Response:
        if not self._sessions.is_token_required:
            return RedirectResponse("/", 303, HEADERS)
        if request.method == "GET":
            return self._sign_in_page()
        if not self._sessions.is_valid_token((await form_of(request)).get("token", "")):
            await asyncio.sleep(WRONG_S)
            return self._sign_in_page("That is not the token.", 401)
        response = RedirectResponse("/", 303, HEADERS)
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, self._sessions.begin(), max_age=SESSION_S, httponly=True, samesite="strict", secure=is_secure
        )
        return response

    def _sign_in_page(self, wrong: str = "", status: int = 200) -> Response:
        field = tag("input", type="password", name="token", autocomplete="current-password", required=True, id="token")
        # Password managers need a user name.
        user = tag("input", name="user", value="snapline", autocomplete="username", hidden=True)
        form = tag("form", tag("label", "Token", for_="token"), user, field, tag("button", "Sign in"), method="post")
        notice = tag("p", wrong, class_="strip bad", role="alert") if wrong else None
        body = tag("div", tag("h1", "Sign in"), notice, form, class_="sign-in")
        return _html(page(PageHead("sign-in", "Sign in"), body), status)

    async def _sign_out(self, request: Request) -> Response:
        self._sessions.end(request)
        response = RedirectResponse("/sign-in", 303, HEADERS)
        response.delete_cookie(COOKIE)
        return response

    # ---- screens ----------------------------------------------------------------------------------------------------

    async def _show_fleet(self, request: Request) -> Response:
        state, search = await self._watch.now(), _search_of(request.query_params)
        if request.query_params.get("part") == "found":
            return _html(self._fleet.found(state, search))
        return self._page("fleet", "Fleet", self._fleet.body(state, search), events="/events/fleet")

    async def _show_agent(self, request: Request) -> Response:
        agent = request.path_params["agent"]
        try:
            described = await self._calls.describe(agent, DESCRIBE_S)
        except UnknownOutcomeError as error:  # the agent's host is lost, or the fleet is recovering
            try:
                saved = await self._calls.state(agent, timeout_s=SAVED_S)
            except SnaplineError:
                raise error from None
            return self._page("fleet", agent, saved_body(agent, saved, str(error)))
        return self._page("fleet", agent, agent_body(described, *await self._state_of(agent)))

    async def _state_of(self, agent: str) -> tuple[AgentState | None, str]:
        """Return an agent's live state and "" if the live state is available.

        If the live state is unavailable, return the agent's state in the newest snapshot, or None, and the reason.
        """
        try:
            return await self._calls.state(agent, live=True, timeout_s=LIVE_S), ""
        except SnaplineError as error:
            problem = str(error)
        try:
            return await self._calls.state(agent, timeout_s=SAVED_S), problem
        except SnaplineError as error:
            return None, str(error)

    async def _show_epochs(self, request: Request) -> Response:
        history = await self._calls.epoch_history()
        return self._page("epochs", "Epochs", no_history() if history is None else epochs_body(history))

    async def _show_cut(self, request: Request) -> Response:
        query = request.query_params
        search = CutSearch(query.get("q", "").strip(), query.get("to", "").strip())
        cut = await self._cut(request.path_params["epoch"])
        compared = await self._cut(search.to) if search.to else None
        if query.get("part") == "found":
            return _html(cut_results(cut, search, compared))
        facts = self._watch.last.facts
        links = None if self._operators is None else await self._operators.links(facts, cut.epoch)
        return self._page("epochs", f"Epoch {cut.epoch}", join([cut_body(cut, search, compared), links]))

    async def _show_recovery(self, request: Request) -> Response:
        query = request.query_params
        named = ",".join([*query.getlist("failed"), query.get("others", "")])
        failed = _names(named)
        line = msgspec.convert({**await self._calls.line_of(failed), "failed": failed}, LineFacts)  # hosts as requested
        if query.get("part") == "line":
            return _html(line_result(line))
        state = await self._watch.now()
        lines = msgspec.convert(await self._calls.lines_of_each(), LinesFacts)
        past = msgspec.convert(await self._calls.recoveries(), HistoryFacts)
        hosts = [host.host for host in (() if state.facts is None else state.facts.hosts)]
        shown_lines = [each.line_epoch for each in past.recoveries[-FATES_MAX:]]
        effects = await self._waiting.open_at(shown_lines) if shown_lines else {}
        agents = [each.agent for each in state.agents]
        targets = Targets(frozenset(agents), await self._shown_epochs())
        body = recovery_body(line, lines, past, hosts, agents, effects, targets)
        return self._page("recovery", "Recovery", body)

    async def _show_coordinators(self, request: Request) -> Response:
        return self._page("fleet", "Coordinators", coordinators_body(await self._calls.replicas()))

    async def _show_waiting(self, request: Request) -> Response:
        body = pending_work_body(await self._waiting.facts())
        return self._page("waiting", "Waiting", body, events="/events/waiting")

    async def _waiting_events(self, request: Request) -> Response:
        async def look() -> list[Partial]:
            return pending_work_partials(await self._waiting.facts())

        return self._waiting_streams.response(look)

    def _show_space(self, title: str, body: Markup, events: str) -> Response:
        return self._page("space-time", title, body, events=events)

    async def _to_first_screen(self, request: Request) -> Response:
        return RedirectResponse(self._screens()[0][1], 303, HEADERS)

    async def _shown_epochs(self) -> frozenset[int]:
        """Return the epochs that have a page. The set is empty if the fleet does not respond."""
        if not self._has_fleet:
            return frozenset()
        try:
            return shown_epochs(await self._calls.epoch_history())
        except SnaplineError:
            return frozenset()

    async def _cut(self, snapshot: str) -> CutFacts:
        """Return the cut of a snapshot. Cuts are cached, because typing into a search field requests the same cut repeatedly."""
        if snapshot not in self._cuts:
            cut = cut_of(await self._calls.snapshot_at(snapshot))
            while len(self._cuts) >= CUTS_KEPT:
                del self._cuts[next(iter(self._cuts))]
            if snapshot != str(cut.epoch):
                return cut  # not cached, because a tag may move
            self._cuts[snapshot] = cut
        return self._cuts[snapshot]

    def _page(self, screen: str, title: str, body: Markup, *, events: str = "", status: int = 200) -> Response:
        facts = self._watch.last.facts
        name = "" if facts is None else facts.fleet
        head = PageHead(screen, title, name, events, self._sessions.is_token_required, self._screens())
        return _html(page(head, body), status)

    def _failure(self, error: SnaplineError) -> Response:
        status = 503
        if isinstance(error, NotFoundError | AgentMissingError):
            status = 404
        elif isinstance(error, UsageError):
            status = 403 if isinstance(error, NotAllowedError) else 400
        message = f"{str(error)[:1].upper()}{str(error)[1:]}."
        body = join(
            [
                tag("h1", "This cannot be shown" if status != 403 else "That is not allowed"),
                tag("p", message, class_="strip bad", role="alert"),
            ]
        )
        return self._page("", "Not to be shown", body, status=status)

    async def _missing(self, request: Request, error: Exception) -> Response:
        if not self._sessions.may(request):
            return self._rejected(request)
        body = join([tag("h1", "There is no such page"), tag("p", tag("a", "The fleet", href="/"))])
        return self._page("", "No such page", body, status=404)

    # ---- live updates -----------------------------------------------------------------------------------------------

    async def _fleet_events(self, request: Request) -> Response:
        search = _search_of(request.query_params)
        return StreamingResponse(
            self._fleet_stream(search), media_type="text/event-stream", headers={**HEADERS, "X-Accel-Buffering": "no"}
        )

    async def _fleet_stream(self, search: AgentSearch) -> AsyncGenerator[str, None]:
        viewer = ViewerState()
        try:
            async with aclosing(self._watch.follow()) as news:
                async for state in news:
                    yield event(viewer.changes(self._fleet.pieces(state, search)))
        except UsageError as error:
            yield f"event: refused\ndata: {json.dumps(str(error))}\n\n"

    # ---- our own files ----------------------------------------------------------------------------------------------

    async def _serve_file(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in STATIC:
            return PlainTextResponse("no such file", 404, HEADERS)
        return Response(self._files[name], media_type=STATIC[name], headers={**HEADERS, "Cache-Control": "no-cache"})

    async def _health(self, request: Request) -> Response:
        return PlainTextResponse("ok", headers=HEADERS)


def _html(markup: Markup, status: int = 200) -> HTMLResponse:
    return HTMLResponse(str(markup), status, HEADERS)


def _search_of(query: QueryParams) -> AgentSearch:
    return AgentSearch(query.get("q", "").strip(), query.get("host", ""), query.get("state", ""))


def _names(text: str) -> list[str]:
    """Split a comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]


CLIENT_NAME = "view"


async def serve(
    address: str,
    security: Security,
    listen: tuple[str, int],
    *,
    token: str,
    may_act: bool = False,
    folder: Path | None = None,
    trace: Path | None = None,
    reports: Sequence[Path] = (),
) -> None:
    """Print the view's address, and serve the view until SIGINT or SIGTERM.

    Args:
        may_act: whether operators may run actions.
        folder: the fleet's folder if it is on this machine, otherwise None.
        trace: trace to show in addition to the fleet.
        reports: folders with simulation reports.

    Raises:
        UsageError: If the process cannot listen on the address, or a path in `reports` is not a folder.
        CoordinatorUnavailableError: If no coordinator responds at the address.
    """
    async with open_fleet_queries(address, security, CLIENT_NAME) as (questions, coordinator):
        operators = None
        if may_act:
            operators = Operators(coordinator, folder, has_certificates=security.is_tls, people=questions)
        await _serve(View(questions, token=token, operators=operators, trace=trace, reports=reports), listen)


async def serve_files(listen: tuple[str, int], *, token: str, trace: Path | None, reports: Sequence[Path]) -> None:
    """Serve the view without a fleet. Without a fleet, the view shows a trace, simulation reports, or both."""
    await _serve(View(None, token=token, trace=trace, reports=reports), listen)


async def _serve(view: View, listen: tuple[str, int]) -> None:
    try:
        await serve_app(view.app(), listen)
    finally:
        await view.close()
