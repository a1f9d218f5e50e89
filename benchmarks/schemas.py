"""Random JSON Schemas on the embedded engine: how many answers are whole, and whether every whole one fits its schema."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling
from parrot_server.engines.base import Done, Request, Text
from parrot_server.engines.embedded import EmbeddedEngine

SEEDS = range(200)
DEPTH = 3
MAX_TOKENS = 256
AT_ONCE = 16
NAMES = ["name", "age", "city", "tags", "count", "kind", "notes", "price", "active", "items"]
CONSTANTS = ["red", "green", "blue", 1, 2, True, None]

Schema = dict[str, Any]


def random_object(seed: int) -> Schema:
    """A schema of an object, from a seed; the same seed gives the same schema."""
    dice = random.Random(seed)
    schema = _random_schema(dice, DEPTH)
    if schema.get("type") == "object":
        return schema
    return {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}


def _random_schema(dice: random.Random, depth: int) -> Schema:
    kinds = ["string", "word", "integer", "number", "boolean", "null", "enum"] + ["object", "array"] * (2 * (depth > 0))
    kind = dice.choice(kinds)
    if kind == "object":
        names = dice.sample(NAMES, dice.randint(1, 4))
        properties = {name: _random_schema(dice, depth - 1) for name in names}
        required = names[: dice.randint(0, len(names))]
        return {"type": kind, "properties": properties, "required": required, "additionalProperties": False}
    if kind == "array":
        least = dice.randint(0, 2)
        return {
            "type": kind,
            "items": _random_schema(dice, depth - 1),
            "minItems": least,
            "maxItems": least + dice.randint(1, 2),
        }
    simple: dict[str, Schema] = {
        "string": {"type": "string", "maxLength": dice.randint(3, 40)},
        "word": {"type": "string", "pattern": "^[a-z]{2,8}$"},
        "integer": {"type": "integer", "minimum": 0, "maximum": dice.randint(1, 1_000)},
        "enum": {"enum": dice.sample(CONSTANTS, dice.randint(1, 4))},
    }
    return simple.get(kind, {"type": kind})


def fits(value: Any, schema: Schema) -> bool:
    """Whether a value is valid under one of the schemas made here, decided without the engine's library."""
    match schema.get("type"):
        case "object":
            known, required = schema["properties"], set(schema["required"])
            if not isinstance(value, dict) or not required <= set(value) <= set(known):
                return False
            return all(fits(inner, known[name]) for name, inner in value.items())
        case "array":
            if not isinstance(value, list) or not schema["minItems"] <= len(value) <= schema["maxItems"]:
                return False
            return all(fits(inner, schema["items"]) for inner in value)
        case "string":
            long = schema.get("maxLength", 1_000)
            return isinstance(value, str) and len(value) <= long and bool(re.search(schema.get("pattern", ""), value))
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            return type(value) in (int, float)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    return any(value == one and type(value) is type(one) for one in schema["enum"])


async def run() -> tuple[int, int, list[int]]:
    """How many answers are whole, how many of those fit, and the seeds of those that were cut."""
    engine = EmbeddedEngine(kv_tokens=32_768)
    await engine.start()
    slots = asyncio.Semaphore(AT_ONCE)

    async def answer(seed: int) -> tuple[str, str]:
        text = Piece(PieceKind.VALUE, "Describe a parrot in a pet shop as JSON.")
        pieces = (Piece(PieceKind.ROLE, "user"), text, Piece(PieceKind.ROLE, "assistant"))
        sampling = Sampling(max_tokens=MAX_TOKENS, schema=json.dumps(random_object(seed)))
        out, finish = "", ""
        async with slots:
            async for event in engine.generate(
                Request(f"s{seed}", "", Prompt(pieces, ("a", "b", "c"), True), sampling)
            ):
                if isinstance(event, Text):
                    out += event.text
                elif isinstance(event, Done):
                    finish = event.finish
        return out, finish

    answers = await asyncio.gather(*(answer(seed) for seed in SEEDS))
    await engine.close()
    whole = {seed: out for seed, (out, finish) in zip(SEEDS, answers, strict=True) if finish == "stop"}
    fitting = sum(fits(json.loads(out), random_object(seed)) for seed, out in whole.items())
    return len(whole), fitting, [seed for seed in SEEDS if seed not in whole]


def main() -> None:
    """Print the shares."""
    whole, fitting, cut = asyncio.run(run())
    count = len(SEEDS)
    print(f"{count} random JSON Schemas (seeds {SEEDS[0]} to {SEEDS[-1]}, {DEPTH} deep, at most {MAX_TOKENS} tokens)")
    print(f"  whole {whole} ({whole / count:.1%}), valid {fitting} of these; cut at max_tokens: seeds {cut}")


if __name__ == "__main__":
    main()
