"""The bodies that clients send. Closed at every depth, nothing is coerced, null is refused where a value is meant."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from parrot_sdk.template import DEFAULT_JOIN, Format, Template, function_id, parse

MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_NODES = 10_000


def _not_null(value: object) -> object:
    if value is None:
        raise ValueError("null is no value here: leave the field out")
    return value


def _whole_characters(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"a lone surrogate (character {error.start}) is no character: send valid Unicode"
            ) from None
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("only printable characters can stand in a label")
    return text


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _sound_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON values alone, of bounded size and depth, and no reference to another document. Iterative."""
    todo: list[tuple[Any, int]] = [(schema, 1)]
    count = 0
    while todo:
        node, depth = todo.pop()
        count += 1
        if depth > MAX_SCHEMA_DEPTH or count > MAX_SCHEMA_NODES:
            raise ValueError(f"a schema has at most {MAX_SCHEMA_DEPTH} levels and {MAX_SCHEMA_NODES} values")
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str) and not node["$ref"].startswith("#"):
                raise ValueError("a $ref of a schema points into the schema itself: it begins with #")
            todo.extend((part, depth + 1) for pair in node.items() for part in pair)
        elif isinstance(node, list):
            todo.extend((part, depth + 1) for part in node)
        elif isinstance(node, str):
            _whole_characters(node)
        elif isinstance(node, float) and (node != node or node in (float("inf"), float("-inf"))):
            raise ValueError("a number of a schema must be finite")
    return schema


def _kind_of_binding(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if isinstance(value, list):
        return "<list>"
    return "<var>" if isinstance(value, VariableRef) or (isinstance(value, dict) and "var" in value) else None


def _kind_of_value(value: object) -> str | None:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


def _kind_of_criterion(value: object) -> str | None:
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, dict | DeadlineBody) else None


def _kind_of_fallback(value: object) -> str | None:
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, dict) else None


TAGS = frozenset({"<text>", "<list>", "<var>", "<object>"})

T = TypeVar("T")
Optional = Annotated[T | None, BeforeValidator(_not_null)]  # may be left out; null is refused
Characters = Annotated[str, AfterValidator(_whole_characters)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
Hole = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
Label = Annotated[
    str, Field(min_length=1, max_length=128), AfterValidator(_whole_characters), AfterValidator(_printable)
]
Path = Annotated[str, Field(max_length=512, pattern=r"^[^.]+(\.[^.]+)*$")]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Weight = Annotated[float, Field(ge=1e-6, le=1e6)]
Count = Annotated[int, Field(ge=1, le=2**53)]
StopString = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_whole_characters)]
Choice = Annotated[str, Field(min_length=1), AfterValidator(_whole_characters)]
Value = Annotated[
    Annotated[Characters, Tag("<text>")] | Annotated[list[Characters], Tag("<list>")],
    Discriminator(
        _kind_of_value,
        custom_error_type="bad_value",
        custom_error_message="a value is a string, or a list of strings; anything else is sent as its JSON text",
    ),
]


class Closed(BaseModel):
    """A body without room for anything unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class OutputBody(Closed):
    """How one output is generated."""

    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] = 256
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stop: Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=16)] = []
    keep_stop: bool = False
    seed: Optional[Annotated[int, Field(ge=-(2**63), lt=2**63)]] = None
    ignore_eos: bool = False
    json_schema: Optional[Annotated[dict[str, Any], AfterValidator(_sound_schema)]] = Field(
        default=None, alias="schema"
    )
    choices: Optional[Annotated[list[Choice], Field(min_length=1, max_length=1024)]] = None
    allow_empty: bool = True

    @model_validator(mode="after")
    def _one_constraint(self) -> OutputBody:
        if self.json_schema is not None and self.choices is not None:
            raise ValueError("an output has a schema or choices, not both")
        return self


class InputBody(Closed):
    """How an input hole takes a list: its elements with `join` between them."""

    join: Characters = DEFAULT_JOIN


class FunctionBody(Closed):
    """A semantic function."""

    template: Characters
    outputs: dict[Hole, OutputBody]
    inputs: dict[Hole, InputBody] = {}
    format: Format = "chat"

    def parse(self) -> Template:
        """The template's segments. Raises TemplateError."""
        return parse(self.template, self.outputs, self.inputs, self.format)

    @property
    def id(self) -> str:
        """The function's identity, by content."""
        outputs = {hole: output.model_dump(by_alias=True) for hole, output in self.outputs.items()}
        return function_id(self.template, outputs, {hole: i.join for hole, i in self.inputs.items()}, self.format)


class NamedFunctionBody(FunctionBody):
    """`POST /v1/functions`."""

    name: Label


