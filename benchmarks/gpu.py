"""`make bench-gpu`: the two demos, as clients would and declared, and the prefix flood on SGLang with a model of 7 or 8 billion parameters.

    python -m benchmarks.gpu Qwen/Qwen2.5-7B-Instruct     starts SGLang (needs the extra `sglang` and a GPU)
    python -m benchmarks.gpu http://gpu1:30000            uses one that runs

For a machine with a GPU, where it should take less than ten minutes once the model is there. It has not been run on one yet: the
authors' machine has none. There, only the flood was tried, with shorter prompts, on SGLang's CPU build.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from typing import Any

import httpx

from benchmarks import compare
from benchmarks.sglang import parrot
from parrot_server.engines.server_process import free_port
from parrot_server.engines.sglang_launch import LaunchedSGLang

START_S = 900.0
WAIT_S = 300.0
FLOOD_RATIO = 1.5  # of the engine's KV
PROMPT_WORDS = 400  # about 1,750 tokens: no more than half of the pool is ever pinned
OTHER = {"template": "{{x}}{{y}}", "outputs": {"y": {"max_tokens": 1}}, "format": "text"}


def flood(http: httpx.Client) -> None:
    """Print how much of a known prefix is still cached after a flood, while a call waits for it and when none does."""
    prefix = _words()
    function = {**OTHER, "template": f"{prefix} {{{{x}}}}{{{{y}}}}"}
    calls = [_call("first", "one"), _call("waiting", {"var": "later"})]
    program = {"functions": {"f": function}, "variables": {"later": None}, "calls": calls, "close": True}
    held = _post(http, "/v1/programs", program)["id"]
    _usage(http, held, "first")
    pool_tokens = http.get("/v1/engines").json()["engines"][0]["kv_tokens"]
    flood_s = _others(http, pool_tokens)
    http.put(f"/v1/programs/{held}/variables/later", json={"value": "two"}).raise_for_status()
    waited = _usage(http, held, "waiting")
    _others(http, pool_tokens)
    after = _post(http, "/v1/programs", {"functions": {"f": function}, "calls": [_call("after", "three")]})["id"]
    print(f"prefix flood: {FLOOD_RATIO:g} times a pool of {pool_tokens:,} tokens in {flood_s:.1f} s")
    for what, usage in (("a call waited for it", waited), ("after its program", _usage(http, after, "after"))):
        print(f"  {what:22} {usage['cached_tokens']:5} of {usage['prompt_tokens']:5} prompt tokens cached")


def _others(http: httpx.Client, pool_tokens: int) -> float:
    """Send prompts that nobody will use again, more than the pool holds; returns the seconds that they took."""
    began_s, done_tokens = time.perf_counter(), 0.0
    while done_tokens < FLOOD_RATIO * pool_tokens:
        calls = [_call(f"c{n}", _words()) for n in range(16)]
        sinks = {call["id"]: "throughput" for call in calls}
        body = {"functions": {"f": OTHER}, "calls": calls, "criteria": sinks}
        program = _post(http, "/v1/programs", body)["id"]
        done_tokens += sum(_usage(http, program, call["id"])["prompt_tokens"] for call in calls)
    return time.perf_counter() - began_s


def _call(id: str, x: Any) -> dict[str, Any]:
    return {"id": id, "function": "f", "inputs": {"x": x}, "outputs": {"y": id}}


def _usage(http: httpx.Client, program: str, name: str) -> dict[str, int]:
    reply = http.get(f"/v1/programs/{program}/variables/{name}", params={"wait": WAIT_S}, timeout=WAIT_S + 10)
    usage: dict[str, int] = reply.raise_for_status().json()["usage"]
    return {"cached_tokens": 0, **usage}


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    return http.post(path, json=body).raise_for_status().json()


def _words() -> str:
    return " ".join(secrets.token_hex(2) for _ in range(PROMPT_WORDS))


def measure(url: str) -> None:
    """All of it, on the SGLang server at a URL."""
    compare.run(sglang=url)
    with parrot("--sglang", url, within_s=START_S) as http:
        flood(http)


async def launched(model: str) -> None:
    """All of it, on an SGLang server that is started for this."""
    port = free_port()
    engine = LaunchedSGLang("sglang", model, port=port)
    try:
        async with asyncio.timeout(START_S):
            await engine.start()
        await asyncio.to_thread(measure, f"http://127.0.0.1:{port}")
    finally:
        await engine.close()


def main(engine: str) -> None:
    """Run all of it.

    Args:
        engine: URL of an SGLang server, or a model to start one for.
    """
    if engine.startswith("http"):
        measure(engine)
    else:
        asyncio.run(launched(engine))


if __name__ == "__main__":
    main(sys.argv[1])
