"""The OpenAPI document: bodies are read by ourselves, so what they may hold is added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from parrot_sdk import wire

BODIES: tuple[type[BaseModel], ...] = (
    wire.NamedFunctionBody,
    wire.ProgramBody,
    wire.CallsBody,
    wire.PatchBody,
    wire.VariableBody,
)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """What a route takes as its body."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def install(app: FastAPI) -> None:
    """Add the bodies to the document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        _, bodies = models_json_schema(
            [(model, "validation") for model in BODIES], ref_template="#/components/schemas/{model}"
        )
        document["components"]["schemas"] |= bodies["$defs"]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the way that FastAPI's documentation gives