class VariableRef(Closed):
    """A binding to a variable of the same program."""

    var: Name


_BINDING_ERROR = (
    'a binding is a string, {"var": "name"}, or a list of those; anything else is sent as its JSON text, in a string'
)
OneBinding = Annotated[
    Annotated[Characters, Tag("<text>")] | Annotated[VariableRef, Tag("<var>")],
    Discriminator(_kind_of_binding, custom_error_type="bad_value", custom_error_message=_BINDING_ERROR),
]
Binding = Annotated[
    Annotated[Characters, Tag("<text>")]
    | Annotated[VariableRef, Tag("<var>")]
    | Annotated[list[OneBinding], Tag("<list>")],
    Discriminator(_kind_of_binding, custom_error_type="bad_value", custom_error_message=_BINDING_ERROR),
]


class RetryBody(Closed):
    """How often a call is tried in all."""

    attempts: Annotated[int, Field(ge=1, le=10)]


class TransformBody(Closed):
    """A pure operation on one value: a dotted path into its JSON, or its JSON list taken apart."""

    field: Optional[Path] = None
    items: Optional[Literal[True]] = None

    @model_validator(mode="after")
    def _one_kind(self) -> TransformBody:
        if (self.field is None) == (self.items is None):
            raise ValueError('a transform is {"field": "a.b"} or {"items": true}')
        return self


Fallback = Annotated[
    Annotated[Characters, Tag("<text>")] | Annotated[dict[Hole, Characters], Tag("<object>")],
    Discriminator(
        _kind_of_fallback,
        custom_error_type="bad_value",
        custom_error_message='a fallback is a string, or {"hole": "string"} for a call with several outputs',
    ),
]


class CallBody(Closed):
    """One use of a function, a tool or a transform."""

    id: Name
    function: Optional[Label] = None
    tool: Optional[Label] = None
    transform: Optional[TransformBody] = None
    inputs: dict[Hole, Binding] = {}
    outputs: dict[Hole, Name] = {}
    sampling: dict[Hole, OutputBody] = {}
    model: Optional[Label] = None
    after: list[Name] = []
    each: Optional[Hole] = None
    race: Optional[Label] = None
    retry: Optional[RetryBody] = None
    fallback: Optional[Fallback] = None
    timeout_s: Optional[Seconds] = None
    expect_return_s: Optional[Annotated[float, Field(ge=0, le=1e9)]] = None

    @model_validator(mode="after")
    def _one_op(self) -> CallBody:
        said = (self.function is not None) + (self.tool is not None) + (self.transform is not None)
        if said != 1:
            raise ValueError(f"call {self.id!r} needs exactly one of function, tool and transform")
        return self


class DeadlineBody(Closed):
    """A criterion: seconds from the submission of the program."""

    deadline_s: Seconds


Criterion = Annotated[
    Annotated[Literal["latency", "throughput"], Tag("<text>")] | Annotated[DeadlineBody, Tag("<object>")],
    Discriminator(
        _kind_of_criterion,
        custom_error_type="bad_value",
        custom_error_message='a criterion is "latency", "throughput" or {"deadline_s": seconds}',
    ),
]


class BudgetBody(Closed):
    """What a program may use in all; what is left out is not bounded."""

    total_tokens: Optional[Count] = None
    calls: Optional[Count] = None
    wall_s: Optional[Seconds] = None


class _Graph(Closed):
    functions: dict[Label, FunctionBody] = {}
    variables: dict[Name, Value | None] = {}  # null declares an open variable
    calls: list[CallBody] = []
    criteria: dict[Name, Criterion] = {}


class ProgramBody(_Graph):
    """`POST /v1/programs`. Without `close`, a program that has calls is closed and an empty one is left open."""

    name: Optional[Label] = None
    priority: Weight = 1.0
    deadline_s: Optional[Seconds] = None
    budget: BudgetBody = BudgetBody()
    failure: Literal["isolate", "fail_fast"] = "isolate"
    close: Optional[bool] = None

    @property
    def closed(self) -> bool:
        """Whether no more calls will come."""
        return bool(self.calls) if self.close is None else self.close


class CallsBody(_Graph):
    """`POST /v1/programs/{id}/calls`."""

    close: bool = False


class PatchBody(Closed):
    """`PATCH /v1/programs/{id}`. What is left out stays as it is."""

    criteria: dict[Name, Criterion] = {}
    priority: Optional[Weight] = None
    deadline_s: Optional[Seconds] = None
    budget: Optional[BudgetBody] = None


class VariableBody(Closed):
    """`PUT /v1/programs/{id}/variables/{name}`."""

    value: Value
