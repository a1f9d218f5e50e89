"""The template grammar: one parser for docstrings, files and REST.

    {{name}}  {{ name }}   a hole; name is [A-Za-z_][A-Za-z0-9_]*, blanks (space, tab) inside the braces are allowed
    \\{{                    the text `{{`; before `{{` two backslashes are one: `\\\\{{x}}` is a backslash and a hole
    {  }  {{}}  {{"k": 1}}   any other brace is text, byte for byte; `{{{x}}}` is `{`, the hole x, `}`
    [system] [user] [assistant]   alone on a line: a message of that role starts
    \\[user]                alone on a line: the text `[user]`; a backslash more is a backslash of the text

`{{` with a letter (A-Z, a-z) or an underscore after it, blanks between allowed, opens a hole and must be one: `{{a-b}}`
and an unclosed `{{name` are errors.

Bytes are kept: blanks, tabs, CRLF. Not content are: a role line, the line break before the next role line, white space
before the first role line, and white space after the last output.

A hole is an output if the function declares it one, else an input. An input may be used often, an output once. Two
outputs may stand side by side: the second goes on where the first stopped. Before the first output there must be
something to read: an input, or text that is not only white space. After the last output there is nothing.

In a template with role lines outputs stand only in [assistant]. One without is a single user message, answered from its
first output on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from parrot_sdk.errors import TemplateError

RoleName = Literal["system", "user", "assistant"]
Format = Literal["chat", "text"]
DEFAULT_JOIN = "\n\n"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ROLE_LINE = re.compile(r"^(\\*)\[(system|user|assistant)\](?=\r?\n|\Z)", re.MULTILINE)
_LINE_BREAK = re.compile(r"\r?\n")


@dataclass(frozen=True, slots=True)
class Text:
    """Constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class Input:
    """A hole that a value fills."""

    name: str


@dataclass(frozen=True, slots=True)
class Output:
    """A hole that the model fills."""

    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """The start of a message."""

    role: RoleName


