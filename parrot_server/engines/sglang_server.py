"""What an SGLang server says of itself, and what it follows that it can do for us.

Source: SGLang 0.5.23, `srt/server_args.py`, `srt/entrypoints/http_server.py`, `srt/managers/scheduler.py`; read and run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parrot_server.engines.base import Load
from parrot_server.engines.finding import Finding
from parrot_server.engines.http import EngineHTTP
from parrot_server.errors import EngineError, Fault

PRIORITY_POLICIES = ("fcfs", "lof")  # the cache-aware ones pay no heed to priorities
GRAMMARLESS = (None, "none")
POOL_MARGIN_TOKENS = 6  # SGLang takes prompts that are this much shorter than its KV pool


@dataclass(frozen=True, slots=True)
class SGLangServer:
    """A running server.

    Args:
        model: the name that it serves its model under.
        tokenizer_path: where it has its tokenizer from, on its own machine.
        context_tokens: the longest prompt and answer; never more than its KV pool takes.
        priority_sign: how our priority (higher is sooner) is said there; 0: it takes none.
        grown_text: its streams bear the whole text so far in each event, not only what is new.
    """

    version: str
    model: str
    tokenizer_path: str
    context_tokens: int
    kv_tokens: int
    max_running: int
    priority_sign: int
    schedule_policy: str
    session_pins: bool
    prefix_cache: bool
    grammars: bool
    queue_times: bool
    deterministic: bool
    grown_text: bool
    load_path: str


async def probe(http: EngineHTTP, context_tokens: int) -> SGLangServer:
    """Ask a server what it is. Older ones have other paths, and know less.

    Args:
        http: the server.
        context_tokens: what to take for its context where it does not say.

    Raises:
        EngineError: it does not answer, or is no SGLang.
    """
    info = await http.find("/server_info") or await http.find("/get_server_info")
    cards = await http.find("/v1/models")
    if not isinstance(info, dict) or not isinstance(cards, dict) or not cards.get("data"):
        message = (
            f"engine {http.id}: the server at {http.url} does not answer as an SGLang server does: look at its URL"
        )
        raise EngineError(Fault.ENGINE, "wrong_server", message)
    card = cards["data"][0]
    load_path, now = await _loads(http)
    kv_tokens = _number(now, "max_total_num_tokens") or _number(info, "max_total_num_tokens") or context_tokens
    context = card.get("max_model_len") or _number(info, "context_length") or context_tokens
    longest = min(context, (_number(info, "max_req_input_len") or kv_tokens - POOL_MARGIN_TOKENS))
    lower_first = bool(info.get("schedule_low_priority_values_first"))
    return SGLangServer(
        version=str(info.get("version", "unknown")),
        model=card["id"],
        tokenizer_path=str(info.get("tokenizer_path") or info.get("model_path") or ""),
        context_tokens=longest,
        kv_tokens=kv_tokens,
        max_running=_number(now, "max_running_requests") or _number(info, "max_running_requests") or 32,
        priority_sign=(-1 if lower_first else 1) if info.get("enable_priority_scheduling") else 0,
        schedule_policy=str(info.get("schedule_policy", "")),
        session_pins=bool(info.get("enable_session_radix_cache")),
        prefix_cache=not info.get("disable_radix_cache"),
        grammars=info.get("grammar_backend") not in GRAMMARLESS,
        queue_times=bool(info.get("enable_metrics")),
        deterministic=bool(info.get("enable_deterministic_inference")),
        grown_text=not info.get("incremental_streaming_output"),
        load_path=load_path,
    )


async def _loads(http: EngineHTTP) -> tuple[str, dict[str, Any]]:
    for path in ("/v1/loads?include=core", "/get_load"):
        if said := await http.find(path):
            ranks = _ranks(said)
            return path, ranks[0] if ranks else {}
    return "", {}


def load_of(said: Any) -> Load:
    """How busy a server is, over all its data-parallel ranks."""
    ranks = _ranks(said)

    def total(*names: str) -> int:
        return sum(next((value for name in names if (value := _number(rank, name)) is not None), 0) for rank in ranks)

    waiting = total("num_waiting_reqs")
    running = total("num_running_reqs", "num_reqs")
    if not any("num_running_reqs" in rank for rank in ranks):
        running = max(0, running - waiting)  # older servers count both as one
    return Load(running, waiting, total("num_used_tokens", "num_tokens"))


def _ranks(said: Any) -> list[dict[str, Any]]:
    ranks = said.get("loads", [said]) if isinstance(said, dict) else said
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def _number(said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def findings(server: SGLangServer, exact: bool) -> tuple[Finding, ...]:
    """What a server can do for us as it was started, and the flag that would enable more.

    Args:
        server: what it said.
        exact: whether we have its model's tokenizer.
    """
    first = "lower" if server.priority_sign < 0 else "higher"
    policies = " or ".join(PRIORITY_POLICIES)
    return (
        Finding.of(
            "exact prompts",
            exact,
            "prompts go out as token ids",
            "prompts go out as messages, and a value that holds a control token is refused",
            "give the folder with the model's tokenizer.json",
        ),
        Finding.of(
            "prefix cache",
            server.prefix_cache,
            "the beginnings of prompts are reused",
            "every prompt is computed from its begin",
            "start it without --disable-radix-cache",
        ),
        Finding.of(
            "pin",
            server.session_pins and server.prefix_cache and exact,
            "a prefix stays while its calls wait, and goes with the last of them",
            "a prefix is warmed and touched now and then; a flood of other prompts may still push it out",
            "--enable-session-radix-cache" if exact else "give the folder with the model's tokenizer.json",
        ),
        Finding.of(
            "priority",
            server.priority_sign != 0 and server.schedule_policy in PRIORITY_POLICIES,
            f"the engine's own queue follows our order ({first} values first)",
            "the engine's own queue keeps an order of its own; we keep it short",
            f"--schedule-policy {policies}" if server.priority_sign else "--enable-priority-scheduling",
        ),
        Finding.of(
            "grammar",
            server.grammars,
            "JSON schemas and choices are enforced",
            "JSON schemas and choices are not enforced",
            "--grammar-backend xgrammar",
        ),
        Finding.of(
            "queue times",
            server.queue_times,
            "it says how long a call waited there",
            "how long a call waited there is not known",
            "--enable-metrics",
        ),
        Finding.of(
            "load",
            server.load_path.startswith("/v1/loads"),
            "it says how busy it is",
            "it does not say all of how busy it is",
            "a newer SGLang: 0.5.23 has /v1/loads",
        ),
        Finding.of(
            "short streams",
            not server.grown_text,
            "each event of a stream bears the new text only",
            "each event of a stream repeats the whole text so far",
            "--incremental-streaming-output",
        ),
        Finding.of(
            "seeds",
            server.deterministic,
            "the same seed gives the same text",
            "a seed does not make sampled text repeatable",
            "--enable-deterministic-inference",
        ),
    )
