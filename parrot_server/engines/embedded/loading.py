"""Bringing a model up: its tokenizer, its KV memory, and what work costs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from parrot_server.core.model import EngineSpec
from parrot_server.engines.embedded.calibrate import measure
from parrot_server.engines.embedded.grammar import Grammars
from parrot_server.engines.embedded.intake import Intake
from parrot_server.engines.embedded.kv_cache import KvCache
from parrot_server.engines.embedded.memory import available_bytes
from parrot_server.engines.embedded.paged_model import PagedModel
from parrot_server.engines.embedded.settings import BLOCK_TOKENS, Settings
from parrot_server.engines.embedded.step_loop import StepLoop
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import SetupError

_DEFAULT_CONTEXTS = 8
_MEMORY_SHARE = 4


class Loaded(NamedTuple):
    """An engine that is ready, and what it says of itself."""

    spec: EngineSpec
    cache: KvCache
    loop: StepLoop
    intake: Intake


def load_engine(settings: Settings, engine: str, folder: Path) -> Loaded:
    """Load a prepared model.

    Raises:
        SetupError: it cannot be loaded, or there is no room for it.
    """
    tokenizer = PromptTokenizer.from_folder(folder)
    model = PagedModel(folder, settings.threads, settings.mode == "exact")
    context_tokens = settings.context_tokens or _context_of(folder)
    kv_blocks = kv_blocks_for(settings.kv_tokens, context_tokens, model.block_bytes, available_bytes())
    host_tokens = settings.host_tokens if settings.host_tokens is not None else kv_blocks * BLOCK_TOKENS
    cache = KvCache(model, kv_blocks, host_tokens // BLOCK_TOKENS, settings.reuse)
    context_tokens = min(context_tokens, kv_blocks * BLOCK_TOKENS)
    grammars = Grammars((folder / "tokenizer.json").read_text("utf-8"), tokenizer.end_ids, model.vocabulary)
    spec = EngineSpec(
        id=engine,
        kind="embedded",
        models=(settings.name,),
        context_tokens=context_tokens,
        kv_tokens=kv_blocks * BLOCK_TOKENS,
        max_running=settings.max_running,
        can_pause=True,
        can_pin=settings.reuse,
        can_offload=settings.reuse and host_tokens >= BLOCK_TOKENS,
        host_tokens=host_tokens // BLOCK_TOKENS * BLOCK_TOKENS,
        shares_prefixes=settings.reuse,
        continues=True,
        chat=tokenizer.chat is not None,
        schemas=True,
        cost=measure(model),
    )
    return Loaded(
        spec, cache, StepLoop(model, cache, settings), Intake(settings.name, tokenizer, grammars, context_tokens)
    )


def kv_blocks_for(kv_tokens: int | None, context_tokens: int, block_bytes: int, free_bytes: int) -> int:
    """How many blocks of KV to set up: as asked, else eight contexts, or a quarter of the free memory if that is less.

    Raises:
        SetupError: there is no room for a single one.
    """
    if kv_tokens is not None:
        blocks = kv_tokens // BLOCK_TOKENS
    else:
        affordable = free_bytes // _MEMORY_SHARE // block_bytes
        blocks = min(affordable, _DEFAULT_CONTEXTS * context_tokens // BLOCK_TOKENS)
    if blocks < 1:
        raise SetupError(f"there is no room for KV: one block of {BLOCK_TOKENS} tokens takes {block_bytes} bytes")
    return blocks


def _context_of(folder: Path) -> int:
    path = folder / "config.json"
    try:
        return int(json.loads(path.read_text("utf-8"))["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(f"{path} does not say the model's max_position_embeddings: set context_tokens") from None
