"""Semantic functions that several tests call."""

from __future__ import annotations

from typing import Annotated

from parrot_sdk import In, Out, function


@function(max_tokens=250, temperature=0)
def summarize(chapter: In[str]) -> str:
    """Sum up.

    {{ chapter }}"""


@function(joins={"summaries": "\n--\n"})
def combine(summaries: In[list[str]]) -> str:
    """Combine:
    {{ summaries }}"""


@function(format="text")
def refine(draft: In[str], step: int = 0) -> str:
    """Step {{ step }} of {{ draft }}:"""


@function(max_tokens=100)
def headline(
    text: In[str],
) -> tuple[Annotated[str, Out("title", max_tokens=20, stop="\n")], Annotated[str, Out("slug")]]:
    """[user]
    Name this: {{ text }}
    [assistant]
    Title: {{ title }}
    Slug: {{ slug }}"""
