"""OpenAPI document of the gateway's requests and answers: generic, or with the message types of one fleet's classes."""

from collections.abc import Mapping
from typing import Any

import msgspec

import snapline
from snapline.agent_runtime.agent import agent_type
from snapline.agent_runtime.fleet import Fleet
from snapline.gateway.served_handlers import NOTHING, Served

REFERENCE = "#/components/schemas/{name}"

_Json = dict[str, Any]
"""A JSON object."""

_KEY: _Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": 128},
    "description": "The same key, for the same agent, is the same request. Without one a random key is drawn, and returned.",
}
_ANSWER: _Json = {
    "name": "answer",
    "in": "query",
    "schema": {"type": "string", "enum": ["none", "early", "final"], "default": "none"},
    "description": "Wait for what the agent answers; an early answer may be taken back by a recovery.",
}
_TIMEOUT: _Json = {"name": "timeout_s", "in": "query", "schema": {"type": "number", "default": 30}}


def openapi_of(fleet: Fleet | None, served: Served = NOTHING) -> _Json:
    """Return the document. With a fleet's classes it contains the types of public handlers and of `served` ones; otherwise no types."""
    paths: _Json = {"/outputs/{topic}": {"get": _outputs()}}
    schemas: _Json = {}
    if fleet is None:
        message = {"name": "message", "in": "path", "required": True, "schema": {"type": "string"}}
        paths["/agents/{agent}/{message}"] = {"post": _post({"type": "object"}, [message])}
    else:
        types = _types_of(fleet, served)
        found, schemas = msgspec.json.schema_components(list(types.values()), ref_template=REFERENCE)
        for name, schema in zip(types, found, strict=True):
            paths[f"/agents/{{agent}}/{name}"] = {"post": _post(schema, [], name)}
    return {
        "openapi": "3.1.0",
        "info": {"title": fleet.name if fleet is not None else "snapline", "version": snapline.__version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _types_of(fleet: Fleet, served: Served) -> Mapping[str, type]:
    """Return the message types that the gateway may send to the fleet's agents, by name."""
    found: dict[str, type] = {}
    for agent in fleet.agents:
        for name, handler in agent_type(type(fleet.make(agent))).handlers.items():
            if name not in found and (handler.is_public or served.has(agent, name)):
                found[name] = handler.message_type
    return dict(sorted(found.items()))


def _post(schema: _Json, parameters: list[_Json], name: str = "") -> _Json:
    agent = {"name": "agent", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": f"give{name}" if name else "give",
        "parameters": [agent, *parameters, _KEY, _ANSWER, _TIMEOUT],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {"description": "Taken, and answered."},
            "202": {"description": "Taken: it takes effect exactly once."},
            "403": {"description": "No public handler takes it."},
            "404": {"description": "There is no such agent."},
            "415": {"description": "The body has another Content-Type than application/json."},
            "422": {"description": "Its agent will never take it; the detail says why."},
            "503": {"description": "Not taken in time: nothing has happened."},
            "504": {"description": "It may have been taken: give it again with the same key."},
        },
    }


def _outputs() -> _Json:
    after = {"name": "after", "in": "query", "schema": {"type": "string"}, "description": "A cursor."}
    topic = {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "operationId": "outputs",
        "parameters": [topic, after],
        "responses": {"200": {"description": "Server-sent events.", "content": {"text/event-stream": {}}}},
    }
