"""The two demos in the three configurations: A no prefix cache, B the engine's own, C declared; under a background.

    python -m benchmarks.compare                           on the embedded engine
    python -m benchmarks.compare http://127.0.0.1:30000    on an SGLang server

It is `parrot demo ... --compare`, with the bounds that are wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from parrot_server.cli.compare import compared
from parrot_server.cli.terminal import note
from parrot_server.demo.background import Load
from parrot_server.demo.compare import OF_CHAIN, OF_MAP_REDUCE, Comparison
from parrot_server.demo.compare_table import compare_table
from parrot_server.demo.workloads import CHAIN, Fan, a_chain, a_map_reduce

RTT_MS = 50.0
CHAIN_BOUNDS = {"B": 2.0}
MAP_REDUCE_BOUNDS = {"B": 1.3, "B1": 2.5}


def run(**engine: Any) -> None:
    """Print both comparisons.

    Args:
        engine: which one, as `parrot_server.cli.engines.server_for` takes it; the embedded one by default.
    """
    chain = compared(lambda count: a_chain(CHAIN, count), OF_CHAIN, engine, RTT_MS, Load(), note)
    _print(chain, CHAIN_BOUNDS)
    fan = compared(lambda count: a_map_reduce(Fan(), count), OF_MAP_REDUCE, engine, RTT_MS, Load(), note)
    _print(fan, MAP_REDUCE_BOUNDS)


def _print(comparison: Comparison, bounds: Mapping[str, float]) -> None:
    print(compare_table(comparison))
    for name, bound in bounds.items():
        ratio = comparison.times_faster[name]
        print(f"  C at least {bound} times faster than {name}: {ratio >= bound} ({ratio:.2f})")
    print()


def main() -> None:
    """On the embedded engine."""
    run()


if __name__ == "__main__":
    run(**({"sglang": sys.argv[1]} if len(sys.argv) > 1 else {}))
