"""Errors in HTTP: a status, and a body as in RFC 9457 (problem details)."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from snapline import errors


class NotJsonError(errors.UsageError):
    """A body that is not declared as JSON."""


class BusyError(errors.ExternalFailureError):
    """Too many requests or readers; the request had no effect."""


STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.AgentMissingError, 404),
    (errors.HandlerNotPublicError, 403),
    (errors.InputRefusedError, 422),
    (errors.MessageTooLargeError, 413),
    (errors.FleetEndedError, 410),
    (errors.InputDeadLetteredError, 500),
    (errors.AnswerMissingError, 504),
    (errors.InputUnknownError, 504),
    (errors.InputRejectedError, 503),
    (errors.CoordinatorUnavailableError, 503),
    (errors.UnknownOutcomeError, 504),
    (errors.NotFoundError, 404),
    (errors.StoreError, 503),
    (BusyError, 503),
    (NotJsonError, 415),
    (errors.UsageError, 400),
)
"""Status of each error; the first match counts. 504: the request may have had an effect; repeat it with the same key."""

OTHERWISE = 500


def problem_of(error: Exception) -> JSONResponse:
    """Return the response to a failed request: the error's text, with the input's agent, key and number if known."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), OTHERWISE)
    about = {name: value for name in ("agent", "key", "number") if (value := getattr(error, name, None))}
    return problem(status, str(error), {"error": type(error).__name__, **about})


def problem(status: int, detail: str, more: Mapping[str, object] | None = None) -> JSONResponse:
    """Return a response with one sentence, and the fields that a program needs."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = {"type": "about:blank", "status": status, "detail": detail, **(more or {})}
    return JSONResponse(body, status, headers, media_type="application/problem+json")
