"""What the server costs a plain call: the same call through us and straight to an SGLang server, taking turns.

    python -m benchmarks.sglang http://127.0.0.1:30000

Whatever else the machine does hits both alike, but on few cores it hits us harder: our server needs a processor while SGLang
computes on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx

CALLS = 200
WARM_CALLS = 10
OUTPUT_TOKENS = 8
TIMEOUT_S = 60.0
SERVE = (sys.executable, "-c", "from parrot_server.cli import main; main()", "serve", "--port", "0")


@dataclass(frozen=True)
class Latency:
    """Milliseconds from before the first request to the first text, and to the end."""

    ttft_ms: float
    total_ms: float


def straight(http: httpx.Client, prompt: str) -> Latency:
    """Send a call to SGLang's own API."""
    sampling = {"max_new_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    began_s = time.perf_counter()
    with http.stream("POST", "/generate", json={"text": prompt, "sampling_params": sampling, "stream": True}) as reply:
        return _read(began_s, reply, lambda data: bool(data.get("text")))


def through_us(http: httpx.Client, prompt: str) -> Latency:
    """Send a program of one call, and read its variable's stream: two requests."""
    sampling = {"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    body = {
        "functions": {"f": {"template": "{{x}}{{y}}", "outputs": {"y": sampling}, "format": "text"}},
        "calls": [{"id": "c", "function": "f", "inputs": {"x": prompt}, "outputs": {"y": "y"}}],
    }
    began_s = time.perf_counter()
    program = http.post("/v1/programs", json=body).raise_for_status().json()["id"]
    with http.stream("GET", f"/v1/programs/{program}/variables/y/stream") as reply:
        return _read(began_s, reply, lambda data: "offset" in data)


def _read(began_s: float, reply: httpx.Response, has_text: Callable[[dict[str, Any]], bool]) -> Latency:
    reply.raise_for_status()
    first_s = None
    for line in reply.iter_lines():
        data = line.removeprefix("data: ")
        if first_s is None and data != line and data != "[DONE]" and has_text(json.loads(data)):
            first_s = time.perf_counter()
    assert first_s is not None, "an answer without text"
    return Latency(1e3 * (first_s - began_s), 1e3 * (time.perf_counter() - began_s))


@contextmanager
def parrot(*options: str, within_s: float = TIMEOUT_S) -> Iterator[httpx.Client]:
    """A Parrot server in a process of its own, with these options of `parrot serve`; its engine is up by then."""
    with subprocess.Popen([*SERVE, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as http:
                end_s = time.monotonic() + within_s
                while (ready := http.get("/readyz")).status_code != 200:
                    assert time.monotonic() < end_s, ready.text
                    time.sleep(0.1)
                yield http
        finally:
            process.terminate()


def main(url: str, calls: int = CALLS) -> None:
    """Print the medians of both ways, and what we add.

    Args:
        url: of a running SGLang server.
        calls: so many by each way.
    """
    ours, theirs = [], []
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as direct, parrot("--sglang", url) as http:
        for number in range(-WARM_CALLS, calls):
            one, other = through_us(http, _prompt(2 * number)), straight(direct, _prompt(2 * number + 1))
            if number >= 0:
                ours.append(one)
                theirs.append(other)
    print(f"a plain call of {OUTPUT_TOKENS} tokens, {calls} times each way in turns: medians in ms")
    print("             through us   straight   difference")
    for name in ("ttft_ms", "total_ms"):
        mine, others = (median(getattr(latency, name) for latency in some) for some in (ours, theirs))
        print(f"  {name:9}  {mine:10.1f} {others:10.1f}   {mine - others:+10.1f}")


def _prompt(number: int) -> str:
    """Of the same length, and new from its first word on."""
    return f"{number + 10_000} birds sat in a tree, and the first of them said to the others:"


if __name__ == "__main__":
    main(sys.argv[1])
