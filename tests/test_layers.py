"""Imports go one way. Read from the source, so that a lazy import counts too; every arrow that is not listed here is wrong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Which part of the project a module belongs to: the longest name that it starts with.
LAYERS = {
    "parrot_sdk": "sdk",
    "parrot_sdk.template": "template",
    "parrot_sdk.errors": "sdk errors",
    "parrot_sdk.wire": "wire",
    "parrot_sdk.local": "in-process",
    "parrot_sdk.testing": "in-process",
    "parrot_server": "root",
    "parrot_server.errors": "errors",
    "parrot_server.core": "core",
    "parrot_server.core.model": "nouns",
    "parrot_server.core.cost": "nouns",
    "parrot_server.engines": "engines",
    "parrot_server.clock": "clock",
    "parrot_server.incident": "runtime",
    "parrot_server.journal": "runtime",
    "parrot_server.runtime": "runtime",
    "parrot_server.sim": "sim",
    "parrot_server.config": "config",
    "parrot_server.api": "api",
    "parrot_server.engine_choice": "top",
    "parrot_server.server": "top",
    "parrot_server.cli": "top",
    "parrot_server.demo": "top",
    "parrot_server.ui": "ui",
}
# Modules beside runtime.py that it is made of.
for module in (
    "cache_salt",
    "engine_runner",
    "generation",
    "isolation_check",
    "metrics",
    "output_checks",
    "owners",
    "program_log",
    "pulse",
    "readers",
    "streams",
    "timeouts",
):
    LAYERS[f"parrot_server.{module}"] = "runtime"

ARROWS = {
    "root": set(),
    "errors": set(),
    "clock": set(),
    "sdk errors": set(),
    "template": {"sdk errors"},
    "wire": {"template", "sdk errors"},
    "sdk": {"template", "wire", "sdk errors", "in-process"},
    "in-process": {
        "template",
        "wire",
        "sdk errors",
        "errors",
        "sdk",
        "top",
        "config",
        "runtime",
        "engines",
        "clock",
        "nouns",
        "api",
    },
    "nouns": set(),
    "core": {"nouns", "template", "errors"},
    "engines": {"nouns", "errors"},
    "runtime": {"core", "nouns", "engines", "errors"},
    "sim": {"core", "nouns", "engines", "errors", "clock", "runtime"},
    "config": {"core", "runtime", "errors"},
    "api": {"runtime", "core", "nouns", "config", "errors", "wire", "template", "sdk errors", "ui"},
    "ui": set(),
    "top": {
        "api",
        "runtime",
        "sim",
        "engines",
        "config",
        "core",
        "nouns",
        "errors",
        "clock",
        "sdk",
        "sdk errors",
        "wire",
        "template",
        "in-process",
    },
}
PURE = {"core", "nouns"}
IMPURE_MODULES = {
    "asyncio", "datetime", "http", "httpx", "io", "logging", "multiprocessing", "os", "pathlib", "pydantic", "random", "secrets",
    "selectors", "socket", "subprocess", "sys", "threading", "time", "uuid",
}  # fmt: skip
UNSAFE_MODULES = {"marshal", "pickle", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in ("parrot_server", "parrot_sdk"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_bytes())


def layer_of(module: str) -> str:
    return LAYERS[max((known for known in LAYERS if module == known or module.startswith(known + ".")), key=len)]


def imports_of(name: str, tree: ast.Module) -> Iterator[str]:
    """Modules that a module imports, at its top or anywhere inside."""
    known = {module for module, _ in ALL}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else str(node.module)


ALL = list(modules())


def test_every_module_has_a_layer() -> None:
    unknown = [name for name, _ in ALL if layer_of(name) == "root" and name != "parrot_server"]
    assert not unknown, "say in LAYERS where these belong"
    assert len(ALL) > 30


@pytest.mark.parametrize(("name", "tree"), ALL, ids=[name for name, _ in ALL])
def test_imports_go_one_way(name: str, tree: ast.Module) -> None:
    layer = layer_of(name)
    for imported in imports_of(name, tree):
        if imported.partition(".")[0] in ("parrot_server", "parrot_sdk"):
            target = layer_of(imported)
            assert target == layer or target in ARROWS[layer], f"{name} ({layer}) imports {imported} ({target})"


@pytest.mark.parametrize(("name", "tree"), ALL, ids=[name for name, _ in ALL])
def test_the_core_is_pure_and_nothing_runs_foreign_code(name: str, tree: ast.Module) -> None:
    roots = {imported.partition(".")[0] for imported in imports_of(name, tree)}
    assert not roots & UNSAFE_MODULES
    if layer_of(name) in PURE:
        assert not roots & IMPURE_MODULES, f"{name} is in the core, which has no clock, I/O or chance"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in UNSAFE_CALLS, f"{name}:{node.lineno} calls {node.func.id}"


def test_the_sdk_loads_no_server() -> None:
    for name, tree in ALL:
        if name.startswith("parrot_sdk") and layer_of(name) != "in-process":
            top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            loaded = set(imports_of(name, ast.Module(body=list(top), type_ignores=[])))
            assert not any(module.startswith("parrot_server") for module in loaded), name


def test_a_wrong_arrow_is_found() -> None:
    tree = ast.parse("def lazy():\n    from parrot_server.runtime import Runtime")
    (imported,) = imports_of("parrot_server.core.graph", tree)
    assert layer_of(imported) not in ARROWS[layer_of("parrot_server.core.graph")]
