"""The scheduler on a virtual clock, against an engine that is arithmetic: workloads, reference figures, reports."""
