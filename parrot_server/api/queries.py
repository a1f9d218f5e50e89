"""What the query of a request may say; anything else is refused."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

ProgramId = Annotated[str, Path(max_length=64)]
VariableName = Annotated[str, Path(max_length=160)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class StreamQuery(_Closed):
    """A reader of a stream. With `cancel_on_disconnect` the program ends when the reader leaves."""

    cancel_on_disconnect: bool = False


class WaitQuery(StreamQuery):
    """A reader of values, who waits so many seconds for them."""

    wait: Annotated[float, Field(ge=0)] = 0.0


class PageQuery(_Closed):
    """A page of a list, newest first; `cursor` is the `next` of the page before."""

    cursor: Annotated[int, Field(ge=1)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class RegisterQuery(_Closed):
    """With `dry_run` a function is only parsed, and its segments are shown."""

    dry_run: bool = False


Waiting = Annotated[WaitQuery, Query()]
Streaming = Annotated[StreamQuery, Query()]
Paging = Annotated[PageQuery, Query()]
Registering = Annotated[RegisterQuery, Query()]
