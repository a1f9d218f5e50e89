"""For all tests: the engines' contract suite explains its failures and lists at the end who was held to it."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.engines.contract")
# How long an example takes says more of what else the machine does than of the code; pytest's time-out stands.
settings.register_profile("parrot", deadline=None)
settings.load_profile("parrot")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line an adapter that was held to the contract."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "skipped", "error"):
        for report in terminalreporter.getreports(outcome):
            file, *middle, _ = report.nodeid.split("::")
            if "test_contract" in file and middle and (report.when == "call" or outcome != "passed"):
                outcomes[middle[0].removeprefix("Test")][outcome] += 1
    if outcomes:
        terminalreporter.section("engines held to the contract")
    for adapter, counts in outcomes.items():
        terminalreporter.line(f"{adapter}: " + ", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
