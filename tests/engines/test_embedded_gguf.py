"""The tokenizer of a GGUF file, written out and read back: the same ids as the tokenizer that the file was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter, TokenType

from parrot_server.engines.embedded.gguf_tokenizer import write_tokenizer_files
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import SetupError
from tests.engines.test_tokens import CHATML, CONTROL, GPT2, LLAMA3, prompt_of

TEXTS = ["The quick brown fox", "dog.\n\n Be  kind", "12345 words, lazy é 日本 🦜", "\t a\r\n b", ""]


def gguf_of(tokenizer, words: str, path: Path, kind: str = "gpt2", bos: bool = False) -> Path:  # type: ignore[no-untyped-def]
    """A GGUF file that holds nothing but a tokenizer."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = dict.fromkeys(CONTROL, TokenType.CONTROL) | {"<tool_call>": TokenType.USER_DEFINED}
    merges = tokenizer.model.__getstate__().decode()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(words)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(merges)["merges"]])
    writer.add_bos_token_id(vocabulary["<s>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_add_bos_token(bos)
    writer.add_chat_template(CHATML)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("words", "original"), [("gpt-2", GPT2), ("llama-bpe", LLAMA3)])
def test_a_tokenizer_survives_the_way(words: str, original, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_tokenizer_files(GGUFReader(gguf_of(original, words, tmp_path / "model.gguf")).fields, tmp_path)
    tokenizer = PromptTokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode_text(text) == original.encode(text, add_special_tokens=False).ids
    assert set(tokenizer.control) == {*CONTROL, "<tool_call>"}
    assert original.token_to_id("<|im_end|>") in tokenizer.end_ids
    assert not set(tokenizer.encode_text("<|im_end|><tool_call>")) & set(tokenizer.control.values())
    chat = tokenizer.encode(prompt_of(("role", "user"), ("value", "fox"), ("role", "assistant")))
    assert chat.ids[0] == original.token_to_id("<|im_start|>")


def test_digits_stand_alone_where_the_family_says_so(tmp_path: Path) -> None:
    for words, count in (("smollm", 3), ("qwen2", 3), ("llama-bpe", 1)):
        write_tokenizer_files(GGUFReader(gguf_of(LLAMA3, words, tmp_path / f"{words}.gguf")).fields, tmp_path)
        assert len(PromptTokenizer.from_folder(tmp_path)._words("123")) == count


def test_text_begins_with_a_control_token_where_the_file_says_so(tmp_path: Path) -> None:
    file = gguf_of(GPT2, "gpt-2", tmp_path / "model.gguf", bos=True)
    write_tokenizer_files(GGUFReader(file).fields, tmp_path)
    ids = PromptTokenizer.from_folder(tmp_path).encode(prompt_of(("value", "fox"), chat=False)).ids
    assert ids[0] == GPT2.token_to_id("<s>")


@pytest.mark.parametrize(("kind", "words"), [("llama", "default"), ("gpt2", "some-new-family")])
def test_a_tokenizer_that_cannot_be_reproduced_is_refused(kind: str, words: str, tmp_path: Path) -> None:
    file = gguf_of(GPT2, words, tmp_path / "model.gguf", kind)
    with pytest.raises(SetupError, match=f"{kind}, {words}"):
        write_tokenizer_files(GGUFReader(file).fields, tmp_path)
