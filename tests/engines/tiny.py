"""A tokenizer of bytes with ChatML's control tokens: exact prompts without a model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

from parrot_server.engines.chat_format import ChatFormat
from parrot_server.engines.tokens import PromptTokenizer

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer() -> PromptTokenizer:
    """One token a byte, and three control tokens."""
    return PromptTokenizer(_tokenizer().to_str(), ChatFormat(CHATML), ["<|im_end|>"])


def write_tokenizer(folder: Path) -> None:
    """The same, as a model's folder holds it."""
    (folder / "tokenizer.json").write_text(_tokenizer().to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML, "eos_token": "<|im_end|>"}))


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: at for at, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    return tokenizer
