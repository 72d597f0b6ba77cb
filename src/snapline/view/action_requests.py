"""Serve the pages on which operators choose actions, confirm them and see their outcome.

This module authorizes requests, and `operator_actions.py` defines the actions.

    GET  /act            the possible actions
    GET  /act/{verb}     confirmation page, which changes nothing
    POST /deeds          submit the confirmation page's form: run the action once, and redirect to
    GET  /deeds/{key}    the outcome of the action

Another site must not run actions through a viewer's browser. So the view accepts a form only if three conditions hold. The browser reports
the view's own origin as the origin of the form. The form contains the session's token, which other sites cannot read. The form's key
belongs to a page that was shown in the same session.

All action pages work in a browser without scripts.
"""

from collections.abc import Awaitable, Callable, Container, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from snapline.errors import CoordinatorUnavailableError, NotFoundError, UsageError
from snapline.gateway.http_server import has_no_site_header, is_from_other_site
from snapline.messages.coordinator_client import CoordinatorClient
from snapline.messages.status import FleetStatus, HostStatus
from snapline.security.rpc_authorization import ADMIN, APPROVER, OPERATOR
from snapline.storage.store.catalog import SnapshotSummary
from snapline.view.display_text import count, pill, size
from snapline.view.markup import Child, Markup, join, tag
from snapline.view.operator_actions import (
    ActionField,
    ActionOutcome,
    Actions,
    ApprovalActions,
    ApprovalCalls,
    Fields,
    FleetActions,
    KeptSnapshots,
    ProposedAction,
    StoreActions,
    others_for_agents,
)
from snapline.view.page_elements import action_link, section, table
from snapline.view.sign_in import HEADERS, Sessions, form_of
from snapline.view.watch import ENDED, FleetWatch

ROWS_MAX = 100

HOST_COLUMNS = (("Host", ""), ("State", ""), ("Agents", "number"), ("Actions", ""))
SNAPSHOT_COLUMNS = (
    *(("Epoch", "number"), ("Taken", ""), ("Agents", "number"), ("States", "number"), ("In transit", "number")),
    *(("Kept as", ""), ("Actions", "")),
)


def links_of_epoch(epoch: int, *, can_restore: bool, is_here: bool) -> Markup:
    """Draw links to the actions that can be run on a snapshot."""
    restore = (("restore", "Restore"),) if can_restore else ()
    verbs = [*restore, *((("tag", "Tag"), ("pin", "Pin"), ("fork", "Fork")) if is_here else ())]
    return tag("p", [action_link(verb, f"{label} epoch {epoch}", snapshot=epoch) for verb, label in verbs])


def actions_body(facts: FleetStatus, kept: KeptSnapshots, restorable: Container[int], *, is_here: bool) -> Markup:
    """Draw the page that lists all actions currently possible. `restorable` lists the epochs that the fleet can restore."""
    title = tag("div", tag("h1", "Actions"), class_="title")
    about = tag("p", "Each action first shows its effects, and runs after confirmation.", class_="quiet")
    now = tag("p", action_link("snapshot", "Take a snapshot"))
    hosts = table(HOST_COLUMNS, [_host(host, facts) for host in facts.hosts], label="Hosts")
    rows = [
        _snapshot(each, kept, can_restore=each.epoch in restorable, is_here=is_here)
        for each in reversed(kept.snapshots[-ROWS_MAX:])
    ]
    held = table(SNAPSHOT_COLUMNS, rows, label="Snapshots") if rows else tag("p", "There is none yet.", class_="quiet")
    hint = "Tags, pins and forks are made where the store is: start the view there, with --data-dir."
    away = None if is_here else tag("p", hint, class_="quiet")
    more = len(kept.snapshots) - ROWS_MAX
    rest = tag("p", f"and {more:,} older ones: see `snapline snapshot list`", class_="quiet") if more > 0 else None
    return join(
        [title, about, now, section("hosts", "Hosts", hosts), section("snapshots", "Snapshots", held, rest, away)]
    )


def _host(host: HostStatus, facts: FleetStatus) -> Markup:
    actions: list[Child] = []
    if host.state == "alive":
        if host.is_drained:
            actions.append(_sole("resume", host))
        elif others_for_agents(facts, host):
            actions.append(_sole("drain", host))
        actions.append(_sole("kill", host))
    state = tag("td", pill("host", host.state), " drained" if host.is_drained else None)
    return tag(
        "tr",
        tag("th", host.host, scope="row"),
        state,
        tag("td", count(host.agents), class_="number"),
        tag("td", actions),
    )


def _sole(verb: str, host: HostStatus) -> Markup:
    return action_link(verb, f"{verb.capitalize()} {host.host}", host=host.host)


