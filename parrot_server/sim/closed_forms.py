"""The reference figures that are arithmetic, from the cost model: what the simulator is held against.

The reference scenario carries its rounded figures on: where a figure builds on an earlier one, the printed value of that is taken
(`printed`), so that each can be compared with its own to a thousandth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parrot_server.core.cost import alone_s, kv_budget_bytes, prefill_s, roofline, step_s
from parrot_server.sim.chain import Chain
from parrot_server.sim.machines import MACHINES, MODELS
from parrot_server.sim.mix import Mix

H100, SMALL, MIDDLE = MACHINES["h100"], MODELS["7b"], MODELS["13b"]
COST, COST_13B = roofline(SMALL, H100), roofline(MIDDLE, H100)
CHAIN, MIX = Chain(), Mix()
SUBMITTED = sum(CHAIN.first_tokens + CHAIN.growth_tokens * step for step in range(CHAIN.steps))
DISTINCT = CHAIN.first_tokens + CHAIN.growth_tokens * (CHAIN.steps - 1)
WRITTEN = CHAIN.steps * CHAIN.output_tokens
MEAN_CONTEXT = CHAIN.first_tokens + CHAIN.growth_tokens * (CHAIN.steps - 1) / 2 + CHAIN.output_tokens / 2
EDGES, EDGE_S = CHAIN.steps - 1, CHAIN.rtt_s + CHAIN.queue_s
AMBIENT = 116  # whole sequences of 4,096 tokens
MAPS, MAP_IN, MAP_OUT = 16, 6000, 250
REDUCE_IN, REDUCE_OUT = MAPS * MAP_OUT + 200, 400
PROGRAMS = MIX.chats + MIX.agents
REQUESTS = MIX.chats * MIX.chat_calls + MIX.agents * MIX.agent_calls
UNITS = MIX.chats * MIX.chat_units + MIX.agents * MIX.agent_units
MISS = 0.2
CARD = H100.memory_bytes


def gain(repeat: float, miss: float = 0.0) -> float:
    """By how much less is prefilled when a share of all tokens repeats and a share of the look-ups misses."""
    return 1 / (1 - (1 - miss) * repeat)


def closed_forms(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    """Each figure by its id. `printed` is the printed value of each."""
    return {
        **_machine(printed),
        **_map_reduce(printed),
        **_chain(printed),
        **_memory(printed),
        **_mix(printed),
    }


def _machine(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    kv_bytes = SMALL.kv_token_bytes
    return {
        "K01": lambda: SMALL.prefill_token_flop,
        "K02": lambda: SMALL.params * 2,
        "K03": lambda: H100.prefill_flop_s,
        "K04": lambda: H100.memory_bytes_s,
        "K05": lambda: kv_bytes,
        "K06": lambda: kv_budget_bytes(SMALL, H100),
        "K07": lambda: kv_budget_bytes(SMALL, H100) // (4096 * kv_bytes),
        "K08": lambda: step_s(COST, AMBIENT, AMBIENT * 4096),
        "K08b": lambda: step_s(COST, AMBIENT, kv_budget_bytes(SMALL, H100) / kv_bytes),
        "K09": lambda: step_s(COST, 1, 0),
        "K10": lambda: SMALL.prefill_token_flop / step_s(COST, 1, 0) / H100.peak_flop_s,
        "K11": lambda: EDGE_S,
        "L07": lambda: MIDDLE.kv_token_bytes,
        "L08": lambda: printed["L07"] * 16384,
        "P04": lambda: printed["L08"] / CARD,
        "T01": lambda: 0.09 / 2.09,  # 90 ms of a retrieval pipeline are not generation
    }


def _map_reduce(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    kv_bytes, bytes_s = SMALL.kv_token_bytes, H100.memory_bytes_s

    def tpot_s(kv: float) -> float:
        return (SMALL.weight_bytes + kv) / bytes_s

    reduce_s = alone_s(COST, REDUCE_IN, REDUCE_OUT)
    batched_s = MAP_OUT * step_s(COST, MAPS, MAPS * (MAP_IN + MAP_OUT / 2))
    return {
        "F01": lambda: MAP_IN + MAP_OUT / 2,
        "F02": lambda: (MAP_IN + MAP_OUT / 2) * kv_bytes,
        "F03": lambda: MAPS * printed["F02"],
        "F04": lambda: prefill_s(COST, MAP_IN),
        "F05": lambda: tpot_s(printed["F02"]),
        "F06": lambda: printed["F04"] + MAP_OUT * printed["F05"],
        "F07": lambda: MAPS * printed["F06"],
        "F08": lambda: tpot_s(printed["F03"]),
        "F09": lambda: printed["F08"] / printed["F05"],
        "F10": lambda: MAPS * printed["F04"] + MAP_OUT * printed["F08"],
        "F11": lambda: REDUCE_IN,
        "F12": lambda: REDUCE_IN * SMALL.prefill_token_flop,
        "F13": lambda: prefill_s(COST, REDUCE_IN),
        "F14": lambda: (REDUCE_IN + REDUCE_OUT / 2) * kv_bytes,
        "F15": lambda: tpot_s(printed["F14"]),
        "F16": lambda: REDUCE_OUT * printed["F15"],
        "F17": lambda: printed["F13"] + printed["F16"],
        "F18": lambda: printed["F07"] + printed["F17"],
        "F19": lambda: printed["F10"] + printed["F17"],
        "F20": lambda: printed["F18"] / printed["F19"],
        "F21": lambda: MAPS * alone_s(COST, MAP_IN, MAP_OUT) + reduce_s,
        "F22": lambda: MAPS * prefill_s(COST, MAP_IN) + batched_s + reduce_s,
        "F23": lambda: 10e-3 - tpot_s(printed["F03"]),
    }


def _chain(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    growth = (CHAIN.steps * DISTINCT - SUBMITTED) / (CHAIN.steps * EDGES / 2)
    return {
        "L01": lambda: SUBMITTED / DISTINCT,
        "L02": lambda: 1 - DISTINCT / SUBMITTED,
        "L03": lambda: SUBMITTED / printed["L05"],
        "L04": lambda: WRITTEN / CHAIN.steps,
        "L05": lambda: SUBMITTED / WRITTEN,
        "L06": lambda: EDGES,
        "L10": lambda: DISTINCT - EDGES * growth,
        "L11": lambda: growth,
        "L12": lambda: 20_000 * (CHAIN.steps - 4),  # a tool's result at the fourth step stays in each later prompt
        "P01": lambda: EDGES * EDGE_S,
        "P02": lambda: printed["P01"] / printed["C06"],
        "P03": lambda: EDGES * CHAIN.rtt_s,
        "Q01": lambda: EDGES * CHAIN.queue_s,
        "Q02": lambda: 199 * CHAIN.queue_s,
        "C01": lambda: prefill_s(COST, SUBMITTED),
        "C02": lambda: prefill_s(COST, DISTINCT),
        "C03": lambda: printed["C01"] - printed["C02"],
        "C04": lambda: WRITTEN * printed["K08"],
        "C05": lambda: WRITTEN * printed["F05"],
        "C06": lambda: printed["C01"] + printed["C04"] + printed["P01"],
        "C07": lambda: printed["C02"] + printed["C04"] + printed["P01"],
        "C08": lambda: printed["C02"] + printed["C05"],
        "C09": lambda: printed["C06"] / printed["C07"],
        "C10": lambda: printed["C06"] / printed["C08"],
        "C11": lambda: printed["C07"] / printed["C08"],
        "C12": lambda: round(printed["C03"], 1) / printed["C06"],
        "C13": lambda: printed["C04"] - printed["C05"],
        "C14": lambda: printed["C03"] + printed["P01"] + printed["C13"],
        "C15": lambda: printed["C06"] - printed["C08"],
        "C16": lambda: WRITTEN * step_s(COST, 1, MEAN_CONTEXT),
        "C17": lambda: prefill_s(COST, DISTINCT) + WRITTEN * step_s(COST, 1, MEAN_CONTEXT),
    }


def _memory(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    return {
        "R01": lambda: gain(0.03),
        "R02": lambda: gain(0.94),
        "R03": lambda: gain(0.72),
        "R04": lambda: gain(0.99),
        "R05": lambda: gain(0.03, MISS),
        "R06": lambda: gain(0.94, MISS),
        "R07": lambda: gain(0.72, MISS),
        "R08": lambda: gain(0.99, MISS),
        "R09": lambda: printed["R04"] / printed["R08"],
        "I01": lambda: printed["L08"] / CARD,
        "I02": lambda: prefill_s(COST_13B, 16384),
        "I03": lambda: 2 * printed["L08"] / H100.link_bytes_s,
        "I05": lambda: 2 * printed["L07"] / H100.link_bytes_s,
        "I06": lambda: COST_13B.prefill_token_s,
        "I07": lambda: printed["I06"] / printed["I05"],
    }


def _mix(printed: Mapping[str, float]) -> dict[str, Callable[[], float]]:
    chats, agents, short, long = MIX.chats, MIX.agents, MIX.chat_units, MIX.agent_units
    by_request = MIX.chat_calls / REQUESTS
    first = MIX.levels[0]
    chats_first, agents_after = (
        short * chats * (chats + 1) / 2,
        agents * chats * short + long * agents * (agents + 1) / 2,
    )
    agents_first = long * agents * (agents + 1) / 2
    chats_after = chats * agents * long + short * chats * (chats + 1) / 2
    shared = chats * short * PROGRAMS + agents * (short * PROGRAMS + (long - short) * agents)
    best, worst = printed["O03"], printed["O06"]
    return {
        "M01": lambda: PROGRAMS,
        "M02": lambda: REQUESTS,
        "M03": lambda: UNITS,
        "M04": lambda: agents / PROGRAMS,
        "M05": lambda: agents * long / UNITS,
        "M06": lambda: by_request,
        "M07": lambda: MIX.agent_calls / REQUESTS,
        "M08": lambda: MIX.agent_calls / MIX.chat_calls,
        "M09": lambda: 1 / PROGRAMS,
        "M10": lambda: 1 / PROGRAMS / by_request,
        "M11": lambda: MIX.agent_calls / REQUESTS * PROGRAMS,
        "M12": lambda: short * printed["K08"],
        "M13": lambda: printed["M12"] / by_request,
        "M14": lambda: printed["M12"] / by_request / 60,
        "M15": lambda: printed["M12"] * PROGRAMS / 60,
        "M16": lambda: 1 / by_request,
        "M19": lambda: AMBIENT - PROGRAMS,
        "O01": lambda: chats_first,
        "O02": lambda: agents_after,
        "O03": lambda: (chats_first + agents_after) / PROGRAMS,
        "O04": lambda: agents_first,
        "O05": lambda: chats_after,
        "O06": lambda: (agents_first + chats_after) / PROGRAMS,
        "O07": lambda: (agents_first + chats_after) / (chats_first + agents_after),
        "O09": lambda: shared / PROGRAMS,
        "O10": lambda: best + (agents * PROGRAMS - agents * agents / 2 - agents / 2) / PROGRAMS * first,
        "O11": lambda: 9.5 * first / (worst - best),
        "O12": lambda: (shared / PROGRAMS - best) / (worst - best),
    }
