"""What a type checker must infer. Checked by `test_types.py`, never run.

The bodies of semantic functions are empty: pyright takes that where they end in `...`, mypy where it is told to.
"""
# mypy: disable-error-code="empty-body"
# ruff: noqa: PIE790

from __future__ import annotations

from typing import Annotated, assert_type

from parrot_sdk import Client, Function, In, Out, Program, Variable, function


@function(max_tokens=250, temperature=0)
def summarize(chapter: In[str]) -> str:
    """Sum up {{ chapter }}"""
    ...


@function
def combine(summaries: In[list[str]], step: int = 0) -> str:
    """Combine {{ summaries }} {{ step }}"""
    ...


@function(template="templates/headline.md", model="small", attempts=3)
def headline(
    text: In[str], style: str
) -> tuple[Annotated[str, Out("title", max_tokens=9)], Annotated[str, Out("slug")]]: ...


def build(chapters: list[str]) -> None:
    assert_type(summarize("text"), Variable[str])
    assert_type(summarize(chapter=summarize("text")), Variable[str])
    assert_type(summarize.map(chapters), list[Variable[str]])
    assert_type(summarize.map([summarize("a"), "b"]), list[Variable[str]])
    assert_type(combine(summarize.map(chapters), step=3), Variable[str])
    assert_type(combine(["a", summarize("b")]), Variable[str])
    assert_type(headline("a", style="b"), tuple[Variable[str], Variable[str]])
    assert_type(headline.map(chapters, style="b"), list[tuple[Variable[str], Variable[str]]])
    assert_type(summarize.using(temperature=0.5)("a"), Variable[str])
    assert_type(summarize.map(summarize("a").items()), Variable[list[str]])
    assert_type(summarize("a").field("a.b"), Variable[str])
    assert_type(summarize("a").get(timeout_s=3), str)
    kept: Variable[object] = summarize("a")
    takes: Function[..., str] = summarize
    print(kept, takes)


def sync_use() -> None:
    with Client("http://127.0.0.1:8000") as client, Program("book", client=client) as program:
        for text in summarize("a").stream():
            assert_type(text, str)
        assert_type(program, Program)


async def async_use() -> None:
    async with Client() as client, client.program("book") as program:
        assert_type(await summarize("a"), str)
        async for text in summarize("a").stream():
            assert_type(text, str)
        assert_type(program, Program)


def mistakes() -> None:
    summarize(3)  # type: ignore[arg-type]
    summarize()  # type: ignore[call-arg]
    summarize("a", "b")  # type: ignore[call-arg]
    combine("a", step="b")  # type: ignore[arg-type]
    headline("a")  # type: ignore[call-overload]
    headline.map(["a"])  # type: ignore[call-overload]
    summarize.using(temprature=1)  # type: ignore[call-arg]
    function(max_token=3)  # type: ignore[call-overload]
    summarize("a").get().field("x")  # type: ignore[attr-defined]
