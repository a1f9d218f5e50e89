"""How long outputs will be, and so how long calls will take: learned a function and output at a time, from what was seen.

Source: predicted lengths for critical paths and laxity, as in Autellix (arXiv:2502.13965, section 4) and "Efficient LLM Scheduling by
Learning to Rank" (arXiv:2408.15792); here a plain running mean that starts from the declared bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from parrot_server.core.cost import alone_s, estimate_tokens
from parrot_server.core.model import CostModel, Ref, Usage, Value
from parrot_server.core.program import Step

MEMORY = 32  # about so many of the latest calls count
FIRST_STALL_S = 1.0  # expected where nothing was seen yet
STALLS_ELSEWHERE = 2  # of a program's own stalls count as much as all that was seen of the function


@dataclass(slots=True)
class _Mean:
    total: float
    count: float

    def add(self, value: float) -> None:
        if self.count >= MEMORY:
            self.total *= (MEMORY - 1) / self.count
            self.count = MEMORY - 1
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


class Predictor:
    """Mean lengths by function and output. The declared bound counts as the first observation."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[str, str], _Mean] = {}
        self._stalls: dict[str, _Mean] = {}
        self._stretch = _Mean(1.0, 1)

    def saw(self, step: Step, usage: Usage) -> None:
        """Learn from a finished step."""
        if step.alone_token_s:
            self._stretch.add(step.attained_token_s / step.alone_token_s)
        name = (step.call.function, step.output)
        mean = self._outputs.get(name)
        if mean is None:
            mean = self._outputs[name] = _Mean(step.sampling.max_tokens, 1)
        mean.add(usage.output_tokens)

    def saw_stall(self, step: Step, stall_s: float) -> None:
        """Learn how long it took until a call followed on the last step of a program."""
        step.program.stalls += 1
        step.program.stalled_s += stall_s
        self._stalls.setdefault(step.call.function, _Mean(FIRST_STALL_S, 1)).add(stall_s)

    def stall_s(self, step: Step) -> float:
        """How long it will take until a call follows on a step: as its client said, else as before in its program and elsewhere."""
        if step.call.expect_return_s is not None:
            return step.call.expect_return_s
        mean = self._stalls.get(step.call.function)
        elsewhere_s = mean.value if mean else FIRST_STALL_S
        return (STALLS_ELSEWHERE * elsewhere_s + step.program.stalled_s) / (STALLS_ELSEWHERE + step.program.stalls)

    def output_tokens(self, step: Step) -> float:
        """How many tokens a step's output will have."""
        if step.sampling.ignore_eos:
            return step.sampling.max_tokens
        mean = self._outputs.get((step.call.function, step.output))
        return min(mean.value, step.sampling.max_tokens) if mean else step.sampling.max_tokens

    def prompt_tokens(self, step: Step) -> float:
        """How many tokens a step's prompt has, or will have."""
        if step.prompt is not None:
            return sum(piece.tokens for piece in step.prompt.pieces)
        total = 0.0
        if step.function:
            total += sum(step.function.spec.text_tokens or ()) or estimate_tokens(step.function.spec.text)
        for binding in step.inputs.values():
            for part in binding if isinstance(binding, tuple) else (binding,):
                total += self._binding_tokens(step, part)
        return total

    def _binding_tokens(self, step: Step, part: Value | Ref) -> float:
        if isinstance(part, Value):
            return part.tokens
        variable = step.program.variables[part.name]
        if isinstance(variable.outcome, Value):
            return variable.outcome.tokens
        return max((self.output_tokens(producer) for producer in variable.producers), default=0.0)

    def service_token_s(self, step: Step, cost: CostModel) -> float:
        """KV token-time that a step will receive: alone, and stretched as others were of late by what ran beside them."""
        resident = self.prompt_tokens(step) + self.output_tokens(step) / 2
        step.alone_token_s = resident * self.seconds(step, cost)
        return step.alone_token_s * self._stretch.value

    def seconds(self, step: Step, cost: CostModel) -> float:
        """How long a step will take by itself."""
        if step.function is None:
            return 0.0
        return alone_s(cost, self.prompt_tokens(step), self.output_tokens(step))