Segment = Text | Input | Output | Role


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. `inputs` and `outputs` are names in the order of their first use."""

    segments: tuple[Segment, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    has_roles: bool

    def continues(self, output: str) -> bool:
        """Whether this output goes on with an assistant's turn that already has content.

        True for an output behind text, a value or another output in its [assistant] message, and for all but the first
        output of a template without role lines. In the format `text` there are no turns, and this says nothing.
        """
        before = self.segments[: self.segments.index(Output(output))]
        if self.has_roles:
            return not isinstance(before[-1], Role)
        return any(isinstance(segment, Output) for segment in before)


def parse(
    text: str,
    outputs: Collection[str],
    inputs: Collection[str] = (),
    format: Format = "chat",
    *,
    all_declared: bool = False,
) -> Template:
    """Parse a template in linear time.

    Args:
        text: the template.
        outputs: names of the output holes; each must be in the text, once.
        inputs: names of input holes that must be in the text; a hole that is not declared is an input as well.
        format: `text` has no messages, so a role line is an error there.
        all_declared: make a hole that is not declared an error.

    Raises TemplateError with line and column.
    """
    placed = list(_placed_segments(text))
    _check_declared(text, placed, outputs, inputs, all_declared)
    segments = [(offset, _classify(segment, outputs)) for offset, segment in placed]
    has_roles = any(isinstance(segment, Role) for _, segment in segments)
    if has_roles:
        segments = _check_roles(text, segments, format)
    segments = _check_outputs(text, segments)
    final = tuple(segment for _, segment in segments)
    return Template(
        segments=final,
        inputs=tuple(dict.fromkeys(segment.name for segment in final if isinstance(segment, Input))),
        outputs=tuple(segment.name for segment in final if isinstance(segment, Output)),
        has_roles=has_roles,
    )


def imply_output(text: str, output: str) -> str:
    """The text with an output hole at its end, unless it has that hole. The hole opens the assistant's turn, or goes on in it.

    Raises TemplateError.
    """
    if any(isinstance(segment, _Hole) and segment.name == output for _, segment in _placed_segments(text)):
        return text
    hole = f"{{{{{output}}}}}"
    last: re.Match[str] | None = None
    role = ""
    for last in _ROLE_LINE.finditer(text):
        role = role if last[1] else last[2]
    ends_with_role_line = last is not None and last.end() == len(text)
    if role in ("system", "user"):
        return f"{text}\n[assistant]\n{hole}"
    if last is not None and ends_with_role_line and not last[1]:
        return f"{text}\n{hole}"
    if last is not None and ends_with_role_line:  # with a hole behind it, the line is no escape any more
        return text[: last.start()] + text[last.start() + 1 :] + hole
    bare = text[:-1] if text.endswith("{") and not text.endswith("{{") else text
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + "\\" * backslashes + text[len(bare) :] + hole


def function_id(
    text: str, outputs: Mapping[str, Mapping[str, object]], joins: Mapping[str, str], format: Format = "chat"
) -> str:
    """The identity of a function: SHA-256 (hex) of its content, each field framed by its length.

    Args:
        text: the template.
        outputs: per output hole its sampling as JSON values; an option that is None counts as unsaid.
        joins: per input hole the text between the elements of a list; the default join counts as unsaid.
        format: `chat` or `text`.
    """
    fields = ["parrot-function-1", format, text, str(len(outputs))]
    for name, options in sorted(outputs.items()):
        said = [(option, value) for option, value in sorted(options.items()) if value is not None]
        fields += [name, str(len(said))]
        for option, value in said:
            number = isinstance(value, float) and value.is_integer()
            fields += [option, json.dumps(int(value) if number and isinstance(value, float) else value)]
    for name, join in sorted(joins.items()):
        if join != DEFAULT_JOIN:
            fields += [name, join]
    digest = hashlib.sha256()
    for field in fields:
        data = field.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Hole:
    """A hole before it is known what it is."""

    name: str


def _error(text: str, offset: int, message: str) -> TemplateError:
    line = text.count("\n", 0, offset) + 1
    return TemplateError(message, line, offset - text.rfind("\n", 0, offset))


def _placed_segments(text: str) -> Iterator[tuple[int, Text | _Hole | Role]]:
    """The segments with their offsets; texts that adjoin are one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _error(text, error.start, "a lone surrogate is no character: send valid Unicode") from None
    texts: list[str] = []
    texts_at = 0
    for offset, segment in _pieces(text):
        if isinstance(segment, Text):
            if segment.text:
                texts_at = texts_at if texts else offset
                texts.append(segment.text)
            continue
        if texts:
            yield texts_at, Text("".join(texts))
            texts = []
        yield offset, segment
    if texts:
        yield texts_at, Text("".join(texts))


def _pieces(text: str) -> Iterator[tuple[int, Text | _Hole | Role]]:
    """Split at role lines, and what is between them at holes."""
    start = 0
    for match in _ROLE_LINE.finditer(text):
        if match[1]:  # escaped: the text without its first backslash
            yield from _split_holes(text, start, match.start())
            start = match.start() + 1
            yield start, Text(text[start : match.end()])
            start = match.end()
            continue
        end = match.start()
        if end > start:  # the line break before a role line is no content
            end -= 2 if text.endswith("\r\n", start, end) else 1
        yield from _split_holes(text, start, end)
        yield match.start(), Role(_role(match[2]))
        line_break = _LINE_BREAK.match(text, match.end())
        start = line_break.end() if line_break else match.end()
    yield from _split_holes(text, start, len(text))


def _role(name: str) -> RoleName:
    return "system" if name == "system" else "user" if name == "user" else "assistant"


