"""Which server speaks OpenAI's API, and what it takes beyond that. Nothing is sent to a server that would refuse it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from parrot_server.core.model import Sampling
from parrot_server.engines.finding import Finding
from parrot_server.engines.http import Body, EngineHTTP
from parrot_server.errors import EngineError, SetupError


@dataclass(frozen=True, slots=True)
class Flavour:
    """A server's manners. What nobody knows is taken as absent.

    Args:
        name: vllm, llama.cpp, sglang, or openai for any other.
        takes_ids: completions take token ids as prompt.
        continues: a chat can go on with the assistant's last message.
        priority_sign: how our priority (higher is sooner) is said; 0: not at all.
        salts: takes `cache_salt`.
        counts_on: tells usage in every chunk when asked.
        shares_prefixes: reuses a prompt's beginning across requests, so that warming it pays.
        ignores_eos: takes `ignore_eos`.
        grammars: enforces a JSON schema and choices.
        tokenize_path, tokenize_key: where it tokenises a text, and the field's name.
        named_calls: takes `rid`, our name of a call.
        metrics: has `/metrics` of vLLM's.
        max_tokens_key: what the bound on an answer is called.
    """

    name: str = "openai"
    takes_ids: bool = False
    continues: bool = False
    priority_sign: int = 0
    salts: bool = False
    counts_on: bool = False
    shares_prefixes: bool = False
    ignores_eos: bool = False
    grammars: bool = False
    tokenize_path: str = ""
    tokenize_key: str = "prompt"
    named_calls: bool = False
    metrics: bool = False
    max_tokens_key: str = "max_tokens"


OTHER = Flavour()
OPENAI = Flavour(max_tokens_key="max_completion_tokens")
VLLM = Flavour(
    "vllm",
    takes_ids=True,
    continues=True,
    priority_sign=-1,
    salts=True,
    counts_on=True,
    shares_prefixes=True,
    ignores_eos=True,
    grammars=True,
    tokenize_path="/tokenize",
    metrics=True,
)
LLAMA_CPP = Flavour(
    "llama.cpp",
    takes_ids=True,
    continues=True,
    ignores_eos=True,
    grammars=True,
    tokenize_path="/tokenize",
    tokenize_key="content",
)
SGLANG = Flavour(
    "sglang",
    takes_ids=True,
    continues=True,
    salts=True,
    counts_on=True,
    shares_prefixes=True,
    ignores_eos=True,
    tokenize_path="/v1/tokenize",
    named_calls=True,
)
FLAVOURS = {flavour.name: flavour for flavour in (OTHER, VLLM, LLAMA_CPP, SGLANG)}


@dataclass(frozen=True, slots=True)
class Server:
    """What a server said of itself. None: it did not say."""

    flavour: Flavour
    models: tuple[str, ...]
    context_tokens: int | None = None
    kv_tokens: int | None = None
    max_running: int | None = None


async def probe(http: EngineHTTP, flavour: Flavour | None) -> Server:
    """Ask a server what it is.

    Args:
        http: the server.
        flavour: what the operator says that it is, if they do.

    Raises:
        EngineError: it does not answer.
    """
    listing = await http.get("/v1/models")
    cards: list[dict[str, Any]] = listing.get("data") or [] if isinstance(listing, dict) else []
    models = tuple(card["id"] for card in cards if isinstance(card.get("id"), str))
    owner = cards[0].get("owned_by") if cards else None
    contexts = [length for card in cards if isinstance(length := card.get("max_model_len"), int)]
    context_tokens = min(contexts, default=None)
    if flavour is None:
        flavour = await _recognise(http, owner)
    if flavour.name == "vllm":
        cache = await _vllm_cache(http)
        if cache.get("enable_prefix_caching") == "False":
            flavour = replace(flavour, shares_prefixes=False)
        blocks, block_tokens = cache.get("num_gpu_blocks", ""), cache.get("block_size", "")
        known = blocks.isdecimal() and block_tokens.isdecimal()
        return Server(flavour, models, context_tokens, kv_tokens=int(blocks) * int(block_tokens) if known else None)
    if flavour.name == "llama.cpp" and isinstance(props := await http.find("/props"), dict):
        slot_tokens, slots = (props.get("default_generation_settings") or {}).get("n_ctx"), props.get("total_slots")
        if isinstance(slot_tokens, int) and isinstance(slots, int):
            return Server(flavour, models, slot_tokens, slot_tokens * slots, slots)
    return Server(flavour, models, context_tokens)


async def _recognise(http: EngineHTTP, owner: object) -> Flavour:
    """By the owner that a server gives its models, and by a route that only this server has."""
    if owner == "vllm" and "version" in (await http.find("/version") or {}):
        return VLLM
    if owner == "llamacpp" and "default_generation_settings" in (await http.find("/props") or {}):
        return LLAMA_CPP
    if owner == "sglang":
        return SGLANG
    return OPENAI if http.host.endswith("openai.com") else OTHER


async def _vllm_cache(http: EngineHTTP) -> dict[str, str]:
    """What vLLM says of its KV cache, in the labels of one of its metrics."""
    try:
        text = await http.get_text("/metrics")
    except EngineError:
        return {}
    config = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    return dict(re.findall(r'(\w+)="([^"]*)"', config[1])) if config else {}


def sampling_fields(flavour: Flavour, sampling: Sampling, chat: bool) -> Body:
    """How an output is generated, in the words of a flavour. Stop strings are not among them: we cut them ourselves."""
    fields: Body = {
        flavour.max_tokens_key: sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.ignore_eos and flavour.ignores_eos:
        fields["ignore_eos"] = True
    if flavour.grammars and sampling.choices:
        words = [json.dumps(choice, ensure_ascii=False) for choice in sampling.choices]
        by_grammar = {"grammar": f"root ::= {' | '.join(words)}"}
        fields |= by_grammar if flavour is LLAMA_CPP else {"structured_outputs": {"choice": list(sampling.choices)}}
    elif flavour.grammars and sampling.schema is not None:
        schema = json.loads(sampling.schema)
        if chat:
            form = {"name": "output", "schema": schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": form}
        else:
            fields |= {"json_schema": schema} if flavour is LLAMA_CPP else {"structured_outputs": {"json": schema}}
    return fields


def findings(flavour: Flavour, exact: bool) -> tuple[Finding, ...]:
    """What a server of this flavour does for us, and what would bring more.

    Args:
        flavour: which server.
        exact: whether prompts go out as token ids.
    """
    return (
        Finding("server", True, f"it is taken for {flavour.name}"),
        Finding.of(
            "exact prompts",
            exact,
            "prompts go out as token ids",
            "prompts go out as messages, and a value that holds a control token is refused",
            "give the folder with the model's tokenizer.json" if flavour.takes_ids else "",
        ),
        Finding.of(
            "prefix cache",
            flavour.shares_prefixes,
            "the beginnings of prompts are reused, so they are warmed ahead; it holds them as long as it likes",
            "it is not known to reuse the beginning of a prompt for another",
            "",
        ),
        Finding.of(
            "priority",
            flavour.priority_sign != 0,
            "calls bear our priority; the server follows it if it was started with --scheduling-policy priority",
            "the engine's own queue keeps an order of its own; we keep it short",
            "",
        ),
        Finding.of("grammar", flavour.grammars, "JSON schemas and choices are enforced", "none is enforced", ""),
        Finding.of("load", flavour.metrics, "it says how busy it is", "only what we sent it is known of its load", ""),
    )


def flavour_named(name: str | None) -> Flavour | None:
    """The flavour that an operator named. Raises SetupError."""
    if name is None:
        return None
    if name not in FLAVOURS:
        raise SetupError(f"{name!r} is no kind of OpenAI-compatible server that we know: {', '.join(FLAVOURS)}")
    return FLAVOURS[name]
