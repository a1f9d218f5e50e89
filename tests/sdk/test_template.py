"""The template grammar: each rule by a table, the whole by properties."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parrot_sdk.errors import TemplateError
from parrot_sdk.template import (
    Input,
    Output,
    Role,
    Segment,
    Template,
    Text,
    function_id,
    imply_output,
    parse,
)

CRLF_CHAT = "[system]\r\nBe short.\r\n\r\n[user]\r\n\t{{x}} \r\n[assistant]\r\n{{o}}\r\n"


def segments(text: str, *outputs: str) -> tuple[Segment, ...]:
    return parse(text, outputs or ("o",)).segments


def render(template: Template, values: dict[str, str]) -> str:
    """Constants, values and outputs one after the other; a role as its name in angle brackets."""
    parts = []
    for segment in template.segments:
        match segment:
            case Text():
                parts.append(segment.text)
            case Input() | Output():
                parts.append(values[segment.name])
            case Role():
                parts.append(f"<{segment.role}>")
    return "".join(parts)


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("{}", "{}"),
        ('{"name": "x"}', '{"name": "x"}'),
        ('{{"k": 1}}', '{{"k": 1}}'),
        ("{{}}", "{{}}"),
        ("{{ }}", "{{ }}"),
        ("}}", "}}"),
        ("{{", "{{"),
        ("{{ {{", "{{ {{"),
        ("{{1x}}", "{{1x}}"),
        ("{{\nx}}", "{{\nx}}"),
        ("{{-x}}", "{{-x}}"),
        ("{{é}}", "{{é}}"),
        ("{x}", "{x}"),
        ("{ {x} }", "{ {x} }"),
        ("{% if x %}{# no #}{% endif %}${x}", "{% if x %}{# no #}{% endif %}${x}"),
        ("A = {1; 2; 3}", "A = {1; 2; 3}"),
        (r"\{{", "{{"),
        (r"\{{name}}", "{{name}}"),
        (r"\{{a-b", "{{a-b"),
        (r'\{{"k": 1}}', '{{"k": 1}}'),
        (r"\\\{{name}}", r"\{{name}}"),
        (r"\\{{1}}", r"\{{1}}"),
        (r"\{x} \n \\ {\{", r"\{x} \n \\ {\{"),
    ],
)
def test_other_braces_and_escapes_are_text(text: str, literal: str) -> None:
    assert segments(f"a{text} 9{{{{o}}}}") == (Text(f"a{literal} 9"), Output("o"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a{{x}}{{o}}", (Text("a"), Input("x"), Output("o"))),
        ("a{{ x\t}}{{  o }}", (Text("a"), Input("x"), Output("o"))),
        ("a{{_X9}}{{o}}", (Text("a"), Input("_X9"), Output("o"))),
        ("{{{x}}}{{o}}", (Text("{"), Input("x"), Text("}"), Output("o"))),
        ("{{{{x}}}}{{o}}", (Text("{{"), Input("x"), Text("}}"), Output("o"))),
        ("{{}}{{x}}{{o}}", (Text("{{}}"), Input("x"), Output("o"))),
        (r"\\{{x}}{{o}}", (Text("\\"), Input("x"), Output("o"))),
        (r"\\\\{{x}}{{o}}", (Text("\\\\"), Input("x"), Output("o"))),
        (r"\{{{{x}}{{o}}", (Text("{{"), Input("x"), Output("o"))),
        ("{{x}} and {{x}}{{o}}", (Input("x"), Text(" and "), Input("x"), Output("o"))),
        ("{{x}}{{y}}{{o}}", (Input("x"), Input("y"), Output("o"))),
    ],
)
def test_holes(text: str, expected: tuple[Segment, ...]) -> None:
    assert segments(text) == expected


def test_a_repeated_input_is_one_input() -> None:
    assert parse("{{x}} {{y}} {{x}} {{o}}", ("o",)).inputs == ("x", "y")


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("hi {{a-b}}{{o}}", "'-' cannot stand in a hole", 1, 4),
        ("{{a b}}{{o}}", "'b' cannot stand", 1, 1),
        ("one\ntwo {{name", "not closed", 2, 5),
        ("one\r\ntwo {{name\n}}{{o}}", "not closed", 2, 5),
        ("{{name}{{o}}", "'}' cannot stand", 1, 1),
        ("{{{a.b}}}{{o}}", "'.' cannot stand", 1, 2),
        ("a{{name ", "not closed", 1, 2),
        ("{{o}}", "nothing before output 'o'", 1, 1),
        (" \t\n{{o}}", "nothing before output 'o'", 2, 1),
        ("[user]\n[assistant]\n{{o}}", "nothing before output 'o'", 3, 1),
        ("[assistant]\n \n{{o}}", "nothing before output 'o'", 3, 1),
        ("a", "no output hole", 1, 2),
        ("a{{x}}\nb", "no output hole", 2, 2),
        ("", "no output hole", 1, 1),
        ("a{{o}} and more", "more after the last output", 1, 8),
        ("a{{o}}\n\n {{x}}", "more after the last output", 3, 2),
        ("a{{o}}\u200d", "more after the last output", 1, 7),
        ("[user]\na\n[assistant]\n{{o}}\n[user]\nb", "more after the last output", 5, 1),
        ("a{{o}} {{o}}", "output 'o' is used twice", 1, 8),
        ("\n hello\n[user]\na\n[assistant]\n{{o}}", "before the first role line", 2, 2),
        ("{{x}}\n[user]\na\n[assistant]\n{{o}}", "before the first role line", 1, 1),
        ("[user]\na {{o}}", r"stands in \[user\]", 2, 3),
        ("[system]\na {{o}}\n[assistant]\nx", r"stands in \[system\]", 2, 3),
        ("a\ud800b{{o}}", "lone surrogate", 1, 2),
    ],
)
def test_errors_have_a_place(text: str, message: str, line: int, column: int) -> None:
    with pytest.raises(TemplateError, match=message) as caught:
        parse(text, ("o",) if "{{o}}" in text else ())
    assert (caught.value.line, caught.value.column) == (line, column)
    assert isinstance(caught.value, ValueError)


def test_declared_holes_must_be_used() -> None:
    with pytest.raises(TemplateError, match="output 'p' is declared"):
        parse("a{{o}}", ("o", "p"))
    with pytest.raises(TemplateError, match="input 'x' is declared"):
        parse("a{{o}}", ("o",), ("x",))
    with pytest.raises(TemplateError, match="as an input and as an output"):
        parse("a{{o}}", ("o",), ("o",))
    with pytest.raises(TemplateError, match="is no name for a hole"):
        parse("a{{o}}", ("o", "a-b"))


def test_undeclared_holes_are_inputs_unless_all_must_be_declared() -> None:
    assert parse("a{{x}}{{y}}{{o}}", ("o",), ("x",)).inputs == ("x", "y")
    with pytest.raises(TemplateError, match="hole 'y' is neither") as caught:
        parse("a{{x}}\n{{y}}{{o}}", ("o",), ("x",), all_declared=True)
    assert (caught.value.line, caught.value.column) == (2, 1)


def test_what_stands_between_outputs_is_kept_and_what_follows_the_last_is_not() -> None:
    expected = (Text("Q"), Output("a"), Text("\n \nWhy? "), Output("b"))
    assert segments("Q{{a}}\n \nWhy? {{b}} \r\n\u00a0\t", "a", "b") == expected
    assert segments("Q{{a}}{{b}}", "a", "b") == (Text("Q"), Output("a"), Output("b"))


def test_roles() -> None:
    expected = (Role("system"), Text("Be short.\r\n"), Role("user"), Text("\t"), Input("x"), Text(" "))
    assert segments(CRLF_CHAT) == (*expected, Role("assistant"), Output("o"))
    assert parse(CRLF_CHAT, ("o",)).has_roles


@pytest.mark.parametrize("line", [" [user]", "[user] ", "[User]", "[tool]", "[user]:", "x [user]", "[user]\rx"])
def test_only_an_exact_line_is_a_role(line: str) -> None:
    assert segments(f"a\n{line}\n{{{{o}}}}") == (Text(f"a\n{line}\n"), Output("o"))


def test_an_escaped_role_line_is_text() -> None:
    assert segments("a\n\\[user]\nb{{o}}") == (Text("a\n[user]\nb"), Output("o"))
    assert segments("a\n\\\\[user]\nb{{o}}") == (Text("a\n\\[user]\nb"), Output("o"))
    assert segments("\\[user]\n{{o}}") == (Text("[user]\n"), Output("o"))
    assert segments("a \\[user]\n{{o}}") == (Text("a \\[user]\n"), Output("o"))


def test_white_space_before_the_first_role_line_is_no_message() -> None:
    assert segments("\n  \n[user]\na\n[assistant]\n{{o}}")[0] == Role("user")


def test_a_conversation() -> None:
    text = "[user]\nA\n[assistant]\n{{a}}\n[user]\nB\n\n[assistant]\nSo: {{b}}"
    template = parse(text, ("a", "b"))
    expected = (Role("user"), Text("A"), Role("assistant"), Output("a"), Role("user"), Text("B\n"))
    assert template.segments == (*expected, Role("assistant"), Text("So: "), Output("b"))
    assert template.outputs == ("a", "b")


def test_text_format_has_no_roles() -> None:
    with pytest.raises(TemplateError, match="format text has no messages") as caught:
        parse("x\n[user]\na\n[assistant]\n{{o}}", ("o",), format="text")
    assert caught.value.line == 2
    assert parse("a\n\\[user]\n{{o}}", ("o",), format="text").segments[0] == Text("a\n[user]\n")


@pytest.mark.parametrize(
    ("text", "continuing"),
    [
        ("a{{o}}", False),
        ("[user]\na\n[assistant]\n{{o}}", False),
        ("[user]\na\n[assistant]\nSure: {{o}}", True),
        ("[user]\na\n[assistant]\n{{x}}{{o}}", True),
        ("[user]\na\n[assistant]\n{{p}}\n[user]\nb\n[assistant]\n{{o}}", False),
        ("[user]\na\n[assistant]\n{{p}}{{o}}", True),
        ("a{{p}} b{{o}}", True),
        ("a{{p}}{{o}}", True),
    ],
)
def test_continues(text: str, continuing: bool) -> None:
    assert parse(text, ("o", "p") if "{{p}}" in text else ("o",)).continues("o") is continuing


@pytest.mark.parametrize(
    "bytes_kept", ["  lead", "trail  ", "a\r\nb", "a\rb", "\t", "\u00a0", "\u200d", "\u2028", "\0"]
)
def test_bytes_are_kept(bytes_kept: str) -> None:
    assert segments(f"x{bytes_kept}y{{{{o}}}}") == (Text(f"x{bytes_kept}y"), Output("o"))


TEXTS = st.text(st.one_of(st.sampled_from("{}\\[]\r\n\t xyo_-"), st.characters(exclude_categories=["Cs"])))


@given(st.lists(TEXTS), TEXTS)
def test_render_is_concatenation(constants: list[str], value: str) -> None:
    """Any text survives when it is escaped, and any value when it is not."""
    source, expected = "Begin ", "Begin "
    for constant in constants:
        source += escape(constant) + "{{x}}"
        expected += constant + value
    rendered = render(parse(source + "{{o}}", ("o",)), {"x": value, "o": "OUT"})
    assert rendered == expected + "OUT"


def escape(text: str) -> str:
    """Write a text so that it is read back: as its author would, brace by brace."""
    escaped, backslashes = "", 0
    for at, character in enumerate(text):
        if character == "\\":
            backslashes += 1
            continue
        opens = character == "{" and (text[at + 1 : at + 2] == "{" or at + 1 == len(text))
        escaped += "\\" * (2 * backslashes if opens else backslashes)
        escaped += "\\{{" if opens and text[at + 1 : at + 2] == "{" else ""
        backslashes = 0
        escaped += character
    return escaped + "\\" * 2 * backslashes


@given(TEXTS)
@example("{{x}} {{ y }}")
def test_any_text_parses_or_is_an_error_with_a_place(text: str) -> None:
    source = text + "{{o}}"
    failure = None
    try:
        template = parse(source, ("o",))
    except TemplateError as error:
        failure = error
    else:
        assert template.outputs == ("o",)
        assert template.segments[-1] == Output("o")
    if failure:
        assert 1 <= failure.line <= source.count("\n") + 1
        assert 1 <= failure.column <= len(source) + 1


@given(TEXTS)
@example("\\{{x}}\\\\{")
@example("a\n\\[user]")
def test_an_implied_output_changes_nothing_of_the_text(text: str) -> None:
    try:
        before = parse(text + "\n9{{o}}", ("o",))
    except TemplateError:
        return
    if not before.has_roles and text.strip():
        after = parse(imply_output(text, "o"), ("o",))
        values = dict.fromkeys(before.inputs, "V") | {"o": "OUT"}
        assert render(after, values) == render(before, values).removesuffix("\n9OUT") + "OUT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo", (Text("foo"), Output("o"))),
        ("foo\\", (Text("foo\\"), Output("o"))),
        ("foo\\{", (Text("foo\\{"), Output("o"))),
        ("foo{", (Text("foo{"), Output("o"))),
        ("foo\\{{", (Text("foo{{"), Output("o"))),
        ("foo {{ o }} ", (Text("foo "), Output("o"))),
        ("[user]\nx", (Role("user"), Text("x"), Role("assistant"), Output("o"))),
        ("[user]\nx\n[assistant]", (Role("user"), Text("x"), Role("assistant"), Output("o"))),
        ("[user]\nx\n[assistant]\n", (Role("user"), Text("x"), Role("assistant"), Output("o"))),
        ("[user]\nx\n[assistant]\nOK: ", (Role("user"), Text("x"), Role("assistant"), Text("OK: "), Output("o"))),
        ("x\n\\[user]", (Text("x\n[user]"), Output("o"))),
        ("[user]\n\\[system]", (Role("user"), Text("[system]"), Role("assistant"), Output("o"))),
    ],
)
def test_implied_output(text: str, expected: tuple[Segment, ...]) -> None:
    assert segments(imply_output(text, "o")) == expected


@pytest.mark.parametrize(
    "unit", ["{", "\\", "\\{{", "{{ ", "{{x}}", "[user]\n", "\\[user]\n", "\\\\\n", "{{a ", "}}", "{{" + " " * 50]
)
def test_parsing_is_linear(unit: str) -> None:
    """A text 8 times as long takes about 8 times as long, whatever it is made of; never a recursion error."""

    def seconds(repeats: int) -> float:
        text = unit * repeats + "a{{o}}"
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            with contextlib.suppress(TemplateError):
                parse(text, ("o",))
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(32_000) < max(40 * seconds(4_000), 0.02)


def test_identity_is_of_content() -> None:
    base = function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3}}, {})
    assert base == function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3, "seed": None}}, {"x": "\n\n"})
    assert function_id("t", {"o": {"temperature": 0}}, {}) == function_id("t", {"o": {"temperature": 0.0}}, {})
    others = [
        function_id("a{{x}}{{o}} ", {"o": {"max_tokens": 3}}, {}),
        function_id("a{{x}}{{o}}", {"o": {"max_tokens": 4}}, {}),
        function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3, "stop": ["x"]}}, {}),
        function_id("a{{x}}{{o}}", {"x": {"max_tokens": 3}}, {}),
        function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3}}, {"x": ","}),
        function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3}}, {}, "text"),
        function_id("a{{x}}{{o}}", {"o": {"max_tokens": 3}, "p": {}}, {}),
    ]
    assert len({base, *others}) == len(others) + 1


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=3, unique_by=lambda pair: pair[0]))
def test_fields_of_an_identity_are_framed(pairs: list[tuple[str, str]]) -> None:
    """Moving a character from one field to the next changes the identity."""
    joins = dict(pairs)
    for name, join in pairs:
        if join and join != "\n\n":
            moved = {n: j for n, j in pairs if n != name} | {name + join[0]: join[1:]}
            assert function_id("t", {}, joins) != function_id("t", {}, moved)
