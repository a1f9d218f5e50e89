"""A model's chat template, taken apart: the text that opens each turn, so that values go between as plain tokens.

A template is a Jinja program from the model's own files. It is rendered in a sandbox with marks in place of contents;
what stands between two marks is the scaffolding of that turn. No text of a user ever passes through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from parrot_server.errors import EngineError, Fault


class ChatFormat:
    """How a model writes the turns of a chat.

    Args:
        template: Jinja text, as in a model's `chat_template`.
        variables: what the template may read besides the messages, such as `bos_token`.

    Raises:
        ValueError: the template is no valid Jinja.
    """

    def __init__(self, template: str, **variables: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        try:
            self._template = environment.from_string(template, globals={"raise_exception": _raise, **variables})
        except TemplateError as error:
            raise ValueError(f"the model's chat template cannot be read: {error}") from None
        self._openings = lru_cache(maxsize=1024)(self._compute_openings)

    def openings(self, roles: Sequence[str]) -> tuple[str, ...]:
        """For each turn, the text from the end of the content before it to the begin of its own content.

        It closes the turn before and opens this one; the first also holds what the template puts ahead of all turns,
        such as a default system message. An opening depends on its own and earlier roles alone, so a prompt's beginning
        reads the same whatever follows. An assistant's turn opens as the template opens an answer (its generation
        prompt), in history too.

        Raises:
            EngineError: the template does not take these roles in this order; the call's fault.
        """
        return self._openings(tuple(roles))

    def _compute_openings(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self._opening(roles[: turn + 1]) for turn in range(len(roles)))

    def _opening(self, roles: tuple[str, ...]) -> str:
        last = len(roles) - 1
        if roles[last] == "assistant":
            candidates = [self._render(roles[:last], generate=True)]
            end = None
        else:
            # Some templates merge a system message into the user's turn after it and show nothing before that.
            candidates = [self._render(roles, generate=False), self._render((*roles, "user"), generate=False)]
            end = _mark(last)
        for text in candidates:
            if text is None:
                continue
            begin = text.find(_mark(last - 1)) + len(_mark(last - 1)) if last else 0
            stop = len(text) if end is None else text.find(end, begin)
            if stop >= 0 and (last == 0 or _mark(last - 1) in text):
                return text[begin:stop]
        raise EngineError(
            Fault.CALL, "chat_format", f"the model's chat template does not take the turns {', '.join(roles)}"
        )

    def _render(self, roles: tuple[str, ...], generate: bool) -> str | None:
        messages = [{"role": role, "content": _mark(turn)} for turn, role in enumerate(roles)]
        try:
            return self._template.render(messages=messages, add_generation_prompt=generate)
        except (TemplateError, TypeError, LookupError):
            return None


def _mark(turn: int) -> str:
    """A stand-in for a content: private-use characters, which no template looks for, trims or changes."""
    return f"\ue000{turn}\ue001"


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
