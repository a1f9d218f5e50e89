"""From a prompt to token ids, piece by piece, and from token ids back to text.

    files = PromptTokenizer.from_folder(folder)      # tokenizer.json, tokenizer_config.json, ...
    ids, covered = files.encode(prompt)              # covered[i]: how many ids prompt.prefixes[i] stands for

Text becomes tokens by segment and the control tokens between are put in by us, so text of a user can never become one.
The ids that a prefix covers depend on the pieces up to it alone: they are the head of every prompt that begins so.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from parrot_server.core.model import PieceKind, Prompt
from parrot_server.engines.chat_format import ChatFormat
from parrot_server.errors import EngineError, Fault, SetupError

_TAIL_BLANKS = 8  # how much of a run of blanks is looked at to find where a tokenizer would split it


class PromptTokens(NamedTuple):
    """A prompt as ids, and for each of its prefixes the number of ids at the beginning that it covers."""

    ids: list[int]
    covered: tuple[int, ...]


class PromptTokenizer:
    """Turns prompts into exact token ids for one model.

    Args:
        tokenizer_json: the text of a Hugging Face `tokenizer.json`.
        chat: how the model writes turns; None: it takes plain text only.
        end_tokens: texts of the control tokens that end an answer.
    """

    def __init__(self, tokenizer_json: str, chat: ChatFormat | None, end_tokens: Sequence[str] = ()) -> None:
        described = json.loads(tokenizer_json)
        added = described.get("added_tokens", [])
        self.control: Mapping[str, int] = {
            token["content"]: token["id"] for token in added if token["special"] or not token["content"].isspace()
        }
        self.chat = chat
        self.end_ids = frozenset(self.control[token] for token in end_tokens if token in self.control)
        self._begin = _begin_ids(tokenizer_json, set(self.control.values()))
        self._plain = Tokenizer.from_str(json.dumps(_without_control(described, set(self.control))))
        self._byte_level = "ByteLevel" in json.dumps(described.get("decoder"))
        alternatives = sorted(map(re.escape, self.control), key=len, reverse=True)
        self._control_pattern = re.compile(f"({'|'.join(alternatives)})") if alternatives else None
        self._kept_back = lru_cache(maxsize=4096)(self._find_kept_back)

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Read `tokenizer.json` and, where there, the two configurations and `chat_template.jinja` beside it.

        Raises:
            SetupError: a file is missing or cannot be read; the message names it.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SetupError(f"{folder} holds no tokenizer.json: a model folder needs its Hugging Face tokenizer")
        config = _read_json(folder / "tokenizer_config.json")
        names = {key: text for key in ("bos_token", "eos_token") if (text := _content(config.get(key)))}
        template = _chat_template(folder, config)
        try:
            chat = ChatFormat(template, **names) if template else None
            tokenizer = cls(path.read_text("utf-8"), chat, [names.get("eos_token", ""), *_KNOWN_END_TOKENS])
        except (ValueError, KeyError, OSError) as error:
            raise SetupError(f"the tokenizer files in {folder} cannot be read: {error}") from None
        ends = _read_json(folder / "generation_config.json").get("eos_token_id", [])
        tokenizer.end_ids |= frozenset([ends] if isinstance(ends, int) else ends)
        return tokenizer

    @property
    def size(self) -> int:
        """How many token ids there are, control tokens included."""
        return max(self._plain.get_vocab_size(), max(self.control.values(), default=-1) + 1)

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """The bytes that each id stands for; none for a control token."""
        control = set(self.control.values())
        to_bytes = _byte_level_bytes if self._byte_level else _sentencepiece_bytes
        return [b"" if i in control else to_bytes(self._plain.id_to_token(i) or "") for i in range(self.size)]

    def encode(self, prompt: Prompt) -> PromptTokens:
        """The exact ids of a prompt. CPU-bound, about 2 MB of text a second; it releases the GIL for most of that.

        Raises:
            EngineError: the prompt is a chat and the model has no template, or none for these turns; the call's fault.
        """
        parts: list[str | int] = [] if prompt.chat else list(self._begin)
        ends: list[int] = []
        openings = iter(self._openings(prompt))
        carried = ""
        for piece in prompt.pieces:
            if piece.kind is PieceKind.ROLE:
                parts += [carried, *self._split_control(next(openings))]
                carried = ""
            else:
                text = carried + piece.text
                # A blank at a piece's end goes with what follows, as if both were tokenised together (" word").
                blanks = min(len(text) - len(text.rstrip()), _TAIL_BLANKS)
                kept = self._kept_back(text[-blanks - 1 :]) if blanks else 0
                text, carried = text[: len(text) - kept], text[len(text) - kept :]
                parts += self._split_control(text) if piece.kind is PieceKind.CONSTANT else [text]
            ends.append(len(parts))
        return self._to_ids([*parts, carried], ends)

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text: whatever it holds, no control token is among them."""
        return self._encode([text])[0]

    def _openings(self, prompt: Prompt) -> tuple[str, ...]:
        roles = [piece.text for piece in prompt.pieces if piece.kind is PieceKind.ROLE]
        if not roles:
            return ()
        if self.chat is None:
            raise EngineError(Fault.CALL, "no_chat_template", "this model has no chat template: use `format: text`")
        return self.chat.openings(roles)

    def _split_control(self, text: str) -> list[str | int]:
        """Text in which control tokens count, as plain text and their ids by turns."""
        if self._control_pattern is None:
            return [text]
        return [self.control.get(part, part) for part in self._control_pattern.split(text) if part]

    def _to_ids(self, parts: list[str | int], ends: list[int]) -> PromptTokens:
        encoded = iter(self._encode([part for part in parts if isinstance(part, str)]))
        ids: list[int] = []
        lengths = [0]
        for part in parts:
            ids += next(encoded) if isinstance(part, str) else [part]
            lengths.append(len(ids))
        return PromptTokens(ids, tuple(lengths[end] for end in ends))

    def _encode(self, texts: list[str]) -> list[list[int]]:
        # encode_batch_fast, unlike encode, runs without the GIL.
        clean = [text.encode("utf-8", "replace").decode() if not text.isascii() else text for text in texts]
        return [encoding.ids for encoding in self._plain.encode_batch_fast(clean, add_special_tokens=False)]

    def _find_kept_back(self, tail: str) -> int:
        """How many blanks at the end of `tail` to keep for the next piece, so that both read as if tokenised together.

        It differs by tokenizer: most write a blank with the word after it, some join line breaks with what is before.
        """
        joint = self._words(tail + "x")
        for kept in range(3):
            split = len(tail) - kept
            if self._words(tail[:split]) + self._words(tail[split:] + "x") == joint:
                return kept
        return 1

    def _words(self, text: str) -> list[str]:
        """The units that are tokenised each by itself."""
        cutter = self._plain.pre_tokenizer
        return [word for word, _ in cutter.pre_tokenize_str(text)] if cutter and text else [text] * bool(text)


