"""The part of a program that was built and not sent yet, as the JSON of its request."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

SHARED_TEXT_CHARS = 200  # a literal from this length on is sent once, as a variable, however many calls read it

_NO_NAME_CHARS = re.compile(r"[^A-Za-z0-9_.:-]")


class Draft:
    """Calls in the order in which they were made. May be added to from any thread.

    Names are given here and stay unique over all that the program sends: `summarize-0`, `summarize-1`, `text-0`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._function_keys: dict[str, str] = {}  # function id -> its key in `functions`
        self._shared: dict[str, str] = {}  # text -> the variable that holds it
        self._functions: dict[str, Any] = {}
        self._variables: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []

    def add_function_call(
        self,
        name: str,
        id: str,
        body: Mapping[str, Any],
        inputs: Mapping[str, Any],
        holes: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> tuple[str, dict[str, str]]:
        """Add a call of the function with this id and body. Returns its id, and the variable of each output hole."""
        with self._lock:
            key = self._function_keys.get(id)
            if key is None:
                taken = self._function_keys.values()
                key = name if name not in taken else self._number(name, taken)
                self._function_keys[id] = key
            self._functions[key] = body
            return self._add(name, {"function": key}, inputs, holes, options)

    def add_transform(self, transform: Mapping[str, Any], source: str) -> str:
        """Add a transform of one variable. Returns its id, which is the name of its variable as well."""
        with self._lock:
            return self._add("transform", {"transform": transform}, {"value": {"var": source}}, ("value",), {})[0]

    def take(self) -> dict[str, Any]:
        """What was added since the last time, as fields of a body; empty when nothing was."""
        with self._lock:
            fields = {"functions": self._functions, "variables": self._variables, "calls": self._calls}
            self._functions, self._variables, self._calls = {}, {}, []
        return {name: value for name, value in fields.items() if value}

    def _add(
        self,
        name: str,
        op: Mapping[str, Any],
        inputs: Mapping[str, Any],
        holes: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> tuple[str, dict[str, str]]:
        call = self._number(_NO_NAME_CHARS.sub("_", name)[:100])
        outputs = {hole: call if len(holes) == 1 else f"{call}.{number}" for number, hole in enumerate(holes)}
        bindings = {hole: self._share(binding) for hole, binding in inputs.items()}
        self._calls.append({"id": call, **op, "inputs": bindings, "outputs": outputs, **options})
        return call, outputs

    def _number(self, name: str, taken: Collection[str] = ()) -> str:
        while True:
            numbered = f"{name}-{self._numbers[name]}"
            self._numbers[name] += 1
            if numbered not in taken:
                return numbered

    def _share(self, binding: Any) -> Any:
        if isinstance(binding, list):
            return [self._share(one) for one in binding]
        if not isinstance(binding, str) or len(binding) < SHARED_TEXT_CHARS:
            return binding
        if binding not in self._shared:
            self._shared[binding] = self._number("text")
            self._variables[self._shared[binding]] = binding
        return {"var": self._shared[binding]}