def _split_holes(text: str, start: int, end: int) -> Iterator[tuple[int, Text | _Hole]]:
    """Texts and holes of one stretch that has no role line in it."""
    while (braces := text.find("{{", start, end)) >= 0:
        before = text[start:braces]
        backslashes = len(before) - len(before.rstrip("\\"))
        yield start, Text(before[: len(before) - backslashes + backslashes // 2])
        if backslashes % 2:
            yield braces, Text("{{")
            start = braces + 2
            continue
        run_end = _skip(text, braces, end, "{")
        name_at = _skip(text, run_end, end, " \t")
        name = _NAME.match(text, name_at, end)
        if name is None:
            yield braces, Text(text[braces:run_end])
            start = run_end
            continue
        yield braces, Text(text[braces : run_end - 2])
        start = _skip(text, name.end(), end, " \t")
        if not text.startswith("}}", start, end):
            raise _error(text, run_end - 2, _not_a_hole(text, run_end - 2, start, end))
        yield run_end - 2, _Hole(name[0])
        start += 2
    yield start, Text(text[start:end])


def _skip(text: str, start: int, end: int, characters: str) -> int:
    while start < end and text[start] in characters:
        start += 1
    return start


def _not_a_hole(text: str, opened: int, stopped: int, end: int) -> str:
    if stopped == end or text[stopped] in "\r\n":
        shown, reason = text[opened : min(stopped, opened + 40)], "the hole is not closed on its line"
    else:
        shown, reason = text[opened : min(stopped + 1, opened + 40)], f"{text[stopped]!r} cannot stand in a hole"
    return f"{shown!r} opens a hole but {reason}: write {{{{name}}}}, or \\{{{{ for the text {{{{"


def _classify(segment: Text | _Hole | Role, outputs: Collection[str]) -> Segment:
    if isinstance(segment, _Hole):
        return Output(segment.name) if segment.name in outputs else Input(segment.name)
    return segment


def _check_declared(
    text: str,
    placed: list[tuple[int, Text | _Hole | Role]],
    outputs: Collection[str],
    inputs: Collection[str],
    all_declared: bool,
) -> None:
    """Declared names are names, and are used; where all must be declared, every hole is."""
    for name in (*outputs, *inputs):
        if not _NAME.fullmatch(name):
            raise _error(text, 0, f"{name[:40]!r} is no name for a hole: use letters, digits and underscores")
    for name in inputs:
        if name in outputs:
            raise _error(text, 0, f"hole {name!r} is declared as an input and as an output")
    used = {segment.name: offset for offset, segment in reversed(placed) if isinstance(segment, _Hole)}
    for name, offset in used.items():
        if all_declared and name not in outputs and name not in inputs:
            raise _error(text, offset, f"hole {name!r} is neither an input nor an output of the function")
    for kind, names in (("output", outputs), ("input", inputs)):
        for name in names:
            if name not in used:
                raise _error(text, len(text), f"{kind} {name!r} is declared, but the template has no {{{{{name}}}}}")


def _check_roles(text: str, segments: list[tuple[int, Segment]], format: Format) -> list[tuple[int, Segment]]:
    """Nothing before the first role line, outputs only in [assistant]. Returns the segments from the first role on."""
    first = next(index for index, (_, segment) in enumerate(segments) if isinstance(segment, Role))
    if format == "text":
        message = "a template of format text has no messages: drop the role lines, or escape them as \\[user]"
        raise _error(text, segments[first][0], message)
    _check_blank(text, segments[:first], "text before the first role line belongs to no message")
    role = ""
    for offset, segment in segments[first:]:
        if isinstance(segment, Role):
            role = segment.role
        elif isinstance(segment, Output) and role != "assistant":
            message = f"output {segment.name!r} stands in [{role}]: the model writes only in [assistant]"
            raise _error(text, offset, message)
    return segments[first:]


def _check_outputs(text: str, segments: list[tuple[int, Segment]]) -> list[tuple[int, Segment]]:
    """Outputs, each once, something before the first, nothing behind the last. Returns the segments up to the last."""
    last = -1
    seen: set[str] = set()
    readable = False
    for index, (offset, segment) in enumerate(segments):
        if not isinstance(segment, Output):
            readable = readable or isinstance(segment, Input) or (isinstance(segment, Text) and not _is_blank(segment))
            continue
        if segment.name in seen:
            raise _error(text, offset, f"output {segment.name!r} is used twice: give the second its own name")
        if not readable:
            raise _error(text, offset, f"there is nothing before output {segment.name!r} for the model to read")
        seen.add(segment.name)
        last = index
    if last < 0:
        raise _error(text, len(text), "the template has no output hole: declare an output, and write it where it goes")
    _check_blank(text, segments[last + 1 :], "there is more after the last output, which no output would read")
    return segments[: last + 1]


def _is_blank(segment: Segment) -> bool:
    return isinstance(segment, Text) and segment.text.isspace()


def _check_blank(text: str, segments: list[tuple[int, Segment]], message: str) -> None:
    for offset, segment in segments:
        if not _is_blank(segment):
            blanks = len(segment.text) - len(segment.text.lstrip()) if isinstance(segment, Text) else 0
            raise _error(text, offset + blanks, message)
