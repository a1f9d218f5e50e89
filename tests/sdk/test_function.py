"""Functions: what the decorator reads, what it refuses, and what a call of one sends."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from parrot_sdk import FunctionError, In, Out, TemplateError, function
from parrot_sdk.draft import SHARED_TEXT_CHARS, Draft
from parrot_sdk.function_file import read_function_file
from parrot_sdk.template import Input, Output, Role, Text
from parrot_sdk.testing import ScriptedServer
from parrot_sdk.wire import ProgramBody, read_body
from tests.sdk.functions import combine, headline, refine, summarize


def test_a_docstring_is_a_template() -> None:
    assert summarize.template.segments == (Text("Sum up.\n\n"), Input("chapter"), Output("output"))
    assert summarize.declaration.body.outputs["output"].max_tokens == 250
    assert summarize.declaration.body.outputs["output"].temperature == 0
    assert summarize.name == "summarize"
    assert summarize.rendered() == "Sum up.\n\n{{chapter}}{{output}}"
    assert summarize.rendered("{{ x }}") == "Sum up.\n\n{{ x }}{{output}}"
    assert combine.rendered(["a", "b"]) == "Combine:\na\n--\nb{{output}}"


def test_a_chat_is_rendered_with_its_roles() -> None:
    assert headline.rendered("T") == "[user]\nName this: T\n[assistant]\nTitle: {{title}}\nSlug: {{slug}}"
    assert headline.template.segments[0] == Role("user")
    assert headline.declaration.body.outputs["title"].max_tokens == 20
    assert headline.declaration.body.outputs["title"].stop == ["\n"]
    assert headline.declaration.body.outputs["slug"].max_tokens == 100


def test_bytes_of_a_docstring_are_kept_but_for_its_indentation() -> None:
    @function
    def odd(x: In[str]) -> str:
        """{"a": 1}   \u00a0
            deeper {{}} \u200d

        {{ x }} end \\{{ x }}"""

    assert odd.rendered("V") == '{"a": 1}   \u00a0\n    deeper {{}} \u200d\n\nV end {{ x }}{{output}}'


def test_an_output_that_is_written_is_not_added() -> None:
    @function
    def prefix(x: In[str]) -> str:
        """[user]
        {{ x }}
        [assistant]
        Sure: {{ output }}"""

    assert prefix.template.segments[-2:] == (Text("Sure: "), Output("output"))

    @function
    def named(x: In[str]) -> Annotated[str, Out("verdict", max_tokens=3)]:
        """Judge {{ x }}. {{ verdict }}"""

    assert named.template.outputs == ("verdict",)


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("Say {{ y }}", r"function bad: hole 'y' is neither an input nor an output .*line 1, column 5"),
        ("Say nothing", r"function bad: input 'x' is declared"),
        ("Say {{ x }\nmore", r"function bad: .* cannot stand in a hole.*line 1"),
        ("Say {{ x }} {{ output }} then", r"function bad: there is more after the last output"),
        ("one\n  a {{ x-y }}", r"function bad: .*line 2, column 3"),
        ("[user]\nSay {{ x }} {{ output }}", r"stands in \[user\]"),
        ("   \n ", r"function bad: input 'x' is declared"),
    ],
)
def test_templates_that_are_refused_name_function_hole_and_line(docstring: str, message: str) -> None:
    def bad(x: In[str]) -> str: ...

    bad.__doc__ = docstring
    with pytest.raises(TemplateError, match=message):
        function(bad)


class Model(BaseModel):
    a: int


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (None, "must say what it returns"),
        (int, "returns int: only text"),
        (Model, "returns Model: only text"),
        (list[str], "only text"),
        (Literal["a", "b"], "only text"),
        (tuple[str, str], "each of several outputs needs a name"),
        (tuple[Annotated[str, Out("a")], Annotated[int, Out("b")]], "returns int"),
        (tuple[Annotated[str, Out("a")], Annotated[str, Out("a")]], "two outputs have the same name"),
        (Annotated[str, Out("o", max_tokens=0)], "output 'o': max_tokens"),
    ],
)
def test_return_annotations_that_are_refused(annotation: Any, message: str) -> None:
    def bad(x: In[str]) -> str:
        """Say {{ x }}"""

    bad.__annotations__["return"] = annotation
    with pytest.raises(FunctionError, match=f"(?s)function bad.*{message}"):
        function(bad)


def test_declarations_that_are_refused() -> None:
    def no_prompt(x: In[str]) -> str: ...

    def many(*xs: str) -> str:
        """Say {{ xs }}"""

    async def later(x: In[str]) -> str:
        """Say {{ x }}"""
        return ""

    for bad, message in [(no_prompt, "no prompt"), (many, "name each parameter"), (later, "plain `def`")]:
        with pytest.raises(FunctionError, match=message):
            function(bad)
    with pytest.raises(FunctionError, match="temperature: Input should be less than or equal to 2"):
        function(temperature=3)(no_prompt_with("Say {{ x }}"))
    for options, message in [
        ({"attempts": 11}, "attempts: "),
        ({"timeout_s": 0}, "timeout_s: "),
        ({"fallback": 1}, "fallback: "),
    ]:
        with pytest.raises(FunctionError, match=f"function made: .*{message}"):
            function(**options)(no_prompt_with("Say {{ x }}"))  # type: ignore[call-overload]
        with pytest.raises(FunctionError, match=f"function summarize: .*{message}"):
            summarize.using(**options)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="unknown option 'temprature'"):
        function(temprature=1)(no_prompt_with("Say {{ x }}"))  # type: ignore[call-overload]
    with pytest.raises(FunctionError, match="no parameter 'y'"):
        function(joins={"y": ","})(no_prompt_with("Say {{ x }} {{ y }}"))


def no_prompt_with(docstring: str) -> Any:
    def made(x: In[str]) -> str: ...

    made.__doc__ = docstring
    return made


class TestFiles:
    def write(self, folder: Path, text: str, name: str = "combine.md") -> Path:
        path = folder / name
        path.write_bytes(text.encode())
        return path

    def test_a_file_is_read_whole(self, tmp_path: Path) -> None:
        text = (
            "---\r\nname: joined\r\ndescription: Joins.\r\ninputs:\r\n  parts: {join: ', '}\r\n"
            "outputs:\r\n  answer: {max_tokens: 9, temperature: 0}\r\n---\r\n"
            "[user]\r\nJoin {{ parts }}\r\n[assistant]\r\n{{ answer }}\r\n"
        )
        file = read_function_file(self.write(tmp_path, text))
        expected = (Role("user"), Text("Join "), Input("parts"), Role("assistant"), Output("answer"))
        assert file.parse().segments == expected
        assert (file.name, file.description, file.inputs["parts"].join) == ("joined", "Joins.", ", ")
        assert file.outputs["answer"].max_tokens == 9

    def test_a_python_function_names_a_file(self, tmp_path: Path) -> None:
        front = "---\noutputs: {answer: {max_tokens: 9, seed: 3}}\ninputs: {parts: {join: ', '}}\n---\n"
        path = self.write(tmp_path, front + "Join {{ parts }}: {{ answer }}\n")

        @function(template=path, max_tokens=5)
        def join(parts: In[list[str]]) -> str: ...

        assert join.template.outputs == ("answer",)
        assert join.declaration.body.outputs["answer"].max_tokens == 5
        assert join.declaration.body.outputs["answer"].seed == 3
        assert join.rendered(["a", "b"]) == "Join a, b: {{answer}}"

    def test_a_file_may_hold_the_template_alone(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "\ufeffJoin {{ parts }}")

        @function(template=str(path))
        def join(parts: In[list[str]]) -> str: ...

        assert join.rendered("x") == "Join x{{output}}"

    def test_a_file_beside_the_function_is_found(self) -> None:
        with tempfile.NamedTemporaryFile(dir=Path(__file__).parent, suffix=".md") as file:
            file.write(b"Join {{ parts }}")
            file.flush()

            @function(template=Path(file.name).name)
            def join(parts: In[list[str]]) -> str: ...

        assert join.template.inputs == ("parts",)

    def test_a_file_that_is_not_there_is_named_with_both_places(self) -> None:
        with pytest.raises(FunctionError, match=r"function join: there is no template file nix\.md, nor .*sdk.nix\.md"):

            @function(template="nix.md")
            def join(parts: In[list[str]]) -> str: ...

    @pytest.mark.parametrize(
        ("text", "message", "line"),
        [
            ("---\noutputs: {o: {}}\n---\nSay {{ x-y }}\n{{ o }}", "cannot stand in a hole", 4),
            ("---\noutputs: {o: {}}\n---\n\n\nSay {{ x", "not closed", 6),
            ("---\noutputs: {o: {}}\n\nSay {{ x }}{{ o }}", "not closed by a line ---", 1),
            (
                "---\noutputs: {o: {max_token: 3}}\n---\nSay {{ o }}",
                r"combine\.md: outputs\.o\.max_token: unknown field",
                2,
            ),
            ("---\ntemplate: x\n---\nSay {{ o }}", "template: unknown field", 2),
            ("---\noutputs: [o\n---\nSay {{ o }}", "not YAML", 3),
            ("---\n- a\n---\nSay {{ o }}", "fields with names", 1),
            ("---\nname: 3\n---\nSay {{ o }}", "name: ", 2),
            ("---\nname: f\n---\nSay", "no output hole", 4),
        ],
    )
    def test_files_that_are_refused(self, tmp_path: Path, text: str, message: str, line: int) -> None:
        path = self.write(tmp_path, text)
        with pytest.raises(TemplateError, match=message) as caught:
            read_function_file(path).parse()
        assert caught.value.line == line

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.md"
        path.write_bytes(b"a\xff{{ o }}")
        with pytest.raises(TemplateError, match=r"bad\.md is not UTF-8"):
            read_function_file(path)

    def test_the_annotation_must_fit_the_file(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, "---\noutputs: {a: {}, b: {}}\n---\nSay {{ x }}{{ a }}{{ b }}")

        def two(x: In[str]) -> str: ...

        with pytest.raises(FunctionError, match="must name the outputs of its file: a, b"):
            function(template=path)(two)


def test_a_graph_is_one_body_that_keeps_the_contract() -> None:
    with ScriptedServer() as server, server.program("book", priority=2, budget={"calls": 50}) as program:
        title, slug = headline.using(model="fake", attempts=3, fallback={"title": "T", "slug": "S"}, timeout_s=5)(
            "x" * 300
        )
        draft = refine(title, step=1)
        combine([draft, slug, "literal", 3, title.field("a.b")])
        summarize.map(title.items())
        refine.using(after=[draft], temperature=1.5)(["a", "b"], step=2)
        fields = program._draft.take()
        body = read_body(ProgramBody, json.dumps({**program.submission._wishes, **fields}).encode())
    calls = {call.id: call for call in body.calls}
    assert list(calls) == [
        "headline-0",
        "refine-0",
        "transform-0",
        "combine-0",
        "transform-1",
        "summarize-0",
        "refine-1",
    ]
    assert body.variables == {"text-0": "x" * 300}
    assert calls["headline-0"].outputs == {"title": "headline-0.0", "slug": "headline-0.1"}
    assert calls["headline-0"].retry is not None
    assert calls["headline-0"].retry.attempts == 3
    assert calls["refine-0"].inputs["step"] == "1"
    assert [getattr(part, "var", part) for part in calls["combine-0"].inputs["summaries"]] == [
        "refine-0",
        "headline-0.1",
        "literal",
        "3",
        "transform-0",
    ]
    assert calls["summarize-0"].each == "chapter"
    assert calls["refine-1"].after == ["refine-0"]
    assert calls["refine-1"].sampling["output"].temperature == 1.5
    assert calls["refine-1"].sampling["output"].max_tokens == refine.declaration.body.outputs["output"].max_tokens
    assert body.functions["summarize"].id == summarize.declaration.body.id
    assert (body.name, body.priority, body.budget.calls) == ("book", 2, 50)


def test_two_functions_of_one_name_are_two() -> None:
    def other(chapter: In[str]) -> str:
        """Another prompt: {{ chapter }}"""

    other.__name__ = "summarize"
    with ScriptedServer() as server, server.program():
        first, second = summarize("x"), function(other)("x")
        assert first.get() != second.get()
        assert server.engine.prompts == [
            "[user]\nSum up.\n\nx\n[assistant]\n",
            "[user]\nAnother prompt: x\n[assistant]\n",
        ]


def test_a_long_text_is_sent_once() -> None:
    draft = Draft()
    text = "t" * SHARED_TEXT_CHARS
    for _ in range(3):
        draft.add_function_call("f", "id", {}, {"x": text, "y": [text, "short"]}, ("o",), {})
    body = draft.take()
    assert body["variables"] == {"text-0": text}
    assert body["calls"][2]["inputs"] == {"x": {"var": "text-0"}, "y": [{"var": "text-0"}, "short"]}
    draft.add_function_call("f", "id", {}, {"x": text}, ("o",), {})
    assert draft.take() == {
        "functions": {"f": {}},
        "calls": [{"id": "f-3", "function": "f", "inputs": {"x": {"var": "text-0"}}, "outputs": {"o": "f-3"}}],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("{{ other }}", "{{ other }}"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ({"a": "é{{x}}"}, '{"a": "é{{x}}"}'),
        (Model(a=1), '{"a":1}'),
        (["a", "b"], '["a", "b"]'),
    ],
)
def test_literals_reach_the_prompt_as_text(value: object, text: str) -> None:
    @function(format="text")
    def say(x: object) -> str:
        """Say {{ x }}."""

    assert say.rendered(value) == f"Say {text}.{{{{output}}}}"
    with ScriptedServer() as server, server.program():
        say(value).get()
        assert server.engine.prompts == [f"Say {text}."]


@given(st.lists(st.text(), min_size=1, max_size=4), st.text())
def test_a_prompt_is_the_concatenation_of_its_parts(values: list[str], other: str) -> None:
    prompt = "Combine:\n" + "\n--\n".join(values)
    assert combine.rendered(values) == prompt + "{{output}}"
    assert refine.rendered(other, step=1) == f"Step 1 of {other}:{{{{output}}}}"


def test_values_reach_the_engine_byte_for_byte() -> None:
    values = ["{{chapter}}", "{}", "[user]", "\r\n\t \u2028", "\\{{x}}", "🦜" * 200, "<|im_end|>"]
    with ScriptedServer() as server, server.program():
        for variable in summarize.map(values):
            variable.get()
        assert sorted(server.engine.prompts) == sorted(f"[user]\nSum up.\n\n{value}\n[assistant]\n" for value in values)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"summarize\(\): argument 'chapter' of type object is neither text"),
        (b"bytes", "of type bytes"),
        (float("nan"), "of type float"),
        ("\ud800", "lone surrogate"),
        ([["\ud800"]], "lone surrogate"),
        ((x for x in "ab"), "of type generator"),
    ],
)
def test_arguments_that_are_refused(value: Any, message: str) -> None:
    with ScriptedServer() as server:
        program = server.program()
        with pytest.raises(FunctionError, match=message), program:
            summarize(value)
        assert server.client.http_requests == 0


def test_calls_that_do_not_fit_the_signature() -> None:
    with ScriptedServer() as server, server.program():
        with pytest.raises(FunctionError, match=r"summarize\(\): missing a required argument: 'chapter'"):
            summarize()  # type: ignore[call-arg]
        with pytest.raises(FunctionError, match="has no parameter 'chaptr'; there are chapter"):
            summarize("x", chaptr="x")  # type: ignore[call-arg]
        with pytest.raises(FunctionError, match="has no parameter 'chaptr'; there are chapter"):
            summarize(chaptr="x")  # type: ignore[call-arg]
        with pytest.raises(FunctionError, match="give a list of items"):
            summarize.map("a text")
        nested: dict[str, object] = {"deep": summarize("x")}
        with pytest.raises(FunctionError, match="without variables in it"):
            refine("x", step=nested)  # type: ignore[arg-type]


def test_an_option_that_is_given_as_an_argument_is_told_where_it_belongs() -> None:
    with ScriptedServer() as server, server.program():
        with pytest.raises(FunctionError, match=r"an option: say summarize\.using\(max_tokens=5\)\(\.\.\.\)"):
            summarize("x", max_tokens=5)  # type: ignore[call-arg]
        with pytest.raises(FunctionError, match=r"say summarize\.using\(attempts=2\)"):
            summarize.map(["x"], attempts=2)  # type: ignore[call-overload]


@function
def pair(question: In[str], page: In[str], title: str = "", notes: In[list[str]] = ()) -> str:
    """{{ title }} {{ question }} {{ page }} {{ notes }}"""


def test_map_does_not_zip_and_says_so() -> None:
    with ScriptedServer() as server, server.program() as program:
        with pytest.raises(FunctionError, match=r"pair\.map\(\) got a list for 'page'.*zip.*In\[list\[str\]\]"):
            pair.map(["a", "b"], ["c", "d"])
        with pytest.raises(FunctionError, match="list for 'page'"):
            pair.map(["a", "b"], page=("c", "d"))
        with pytest.raises(FunctionError, match="list for 'title'"):
            pair.map(["a", "b"], "c", ["d", "e"])  # type: ignore[arg-type]
        assert not program.submission._draft.take()
        pair.map(["a", "b"], "c", notes=["d", "e"])[1].get()
        assert any("a c d\n\ne" in prompt for prompt in server.engine.prompts)
        pair("a", ["joined", "in one call"])


@pytest.mark.parametrize("value", [None, ["a", None]])
def test_none_is_no_text(value: Any) -> None:
    with ScriptedServer() as server, server.program():
        for call in (summarize, combine):
            with pytest.raises(FunctionError, match=rf"{call.name}\(\): argument '\w+' is None"):
                call(value)
        with pytest.raises(FunctionError, match="argument 'title' is None"):
            pair("a", "b", value if value is None else None)  # type: ignore[arg-type]
        with pytest.raises(FunctionError, match="argument 'chapter' is None"):
            summarize.map(["a", None])  # type: ignore[list-item]
