"""Semantic functions as files: YAML front matter between two lines `---`, then the template.

    ---
    name: summarize_chapter
    description: One chapter of a book, in plain English.
    inputs:
      chapter: {join: "\\n"}
    outputs:
      summary: {max_tokens: 250, temperature: 0}
    format: chat
    ---
    Summarise this chapter.

    {{ chapter }}
    {{ summary }}

All of it is optional for a file that a decorated Python function names; a file that a server registers declares its outputs.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from pydantic import Field

from parrot_sdk.errors import BodyError, TemplateError
from parrot_sdk.template import Template
from parrot_sdk.wire import Hole, NamedFunctionBody, OutputBody, check_body


class FunctionFile(NamedFunctionBody):
    """What a file says. `first_line` is where the template begins in the file, counted from 1."""

    outputs: dict[Hole, OutputBody] = Field(default_factory=dict)
    description: str = ""
    first_line: int = 1

    def parse(self) -> Template:
        """The template's segments. Raises TemplateError, with the line in the file."""
        try:
            return super().parse()
        except TemplateError as error:
            raise TemplateError(error.message, error.line + self.first_line - 1, error.column) from None


def read_function_file(path: Path) -> FunctionFile:
    """Read a file, without parsing its template yet. Without a `name` in it, the function is named after the file.

    Raises TemplateError, and OSError where the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not UTF-8 (byte {error.start})", 1, 1) from None
    matter, template = _split(path, text)
    first_line = text.count("\n", 0, len(text) - len(template)) + 1
    fields = {"name": path.stem, **_read_matter(path, matter), "template": template, "first_line": first_line}
    try:
        return check_body(FunctionFile, fields)
    except BodyError as error:
        raise TemplateError(f"{path}: {error}", *_place(matter, error.at)) from None


def _place(matter: str, at: str) -> tuple[int, int]:
    """Line and column in the file of a field of its front matter, or of what it stands in when it is not there."""
    node, place = yaml.compose(matter), (1, 1)
    for name in re.split(r"[.\[\]]+", at):
        found = [pair for pair in node.value if pair[0].value == name] if isinstance(node, yaml.MappingNode) else []
        if not found:
            break
        key, node = found[0]
        place = (key.start_mark.line + 2, key.start_mark.column + 1)
    return place


def _split(path: Path, text: str) -> tuple[str, str]:
    """The front matter and the template."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return "", text
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "".join(lines[1:number]), "".join(lines[number + 1 :])
    raise TemplateError(f"{path}: the front matter is not closed by a line ---", 1, 1)


def _read_matter(path: Path, matter: str) -> dict[str, object]:
    try:
        fields = yaml.safe_load(matter)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line, column = (mark.line + 2, mark.column + 1) if mark else (1, 1)
        raise TemplateError(f"{path}: the front matter is not YAML", line, column) from None
    if fields is None:
        return {}
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise TemplateError(f"{path}: the front matter must be fields with names", 1, 1)
    for name in ("template", "first_line"):
        if name in fields:
            raise TemplateError(f"{path}: {name}: unknown field", *_place(matter, name))
    return fields
