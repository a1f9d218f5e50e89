"""Machines and models by name, and the engines that they make: `h100-7b`, `4xh100-70b`, `a100-13b`, `cpu-7b`.

Source: vendors' data sheets (dense bf16 FLOP/s, memory bandwidth, memory); half of the peak is sustained in prefill.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from parrot_server.core.cost import LanguageModel, Machine, kv_budget_tokens, roofline
from parrot_server.core.model import EngineSpec
from parrot_server.errors import SetupError

MODELS = {
    "7b": LanguageModel("7b", params=6.74e9, weight_bytes=13.5e9, layers=32, kv_heads=8, head_dim=128),
    "13b": LanguageModel("13b", params=13e9, weight_bytes=26e9, layers=40, kv_heads=40, head_dim=128),
    "70b": LanguageModel("70b", params=70e9, weight_bytes=140e9, layers=80, kv_heads=8, head_dim=128),
}
MACHINES = {
    "h100": Machine("h100", peak_flop_s=989e12, prefill_efficiency=0.5, memory_bytes_s=3.35e12, memory_bytes=80e9),
    "h200": Machine("h200", peak_flop_s=989e12, prefill_efficiency=0.5, memory_bytes_s=4.8e12, memory_bytes=141e9),
    "a100": Machine("a100", peak_flop_s=312e12, prefill_efficiency=0.5, memory_bytes_s=2.039e12, memory_bytes=80e9),
    # two cores of a server with AVX-512, as small virtual machines have
    "cpu": Machine(
        "cpu", peak_flop_s=0.3e12, prefill_efficiency=0.5, memory_bytes_s=15e9, memory_bytes=24e9, host_bytes=0
    ),
}
_NAME = re.compile(r"(?:(\d+)x)?([a-z0-9]+?)(?:-([0-9]+b))?")


def model_and_machine(name: str) -> tuple[LanguageModel, Machine]:
    """Read an engine's name: how many machines (as few as hold the model), which, and the model (7b). Raises SetupError."""
    found = _NAME.fullmatch(name.lower())
    if not found or found[2] not in MACHINES or (found[3] or "7b") not in MODELS:
        known = f"[Nx]{{{','.join(MACHINES)}}}[-{{{','.join(MODELS)}}}]"
        raise SetupError(f"there is no engine {name!r}; a name looks like h100, 4xh100-70b: {known}")
    model, machine = MODELS[found[3] or "7b"], MACHINES[found[2]]
    least = math.ceil(1.05 * model.weight_bytes / (machine.usable * machine.memory_bytes))
    count = int(found[1] or least)
    together = replace(
        machine,
        name=f"{count}x{machine.name}" if count > 1 else machine.name,
        peak_flop_s=count * machine.peak_flop_s,
        memory_bytes_s=count * machine.memory_bytes_s,
        memory_bytes=count * machine.memory_bytes,
        link_bytes_s=count * machine.link_bytes_s,
        host_bytes=count * machine.host_bytes,
    )
    if count < 1 or kv_budget_tokens(model, together) < 1:
        raise SetupError(f"{name!r}: {together.name} has no room for {model.name}; it takes {least} of {machine.name}")
    return model, together


def engine_named(name: str, max_running: int = 256) -> EngineSpec:
    """An engine that a machine and a model make. Raises SetupError."""
    model, machine = model_and_machine(name)
    kv_tokens = kv_budget_tokens(model, machine)
    return EngineSpec(
        id=name,
        kind="roofline",
        models=(model.name,),
        context_tokens=kv_tokens,
        kv_tokens=kv_tokens,
        max_running=max_running,
        can_pause=True,
        can_pin=True,
        can_offload=machine.host_bytes > 0,
        host_tokens=int(machine.host_bytes // model.kv_token_bytes),
        cost=roofline(model, machine),
    )