def _snapshot(each: SnapshotSummary, kept: KeptSnapshots, *, can_restore: bool, is_here: bool) -> Markup:
    epoch, names = each.epoch, kept.tags_of(each.epoch)
    is_pinned = epoch in kept.pins
    if each.damage:
        return tag(
            "tr", tag("th", epoch, scope="row", class_="number"), tag("td", f"damaged: {each.damage}", colspan=6)
        )
    actions = [action_link("restore", f"Restore {epoch}", snapshot=epoch)] if can_restore else []
    if is_here:
        pin = ("unpin", "Unpin") if is_pinned else ("pin", "Pin")
        verbs = (("tag", "Tag"), pin, ("fork", "Fork"))
        actions += [action_link(verb, f"{label} {epoch}", snapshot=epoch) for verb, label in verbs]
        actions += [action_link("untag", f"Remove tag {name}", name=name) for name in names]
    figures = (count(each.agent_count), size(each.state_bytes), count(each.channel_state_messages))
    return tag(
        "tr",
        tag("th", tag("a", epoch, href=f"/epochs/{epoch}"), scope="row", class_="number"),
        tag("td", each.created),
        [tag("td", figure, class_="number") for figure in figures],
        tag("td", ", ".join([*names, *(["pinned"] if is_pinned else [])])),
        tag("td", actions),
    )


def confirmation_body(proposed: ProposedAction, address: str, hidden: Sequence[tuple[str, str]]) -> Markup:
    """Draw an action's confirmation page, which describes its effects and has the button that runs it."""
    fields = [_field(each) for each in proposed.fields]
    secrets = [tag("input", type="hidden", name=name, value=value) for name, value in hidden]
    button = tag("button", proposed.button, class_="grave" if proposed.is_grave else None)
    leave = tag("a", "Leave it", href="/act")
    form = tag("form", secrets, fields, tag("p", button, leave), method="post", action=address, class_="confirm")
    effects = tag("ul", [tag("li", each) for each in proposed.sentences])
    title = tag("div", tag("h1", f"{proposed.title}?"), class_="title")
    return join([title, effects, proposed.more, form])


def _field(field: ActionField) -> Markup:
    id = f"field-{field.name}"
    label = tag("label", field.label, for_=id)
    if field.choices:
        options = [tag("option", words, value=value) for value, words in field.choices]
        return tag("p", label, tag("select", options, name=field.name, id=id))
    box = tag("input", type="text", name=field.name, id=id, required=field.is_required, maxlength=field.characters_max)
    return tag("p", label, box)


def outcome_body(proposed: ProposedAction, outcome: ActionOutcome | None) -> Markup:
    """Draw the page that shows the outcome of an action. `outcome` is None while the action is in progress."""
    title = tag("div", tag("h1", proposed.title), class_="title")
    link_back = tag("a", "Actions", href="/act")
    if outcome is None:
        return join([title, tag("p", "It is under way.", class_="strip", role="status"), tag("p", link_back)])
    strip = tag(
        "p",
        outcome.sentence,
        class_="strip bad" if outcome.is_bad else "strip",
        role="alert" if outcome.is_bad else "status",
    )
    where = tag("a", outcome.where, href=outcome.address) if outcome.address != "/act" else None
    return join([title, strip, tag("p", where, class_="deeds"), tag("p", link_back)])


# -- requests ----------------------------------------------------------------------------------------------------------


ROLES = (OPERATOR, ADMIN)
"""Roles with which the view may change the fleet."""

ANSWERS, ANSWERING_ROLES = ("grant", "deny"), (APPROVER, *ROLES)
"""Actions that answer an approval, and roles with which the view may do so."""

ACT_HEADERS = {**HEADERS, "Referrer-Policy": "same-origin"}
"""HTTP headers of action pages. With the usual referrer policy, browsers would hide the origin of a form."""

RELOAD_PAGE_S = 2
"""Time in seconds after which the page of an action in progress reloads."""

Propose = Callable[[FleetStatus, Fields], Awaitable[ProposedAction]]


class NotAllowedError(UsageError):
    """The requester may not run the action."""


