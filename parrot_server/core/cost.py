"""What work costs: closed forms of a transformer on a machine, and how long a text is when nobody has counted.

Source: the roofline of decode and prefill as in Williams et al., "Roofline" (CACM 2009), applied to transformer inference: prefill is
bound by FLOP/s, decode by the bytes of weights and resident KV that each step reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from parrot_server.core.model import CostModel, Value

BYTES_PER_TOKEN = 4  # English prose in a byte-pair vocabulary; corrected by what engines report


def estimate_bytes(values: Iterable[Value]) -> int:
    """About how much memory values take: a byte a character, as in most texts. (A simulator's values have tokens and no text.)"""
    return sum(len(value.text) + sum(map(len, value.items or ())) for value in values)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: its UTF-8 bytes over four, rounded up."""
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A transformer's size. `weight_bytes` is what a decode step reads, `params` what a prompt token multiplies with."""

    name: str
    params: float
    weight_bytes: float
    layers: int
    kv_heads: int
    head_dim: int
    kv_value_bytes: int = 2

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of KV a token: keys and values of every layer and head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_value_bytes

    @property
    def prefill_token_flop(self) -> float:
        """FLOP a prompt token: a multiplication and an addition for each parameter; attention is left out."""
        return 2 * self.params


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine sustains."""

    name: str
    peak_flop_s: float
    prefill_efficiency: float
    memory_bytes_s: float
    memory_bytes: float
    usable: float = 0.95
    link_bytes_s: float = 64e9  # to the host
    host_bytes: float = 128e9  # of the host's memory for KV that is moved out

    @property
    def prefill_flop_s(self) -> float:
        """Sustained FLOP/s of prefill."""
        return self.prefill_efficiency * self.peak_flop_s


def kv_budget_bytes(model: LanguageModel, machine: Machine) -> float:
    """Bytes that are left for KV beside the weights."""
    return machine.usable * machine.memory_bytes - model.weight_bytes


def kv_budget_tokens(model: LanguageModel, machine: Machine) -> int:
    """Tokens of KV that fit beside the weights."""
    return int(kv_budget_bytes(model, machine) // model.kv_token_bytes)


def roofline(model: LanguageModel, machine: Machine) -> CostModel:
    """The cost model of a model on a machine."""
    return CostModel(
        prefill_token_s=model.prefill_token_flop / machine.prefill_flop_s,
        step_s=model.weight_bytes / machine.memory_bytes_s,
        sequence_s=0.0,
        resident_token_s=model.kv_token_bytes / machine.memory_bytes_s,
        offload_token_s=model.kv_token_bytes / machine.link_bytes_s,
    )


def prefill_s(cost: CostModel, tokens: float) -> float:
    """Seconds to prefill so many tokens."""
    return cost.prefill_token_s * tokens


def step_s(cost: CostModel, sequences: int, resident_tokens: float) -> float:
    """Seconds of one decode step (the TPOT) of a batch."""
    return cost.step_s + cost.sequence_s * sequences + cost.resident_token_s * resident_tokens


def alone_s(cost: CostModel, prompt_tokens: float, output_tokens: float) -> float:
    """Seconds that one call needs with the engine to itself, at its mean residency (the prompt and half the output)."""
    resident_tokens = prompt_tokens + output_tokens / 2
    return prefill_s(cost, prompt_tokens) + output_tokens * step_s(cost, 1, resident_tokens)


def swap_s(cost: CostModel, tokens: float) -> float:
    """Seconds to move the KV of so many tokens to the host and back."""
    return 2 * cost.offload_token_s * tokens
