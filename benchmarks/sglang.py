"""What the server costs: the same calls through us and straight to an SGLang server, taking turns.

    python -m benchmarks.sglang http://127.0.0.1:30000             both of these
    python -m benchmarks.sglang http://127.0.0.1:30000 plain       one call at a time: time to the first text, and to the end
    python -m benchmarks.sglang http://127.0.0.1:30000 repeated    many calls at once, of which 3% repeat a prompt: time for all

Whatever else the machine does hits both alike, but on few cores it hits us harder: our server needs a processor while SGLang
computes on it. With two, give SGLang one of them (`taskset -c 0`) and this the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

import httpx

CALLS = 200
WARM_CALLS = 10
OUTPUT_TOKENS = 8
ROUNDS = 16  # many short ones: a machine's speed drifts within a minute by more than what is measured
ROUND_CALLS = 33
AT_ONCE = 8
REPEATED = 0.03
PROMPT_WORDS = 30
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


def through_us(http: httpx.Client, function: str, prompt: str) -> Latency:
    """Send a program of one call, and read its variable's stream: two requests."""
    body = {"calls": [{"id": "c", "function": function, "inputs": {"x": prompt}, "outputs": {"y": "y"}}]}
    began_s = time.perf_counter()
    program = http.post("/v1/programs", json=body).raise_for_status().json()["id"]
    with http.stream("GET", f"/v1/programs/{program}/variables/y/stream") as reply:
        return _read(began_s, reply, lambda data: "offset" in data)


def registered(http: httpx.Client) -> str:
    """A function whose prompt is its input and nothing else, as its id."""
    sampling = {"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"name": "plain", "template": "{{x}}{{y}}", "outputs": {"y": sampling}, "format": "text"}
    id: str = http.post("/v1/functions", json=body).raise_for_status().json()["id"]
    return id


def all_straight(http: httpx.Client, prompts: list[str]) -> float:
    """Send calls to SGLang's own API, so many at once as it runs; seconds for all."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda prompt: straight(http, prompt), prompts))
    return time.perf_counter() - began_s


def all_through_us(http: httpx.Client, function: str, prompts: list[str]) -> float:
    """Send calls as one program, and wait for its values; seconds for all."""
    calls = [
        {"id": f"c{number}", "function": function, "inputs": {"x": prompt}, "outputs": {"y": f"y{number}"}}
        for number, prompt in enumerate(prompts)
    ]
    began_s = time.perf_counter()
    reply = http.post("/v1/programs", params={"wait": 600}, json={"calls": calls}, timeout=600).raise_for_status()
    assert len(reply.json()["values"]) == len(prompts), reply.json()["errors"]
    return time.perf_counter() - began_s


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


def main(url: str, what: str = "both", calls: int = CALLS) -> None:
    """Print what we add to one call, and how long a workload takes by each way.

    Args:
        url: of a running SGLang server.
        what: plain, repeated or both.
        calls: so many by each way, one at a time.
    """
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as direct, parrot("--sglang", url) as http:
        function = registered(http)
        if what in ("plain", "both"):
            _plain(direct, http, function, calls)
        if what in ("repeated", "both"):
            _repeated(direct, http, function)


def _plain(direct: httpx.Client, http: httpx.Client, function: str, calls: int) -> None:
    pairs = []
    for number in range(-WARM_CALLS, calls):
        here, there = _prompt(2 * number), _prompt(2 * number + 1)
        # Each goes first every other time. A pair runs under the same load, so differences are taken within pairs too.
        if number % 2:
            ours = through_us(http, function, here)
            theirs = straight(direct, there)
        else:
            theirs = straight(direct, there)
            ours = through_us(http, function, here)
        if number >= 0:
            pairs.append((ours, theirs))
    print(f"a plain call of {OUTPUT_TOKENS} tokens, {calls} times each way in turns: medians in ms")
    print("             through us   straight   difference   in pairs")
    for name in ("ttft_ms", "total_ms"):
        mine, others = ([getattr(pair[way], name) for pair in pairs] for way in (0, 1))
        apart = median(mine) - median(others)
        paired = median(one - other for one, other in zip(mine, others, strict=True))
        print(f"  {name:9}  {median(mine):10.1f} {median(others):10.1f}   {apart:+10.1f} {paired:+10.1f}")


def _repeated(direct: httpx.Client, http: httpx.Client, function: str) -> None:
    rounds = []
    for number in range(ROUNDS):
        here, there = _workload(2 * number), _workload(2 * number + 1)
        if number % 2:
            ours = all_through_us(http, function, here)
            theirs = all_straight(direct, there)
        else:
            theirs = all_straight(direct, there)
            ours = all_through_us(http, function, here)
        rounds.append((ours, theirs))
    print(f"{ROUND_CALLS} calls at once, {REPEATED:.0%} of them with a prompt seen before, by each way in turns:")
    for ours, theirs in rounds:
        print(f"  through us {ours:.2f} s, straight {theirs:.2f} s, ratio {ours / theirs:.3f}")
    ours_s, theirs_s = (sum(times) for times in zip(*rounds, strict=True))
    middle = median(ours / theirs for ours, theirs in rounds)
    print(
        f"  all rounds: through us {ours_s:.2f} s, straight {theirs_s:.2f} s, ratio {ours_s / theirs_s:.3f}, median {middle:.3f}"
    )


def _prompt(number: int) -> str:
    """Of the same length, and new from its first word on."""
    return f"{number + 10_000} birds sat in a tree, and the first of them said to the others:"


def _workload(seed: int) -> list[str]:
    """Prompts of one length in random order; a few of them come twice."""
    random = Random(seed)
    twice = round(REPEATED * ROUND_CALLS)
    prompts = [
        " ".join(f"{random.randrange(16**4):04x}" for _ in range(PROMPT_WORDS)) for _ in range(ROUND_CALLS - twice)
    ]
    prompts += prompts[:twice]
    random.shuffle(prompts)
    return prompts


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
