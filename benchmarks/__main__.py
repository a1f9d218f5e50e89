"""`make bench`: every comparison of this machine, one after another. Each can be run by itself: `python -m benchmarks.decode`, say."""

from __future__ import annotations

from benchmarks import compare, decode, edges, expedited, scheduler, schemas, sharing, stalls

for benchmark in (scheduler, decode, sharing, expedited, edges, stalls, schemas, compare):
    benchmark.main()
    print()