class Detokenizer:
    """Text from token ids, as they come: a character is given out when its last byte is there.

    Args:
        token_bytes: the bytes of each id, as `PromptTokenizer.token_bytes` has them.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes."""
        return self._decoder.decode(self._token_bytes[token])

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the last character never became whole, else nothing."""
        return self._decoder.decode(b"", final=True)


# Control tokens by which models of the Llama, Qwen, SmolLM, Gemma and Mistral families end an answer.
_KNOWN_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "</s>")


def _without_control(described: dict[str, Any], control: set[str]) -> dict[str, Any]:
    """A tokenizer that knows no control token, and treats every text as the middle of one."""
    plain = {**described, "post_processor": None, "truncation": None, "padding": None}
    plain["added_tokens"] = [token for token in described.get("added_tokens", []) if token["content"] not in control]
    for part in ("normalizer", "pre_tokenizer"):
        inner = described.get(part) or {}
        kept = [_never_prefixed(one) for one in inner.get("normalizers", inner.get("pretokenizers", [inner]))]
        kept = [one for one in kept if one and one.get("type") != "Prepend"]
        name = "normalizers" if part == "normalizer" else "pretokenizers"
        plain[part] = {"type": "Sequence", name: kept} if kept else None
    return plain


def _never_prefixed(part: dict[str, Any]) -> dict[str, Any]:
    if "prepend_scheme" in part:
        return {**part, "prepend_scheme": "never"}
    return {**part, "add_prefix_space": False} if "add_prefix_space" in part else part


def _begin_ids(tokenizer_json: str, control: set[int]) -> list[int]:
    """The control tokens that the model expects ahead of plain text."""
    begin = []
    for token in Tokenizer.from_str(tokenizer_json).encode("a").ids:
        if token not in control:
            break
        begin.append(token)
    return begin


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (ValueError, OSError) as error:
        raise SetupError(f"{path} cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}


def _content(token: Any) -> str:
    return (token.get("content", "") if isinstance(token, dict) else token) or ""


def _chat_template(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template") or ""
    if isinstance(template, list):  # several by name
        named = {one["name"]: one["template"] for one in template}
        return str(named.get("default", ""))
    return str(template)


def _byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level BPE vocabulary.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), its code, `bytes_to_unicode`.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_level_bytes(token: str) -> bytes:
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()  # an added token that is no special one is written as it is


def _sentencepiece_bytes(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()
