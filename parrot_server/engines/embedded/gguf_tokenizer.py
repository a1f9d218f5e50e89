"""The tokenizer inside a GGUF file, written out as the Hugging Face files that `PromptTokenizer.from_folder` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import ReaderField, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from parrot_server.errors import SetupError

# How each family cuts text into words before BPE. Source: llama.cpp, src/llama-vocab.cpp, by `tokenizer.ggml.pre`.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = {"llama-bpe": _LLAMA3_WORDS, "qwen2": _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")}
_GPT2_LIKE = {"gpt-2": False, "smollm": True, "default": False}  # whether each digit stands alone
_BEGINS_WITH_BOS = {"llama-bpe"}  # where the file does not say


def write_tokenizer_files(fields: Mapping[str, ReaderField], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, generation_config.json and config.json into `folder`.

    Raises:
        SetupError: the file's tokenizer is of a kind that we cannot reproduce exactly.
    """
    read = {key: field.contents() for key, field in fields.items() if key.startswith(("tokenizer.", "general."))}
    tokens: list[str] = read["tokenizer.ggml.tokens"]
    tokenizer = _byte_level_bpe(read, tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {key: tokens[read[f"tokenizer.ggml.{key}_id"]] for key in ("bos_token", "eos_token") if _has(read, key)}
    _write(folder / "tokenizer_config.json", {**named, "chat_template": read.get("tokenizer.chat_template")})
    ends = [read[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in read]
    _write(folder / "generation_config.json", {"eos_token_id": ends})
    context = fields[f"{read['general.architecture']}.context_length"].contents()
    _write(folder / "config.json", {"max_position_embeddings": int(context)})


def _byte_level_bpe(read: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    kind, words = read["tokenizer.ggml.model"], read.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or words not in {**_WORDS, **_GPT2_LIKE}:
        raise SetupError(
            f"the tokenizer of this GGUF file ({kind}, {words}) is not one that can be reproduced exactly here: "
            "give an OpenVINO model folder that holds the model's tokenizer.json instead"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in read["tokenizer.ggml.merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=words == "llama-bpe"))
    if words in _WORDS:
        cut = pre_tokenizers.Split(Regex(_WORDS[words]), "isolated")
        tail = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, tail])
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if _GPT2_LIKE[words] else []
        tail = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, tail])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = read["tokenizer.ggml.token_type"]
    special = [AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == TokenType.CONTROL]
    named = [AddedToken(t, special=False) for t, k in zip(tokens, kinds, strict=True) if k == TokenType.USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(named)
    if read.get("tokenizer.ggml.add_bos_token", words in _BEGINS_WITH_BOS) and _has(read, "bos_token"):
        bos = read["tokenizer.ggml.bos_token_id"]
        tokenizer.post_processor = processors.TemplateProcessing("bos $A", special_tokens=[("bos", bos)])
    return tokenizer


def _has(read: Mapping[str, Any], token: str) -> bool:
    return f"tokenizer.ggml.{token}_id" in read


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), "utf-8")
