"""The one place where OpenVINO is imported, so that it is done in the same way by each process that needs it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from types import ModuleType

from parrot_server.errors import SetupError

_NEEDED = ("openvino", "openvino_genai", "gguf", "numpy", "llguidance")


def require_packages() -> None:
    """Check that the embedded engine's packages are there, without importing them.

    Raises:
        SetupError: one is missing; the message says how to install it, or on which machines it runs.
    """
    if missing := missing_packages():
        raise SetupError(_how_to_install(f"{', '.join(missing)} not installed"))


def missing_packages() -> list[str]:
    """Which of the embedded engine's packages are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def import_openvino() -> ModuleType:
    """Import OpenVINO with its usage reporting out of reach.

    `openvino_telemetry` comes along with OpenVINO and reports conversions to its maker. Where it cannot be imported,
    OpenVINO itself falls back to a stub that does nothing; a None in `sys.modules` makes it so for this process.

    Raises:
        SetupError: OpenVINO is missing, or does not run on this machine.
    """
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino
    except (ImportError, OSError) as error:
        raise SetupError(_how_to_install(str(error))) from None
    return openvino  # type: ignore[no-any-return]


def _how_to_install(reason: str) -> str:
    return (
        f"the embedded engine cannot run here ({reason}). Install it with: pip install 'parrot-serve[embedded]'. "
        f"OpenVINO has wheels for Linux (x86-64, aarch64), macOS (arm64) and Windows; this is {platform.system()} "
        f"{platform.machine()}. Elsewhere llama.cpp runs a .gguf model: pip install 'parrot-serve[llamacpp]', "
        "then parrot serve --engine llamacpp."
    )