class Operators:
    """Actions that the view offers, and whether it may run them."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        folder: Path | None,
        *,
        has_certificates: bool,
        people: ApprovalCalls | None = None,
    ) -> None:
        """Set the fleet and the store on which actions operate.

        `folder` is the fleet's folder if the fleet is on this machine, otherwise None. If `has_certificates` is False, any requester may
        run all actions. `people` reads and answers approvals, which are not offered without it.
        """
        self.fleet = fleet = FleetActions(coordinator)
        self.store = StoreActions(coordinator, folder)
        self._has_certificates = has_certificates
        self.verbs: dict[str, Propose] = {
            "snapshot": fleet.snapshot,
            "restore": fleet.restore,
            "drain": fleet.drain,
            "resume": fleet.resume,
            "kill": fleet.kill,
        }
        of_store: dict[str, Propose] = {
            "tag": self.store.tag,
            "untag": self.store.untag,
            "pin": self.store.pin,
            "unpin": self.store.unpin,
            "fork": self.store.fork,
        }
        self.verbs |= of_store if self.store.is_here else {}
        if people is not None:
            answers = ApprovalActions(people)
            self.verbs |= {"grant": answers.grant, "deny": answers.deny}

    def may(self, facts: FleetStatus | None, verb: str = "") -> bool:
        """Return whether the fleet allows the view to run this action, or actions in general, regardless of the fleet's phase."""
        roles = ANSWERING_ROLES if verb in ANSWERS else ROLES
        return facts is not None and (not self._has_certificates or facts.caller_role in roles)

    def answers(self, facts: FleetStatus | None) -> bool:
        """Return whether the view may answer approvals now."""
        return "grant" in self.verbs and self.may(facts, "grant") and facts is not None and facts.phase not in ENDED

    def offers(self, facts: FleetStatus | None) -> bool:
        """Return whether the view may run actions now, which also requires that the fleet has not ended."""
        return self.may(facts) and facts is not None and facts.phase not in ENDED

    async def links(self, facts: FleetStatus | None, epoch: int) -> Markup | None:
        """Return links to a snapshot's actions, for the snapshot's page."""
        if not self.offers(facts):
            return None
        return links_of_epoch(epoch, can_restore=epoch in await self.fleet.restorable(), is_here=self.store.is_here)


Page = Callable[[str, str, Markup], Response]


class ActingPages:
    """Request handlers for operators' actions. `page(id, title, body)` must wrap a screen in the page frame."""

    def __init__(self, operators: Operators, sessions: Sessions, watch: FleetWatch, page: Page) -> None:
        self._operators = operators
        self._sessions = sessions
        self._watch = watch
        self._page = page
        self._actions = Actions()

    async def close(self) -> None:
        """Stop waiting for the outcomes of actions."""
        await self._actions.close()

    async def show(self, request: Request) -> Response:
        """Show the possible actions."""
        facts, store = await self._facts(), self._operators.store
        kept, restorable = await store.kept(), await self._operators.fleet.restorable()
        return self._page("act", "Actions", actions_body(facts, kept, restorable, is_here=store.is_here))

    async def propose(self, request: Request) -> Response:
        """Show the confirmation page of an action."""
        verb = request.path_params["verb"]
        facts = await self._facts(verb)
        if verb not in self._operators.verbs:
            raise NotFoundError(f"there is no action {verb!r} here")
        proposed = await self._operators.verbs[verb](facts, dict(request.query_params))
        key = self._actions.propose(self._sessions.name_of(request), proposed)
        hidden = (("token", self._sessions.form_token(request)), ("key", key))
        return self._headed(self._page("act", proposed.title, confirmation_body(proposed, "/deeds", hidden)))

    async def carry_out(self, request: Request) -> Response:
        """Run the action of a submitted form. Submitting the form again does not run the action again."""
        foreign = foreign_form_reason(request)
        form = await form_of(request)
        if foreign or not self._sessions.is_own_form(request, form.get("token", "")):
            raise NotAllowedError(
                foreign or "this form was not made for you, or before you signed in: nothing has been done"
            )
        self._check(self._watch.last.facts, ANSWERS[0])  # the action's own role was checked when it was proposed
        key = form.get("key", "")
        await self._actions.do(self._sessions.name_of(request), key, form)
        return RedirectResponse(f"/deeds/{key}", 303, ACT_HEADERS)

    async def outcome(self, request: Request) -> Response:
        """Show the outcome of an action."""
        proposed, result = self._actions.outcome(self._sessions.name_of(request), request.path_params["key"])
        response = self._headed(self._page("act", proposed.title, outcome_body(proposed, result)))
        if result is None:
            response.headers["Refresh"] = str(RELOAD_PAGE_S)
        return response

    async def _facts(self, verb: str = "") -> FleetStatus:
        """Return the current state of the fleet, from which actions are proposed."""
        state = await self._watch.now()
        if state.trouble or state.facts is None:
            raise CoordinatorUnavailableError(state.trouble or "the fleet has not answered yet")
        self._check(state.facts, verb)
        if state.facts.phase in ENDED:
            raise UsageError(f"the fleet has {state.facts.phase}: nothing can be done to it here")
        return state.facts

    def _check(self, facts: FleetStatus | None, verb: str = "") -> None:
        if not self._operators.may(facts, verb):
            role, roles = "" if facts is None else facts.caller_role, ANSWERING_ROLES if verb in ANSWERS else ROLES
            raise NotAllowedError(f"this view is {role or 'nobody'} to the fleet, and that takes {' or '.join(roles)}")

    @staticmethod
    def _headed(response: Response) -> Response:
        response.headers.update(ACT_HEADERS)
        return response


def foreign_form_reason(request: Request) -> str:
    """Return why a form cannot come from one of the view's own pages, or "" if it can."""
    if has_no_site_header(request):
        return "your browser does not say where this form comes from: nothing has been done"
    if is_from_other_site(request):
        return "this form comes from another site: nothing has been done"
    return ""
