"""Semantic functions written as Python functions: the docstring, or a file, is the prompt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from parrot_sdk.arguments import bind, show
from parrot_sdk.declaration import FunctionOptions, call_options, declare, sampling_overrides
from parrot_sdk.errors import FunctionError
from parrot_sdk.program import Program, current_program
from parrot_sdk.template import Format, Input, Output, Role, Template, Text
from parrot_sdk.variable import Variable

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
X = TypeVar("X")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Function(Generic[P, R]):
    """A semantic function. Calling it inside a program adds a call and returns its variable, or a tuple of them.

    Made by the decorator `function`.
    """

    def __init__(
        self,
        python: Callable[P, R],
        template: str | Path | None,
        format: Format | None,
        joins: Mapping[str, str],
        options: FunctionOptions,
    ) -> None:
        self.__doc__, self.__name__, self.__module__ = python.__doc__, python.__name__, python.__module__
        self.__wrapped__ = python
        self._signature = inspect.signature(python)
        self.declaration = declare(python, template, format, joins, options)
        self._json = self.declaration.body.model_dump(by_alias=True, exclude_none=True)
        self._id = self.declaration.body.id
        self._call_options = call_options(self.name, options)
        self._after = tuple(options.get("after", ()))

    @property
    def name(self) -> str:
        """What it is called in errors and in the names of its calls."""
        return self.declaration.name

    @property
    def template(self) -> Template:
        """Its template, parsed."""
        return self.declaration.template

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Function[P, tuple[A, B]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Variable[A], Variable[B]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Function[P, tuple[A, B, C]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Variable[A], Variable[B], Variable[C]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self: Function[P, tuple[A, B, C, D]], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Variable[A], Variable[B], Variable[C], Variable[D]]: ...
    @overload
    def __call__(self: Function[P, T], *args: P.args, **kwargs: P.kwargs) -> Variable[T]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a call to the program in whose block this is. Raises ProgramError, FunctionError."""
        return self._add(current_program(), args, kwargs)

    @overload
    def map(  # type: ignore[overload-overlap]
        self: Function[Concatenate[X, Q], tuple[A, B]], items: Iterable[X], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> list[tuple[Variable[A], Variable[B]]]: ...
    @overload
    def map(  # type: ignore[overload-overlap]
        self: Function[Concatenate[X, Q], tuple[A, B, C]], items: Iterable[X], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> list[tuple[Variable[A], Variable[B], Variable[C]]]: ...
    @overload
    def map(  # type: ignore[overload-overlap]
        self: Function[Concatenate[X, Q], tuple[A, B, C, D]], items: Iterable[X], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> list[tuple[Variable[A], Variable[B], Variable[C], Variable[D]]]: ...
    @overload
    def map(
        self: Function[Concatenate[X, Q], T], items: Variable[list[Any]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Variable[list[T]]: ...
    @overload
    def map(
        self: Function[Concatenate[X, Q], T], items: Iterable[X], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> list[Variable[T]]: ...
    def map(self, items: Any, /, *args: Any, **kwargs: Any) -> Any:
        """One call for each item, which goes to the first parameter; the other arguments are the same for all.

        Of a list variable (one without a value yet) the server makes the calls, and the outcome is a list variable. A list for
        another parameter that takes one text is refused: it looks like pairs, which a loop over `zip` makes.
        """
        program = current_program()
        self._check_no_pairs(args, kwargs)
        if isinstance(items, Variable):
            return self._add(program, (items, *args), kwargs, each=next(iter(self._signature.parameters), ""))
        if isinstance(items, str):
            raise FunctionError(f"{self.name}.map() got one string: give a list of items")
        return [self._add(program, (item, *args), kwargs) for item in items]

    def using(self, **options: Unpack[FunctionOptions]) -> Function[P, R]:
        """The same function, called with other options: `summarize.using(temperature=0.7, attempts=3)(chapter)`."""
        copy = object.__new__(type(self))
        copy.__dict__ |= self.__dict__
        copy._after = tuple(options.get("after", self._after))
        copy._call_options = self._call_options | call_options(self.name, options)
        copy._call_options |= sampling_overrides(self.declaration, self._call_options, options)
        return copy

    def rendered(self, *args: Any, **kwargs: Any) -> str:
        """The prompt as text, with these arguments in its holes, for looking at. What is left out shows as its hole."""
        given = self._signature.bind_partial(*args, **kwargs).arguments
        text = ""
        for segment in self.template.segments:
            match segment:
                case Text():
                    text += segment.text
                case Role():
                    text += f"{chr(10) if text else ''}[{segment.role}]\n"
                case Input() if segment.name in given:
                    text += show(self.declaration, segment.name, given[segment.name])
                case Input() | Output():
                    text += f"{{{{{segment.name}}}}}"
        return text

    def __repr__(self) -> str:
        return f"<Function {self.name}>"

    def _add(self, program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], each: str = "") -> Any:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            if unknown := [name for name in kwargs if name not in self._signature.parameters]:
                raise FunctionError(self._no_parameter(unknown[0], kwargs[unknown[0]])) from None
            raise FunctionError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        inputs = {hole: bind(self.declaration, program, hole, value) for hole, value in bound.arguments.items()}
        options = self._call_options | ({"each": each} if each else {})
        if self._after:
            options = options | {"after": [v.call for v in self._after if program.reference(v)]}
        holes = self.declaration.outputs
        call, names = program.call(self.name, self._id, self._json, inputs, holes, options)
        variables = tuple(Variable(program, names[hole], call, list if each else str) for hole in holes)
        return variables if self.declaration.several else variables[0]

    def _no_parameter(self, name: str, value: object) -> str:
        if name in FunctionOptions.__annotations__:
            return f"{self.name}() has no parameter {name!r}, which is an option: say {self.name}.using({name}={value!r})(...)"
        return f"{self.name}() has no parameter {name!r}; there are {', '.join(self._signature.parameters)}"

    def _check_no_pairs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse lists for parameters that take one text."""
        others = list(self._signature.parameters)[1:]
        for name, value in [*zip(others, args, strict=False), *kwargs.items()]:
            if isinstance(value, list | tuple) and name in self.declaration.texts:
                raise FunctionError(
                    f"{self.name}.map() got a list for {name!r}, which is the same for all items: for pairs write "
                    f"[{self.name}(x, y) for x, y in zip(xs, ys)]; for the whole list in each call declare {name}: In[list[str]]"
                )


@overload
def function(python: Callable[P, R], /) -> Function[P, R]: ...
@overload
def function(
    *,
    template: str | Path | None = None,
    format: Format | None = None,
    joins: Mapping[str, str] | None = None,
    **options: Unpack[FunctionOptions],
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(
    python: Callable[P, R] | None = None,
    /,
    *,
    template: str | Path | None = None,
    format: Format | None = None,
    joins: Mapping[str, str] | None = None,
    **options: Unpack[FunctionOptions],
) -> Function[P, R] | Callable[[Callable[P, R]], Function[P, R]]:
    """Make a Python function a semantic one: its docstring is the prompt, its parameters are the input holes.

        @function(max_tokens=250, temperature=0)
        def summarize(chapter: In[str]) -> str:
            '''Summarise the chapter below in three sentences.

            {{ chapter }}'''

    The docstring goes through `inspect.cleandoc`, and nothing else: `summarize.rendered()` shows what is left. Where it
    does not say `{{ output }}` itself, the output comes at its end. The body is never run. Type checkers may want it to
    return something: end it with `...` for pyright, set `disable_error_code = ["empty-body"]` for mypy.

    Args:
        template: a file that holds the prompt instead, relative to the working directory, or else to the file of the function.
        format: `text` for a prompt without turns of a chat.
        joins: per parameter, what stands between the elements of a list; two line breaks unless said.
        options: how outputs are generated (`max_tokens`, `temperature`, `top_p`, `stop`, `keep_stop`, `seed`, `ignore_eos`,
            `choices`, `allow_empty`) and calls are run (`model`, `attempts`, `fallback`, `timeout_s`, `after`).

    Raises TemplateError, FunctionError.
    """

    def decorate(python: Callable[P, R]) -> Function[P, R]:
        return Function(python, template, format, joins or {}, options)

    return decorate if python is None else decorate(python)
