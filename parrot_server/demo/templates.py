"""Where the semantic functions of the demos are."""

from __future__ import annotations

from pathlib import Path


def template(name: str) -> Path:
    """The file of a function: inside the installed package, or in the folder `templates` of a source tree."""
    package = Path(__file__).parent.parent
    installed = package / "templates" / f"{name}.md"
    return installed if installed.exists() else package.parent / "templates" / f"{name}.md"
