"""Whole workloads by name, each a pure function of its seed.

Source: chain and map-reduce summary, shared prompts, prompt applications, multi-agent coding and the mixed workload as in Parrot
(OSDI'24, section 8). `fan-out` is a map-reduce beside agents and chats that more than fill the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from parrot_server.errors import SetupError
from parrot_server.sim.arrivals import bursty, poisson
from parrot_server.sim.programs import chain, conversation, document_questions, map_reduce, multi_agent
from parrot_server.sim.workload import ProgramShape

# prompt, query and answer in tokens
APPLICATIONS = ((7437, 7, 704), (1116, 8, 89), (1694, 4, 631), (2031, 4, 416))


def chain_summary(rng: Random) -> list[ProgramShape]:
    """Ten documents, each summed up chunk after chunk."""
    return [
        chain(f"document_{n}", [(1024, rng.randint(25, 100)) for _ in range(20)], at_s=at_s)
        for n, at_s in enumerate(sorted(rng.uniform(0, 10) for _ in range(10)))
    ]


def map_reduce_summary(rng: Random) -> list[ProgramShape]:
    """Nine documents, all chunks side by side."""
    return [
        map_reduce(f"document_{n}", 15, 1024, [rng.randint(25, 100) for _ in range(15)], 50, 100, at_s=at_s)
        for n, at_s in enumerate(sorted(rng.uniform(0, 10) for _ in range(9)))
    ]


def shared_prompt(rng: Random) -> list[ProgramShape]:
    """64 questions behind one long system prompt, at once."""
    return [
        conversation(f"request_{n}", [(rng.randint(20, 100), rng.randint(180, 800), 0.0)], (("copilot", 5100),))
        for n in range(64)
    ]


def applications(rng: Random) -> list[ProgramShape]:
    """Requests to four applications, each behind its own prompt."""
    programs = []
    for n, at_s in enumerate(poisson(rng, 4.0, 60.0)):
        app = rng.randrange(4)
        prompt, query, answer = APPLICATIONS[app]
        turn = [(query, answer, 0.0)]
        programs.append(conversation(f"request_{n}", turn, ((f"app_{app}", prompt),), at_s, kind=f"app_{app}"))
    return programs


def multi_agents(rng: Random) -> list[ProgramShape]:
    """Teams of 4 to 16 that write, review and write anew."""
    return [
        multi_agent(f"team_{branches}", branches, 3, rng, at_s=float(n)) for n, branches in enumerate((4, 8, 12, 16))
    ]


def shared_chat(rng: Random) -> list[ProgramShape]:
    """Chats behind one system prompt, with people who read and type."""
    programs = []
    for n, at_s in enumerate(bursty(rng, 3.0, 60.0)):
        turns = [(rng.randint(20, 300), rng.randint(50, 400), rng.expovariate(1 / 8)) for _ in range(rng.randint(2, 8))]
        programs.append(conversation(f"chat_{n}", turns, (("assistant", 1200),), at_s, max_tokens=512))
    return programs


def document_qa(rng: Random) -> list[ProgramShape]:
    """Documents, each with several questions at once."""
    programs = []
    for n, at_s in enumerate(poisson(rng, 0.5, 60.0)):
        questions = [(rng.randint(10, 60), rng.randint(40, 200)) for _ in range(rng.randint(4, 12))]
        programs.append(document_questions(f"document_{n}", rng.randint(2000, 12000), questions, at_s))
    return programs


def mixed(rng: Random) -> list[ProgramShape]:
    """Chats for people, and map-reduce summaries that nobody waits for."""
    chats = [
        conversation(f"chat_{n}", [(rng.randint(50, 1000), rng.randint(50, 400), 0.0)], at_s=at_s, max_tokens=512)
        for n, at_s in enumerate(poisson(rng, 1.0, 60.0))
    ]
    return chats + map_reduce_summary(rng)


def fan_out(rng: Random) -> list[ProgramShape]:
    """16 maps with one straggler every ten seconds, beside long agents and chats that more than fill the engine."""
    programs = [
        map_reduce(f"map_reduce_{n}", 16, 6000, [250] * 15 + [1000], at_s=at_s)
        for n, at_s in enumerate(10.0 * n + rng.uniform(0, 10) for n in range(18))
    ]
    for n, at_s in enumerate(poisson(rng, AGENTS_S, 180.0)):
        turns = [
            (4000 if turn == 0 else rng.randint(200, 800), rng.randint(50, 300), rng.expovariate(1.0))
            for turn in range(rng.randint(20, 60))
        ]
        programs.append(conversation(f"agent_{n}", turns, at_s=at_s, kind="agent", max_tokens=512))
    for n, at_s in enumerate(poisson(rng, CHATS_S, 180.0)):
        turns = [(rng.randint(50, 1000), rng.randint(50, 400), 0.0) for _ in range(3)]
        programs.append(conversation(f"chat_{n}", turns, at_s=at_s, max_tokens=512))
    return programs


def two_programs(rng: Random) -> list[ProgramShape]:
    """Two map-reduce programs of which one fills the memory of an H100: to be run one after the other, not by halves."""
    return [map_reduce(f"book_{n}", 72, 6000, rng.randint(240, 260), at_s=0.05 * n) for n in range(2)]


def large(rng: Random) -> list[ProgramShape]:
    """1,000 programs with 100,000 calls: 500 map-reduces, 400 chains and 100 agents that keep all that was said."""
    programs = []
    for n, at_s in enumerate(sorted(rng.uniform(0, 7200) for _ in range(1000))):
        if n % 10 < 5:
            programs.append(
                map_reduce(f"map_reduce_{n}", 99, 1000, [rng.randint(20, 120) for _ in range(99)], at_s=at_s)
            )
        elif n % 10 < 9:
            programs.append(chain(f"chain_{n}", [(300, rng.randint(20, 120)) for _ in range(100)], at_s=at_s))
        else:
            turns = [(800 if turn == 0 else 80, rng.randint(20, 60), rng.expovariate(1.0)) for turn in range(100)]
            programs.append(conversation(f"agent_{n}", turns, at_s=at_s, kind="agent", max_tokens=100))
    return programs


AGENTS_S, CHATS_S = 0.25, 1.0  # arrivals a second of `fan-out`
PRESETS: Mapping[str, Callable[[Random], list[ProgramShape]]] = {
    "chain-summary": chain_summary,
    "map-reduce-summary": map_reduce_summary,
    "shared-prompt": shared_prompt,
    "applications": applications,
    "multi-agent": multi_agents,
    "shared-chat": shared_chat,
    "document-qa": document_qa,
    "mixed": mixed,
    "fan-out": fan_out,
    "two-programs": two_programs,
    "large": large,
}


def preset(name: str, seed: int) -> list[ProgramShape]:
    """A workload by name. Raises SetupError with the names there are."""
    if name not in PRESETS:
        raise SetupError(f"there is no workload {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name](Random(seed))
