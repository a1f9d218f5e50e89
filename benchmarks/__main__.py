"""`make bench`: every comparison of this machine, one after another."""

from __future__ import annotations

from benchmarks import compare, embedded, scheduler, schemas

for benchmark in (scheduler, embedded, schemas, compare):
    benchmark.main()
    print()
