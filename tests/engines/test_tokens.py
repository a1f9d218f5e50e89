"""Prompts to token ids and back: control tokens stay ours, prefixes stay prefixes, characters stay whole."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel

from parrot_server.core.model import Piece, PieceKind, Prompt
from parrot_server.engines.chat_format import ChatFormat
from parrot_server.engines.tokens import Detokenizer, PromptTokenizer
from parrot_server.errors import EngineError, Fault, SetupError

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>' + messages[0]['content'] + '<</SYS>>' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') }}"
    "{{ message['content'] | trim + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
TEXT = "The quick brown fox jumps over the lazy dog. user system assistant\n\n Be kind, say 123 words. " * 4
GPT2_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
LLAMA3_WORDS = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(
            Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)


def trained(words: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A real byte-level BPE, small enough to train at each run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


GPT2, LLAMA3 = trained(GPT2_WORDS), trained(LLAMA3_WORDS)
CHAT = PromptTokenizer(GPT2.to_str(), ChatFormat(CHATML), ["<|im_end|>"])
IDS = {token: GPT2.token_to_id(token) for token in [*CONTROL, "<tool_call>"]}


def prompt_of(*pieces: tuple[str, str], chat: bool = True) -> Prompt:
    made = tuple(Piece(PieceKind(kind), text) for kind, text in pieces)
    return Prompt(made, tuple(f"prefix-{i}" for i in range(len(made))), chat)


def read(ids: list[int]) -> str:
    """What the ids say, control tokens by name."""
    return GPT2.decode(ids, skip_special_tokens=False)


def test_a_chat_reads_as_its_template_writes_it() -> None:
    prompt = prompt_of(("role", "user"), ("constant", "Say "), ("value", "hi"), ("role", "assistant"))
    ids, covered = CHAT.encode(prompt)
    assert read(ids) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert covered[-1] == len(ids)
    assert ids[0] == IDS["<|im_start|>"]


def test_a_system_text_replaces_the_default_one_and_an_answer_can_be_continued() -> None:
    turns = [("role", "system"), ("constant", "S"), ("role", "user"), ("constant", "U"), ("role", "assistant")]
    ids, _ = CHAT.encode(prompt_of(*turns, ("value", "so far"), ("constant", " and")))
    assert read(ids) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nso far and"
    )


def test_a_template_that_merges_the_system_text_into_the_users_turn() -> None:
    format_ = ChatFormat(LLAMA2, bos_token="<s>", eos_token="</s>")
    assert format_.openings(["system", "user", "assistant", "user", "assistant"]) == (
        "<s>[INST] <<SYS>>",
        "<</SYS>>",
        " [/INST]",
        "</s><s>[INST] ",
        " [/INST]",
    )


def test_turns_that_a_template_does_not_take_are_the_calls_fault() -> None:
    with pytest.raises(EngineError, match="user, user") as caught:
        ChatFormat(LLAMA2, bos_token="<s>", eos_token="</s>").openings(["user", "user"])
    assert caught.value.fault is Fault.CALL


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ messages[0]['content'] }}"
    with pytest.raises(EngineError):
        ChatFormat(escape).openings(["user"])


@given(st.text(max_size=40), st.sampled_from([*CONTROL, "<tool_call>"]), st.text(max_size=40), st.booleans())
def test_no_value_becomes_a_control_token(before: str, token: str, after: str, chat: bool) -> None:
    text = before + token + after
    turns = [("role", "user"), ("value", text), ("role", "assistant")] if chat else [("value", text)]
    ids, covered = CHAT.encode(prompt_of(*turns, chat=chat))
    of_value = ids[covered[0] : covered[1]] if chat else ids
    assert not set(of_value) & set(IDS.values())
    assert "".join(map(GPT2.decode, [of_value])).rstrip() == text.rstrip()


def test_pieces_side_by_side_never_make_a_control_token() -> None:
    ids, _ = CHAT.encode(
        prompt_of(("constant", "<|im_"), ("value", "end|>"), ("constant", "<|im_e"), ("value", "nd|>"))
    )
    assert not set(ids) & set(IDS.values())


def test_constant_text_may_hold_control_tokens() -> None:
    ids, _ = CHAT.encode(prompt_of(("constant", "a<|im_end|>b"), chat=False))
    assert IDS["<|im_end|>"] in ids


pieces = st.lists(
    st.tuples(
        st.sampled_from(["constant", "value"]), st.sampled_from(["", " ", "fox", "\n\n", "dog ", " 1", "é\t", "."])
    ),
    min_size=1,
    max_size=8,
)


@given(pieces, pieces, pieces, st.sampled_from([GPT2, LLAMA3]))
def test_a_prefix_covers_the_same_ids_in_every_prompt_that_begins_with_it(
    head: list[tuple[str, str]], one: list[tuple[str, str]], other: list[tuple[str, str]], tokenizer: Tokenizer
) -> None:
    chat = PromptTokenizer(tokenizer.to_str(), ChatFormat(CHATML))
    start = [("role", "user"), *head]
    first = chat.encode(prompt_of(*start, *one))
    second = chat.encode(prompt_of(*start, *other, ("role", "assistant")))
    alone = chat.encode(prompt_of(*start))
    for i in range(len(start)):
        assert first.covered[i] == second.covered[i] == alone.covered[i]
    length = alone.covered[-1]
    assert first.ids[:length] == second.ids[:length] == alone.ids[:length]
    assert all(a <= b for a, b in pairwise(first.covered))


@given(pieces, st.sampled_from([GPT2, LLAMA3]))
def test_no_character_is_lost_between_pieces(parts: list[tuple[str, str]], tokenizer: Tokenizer) -> None:
    ids, _ = PromptTokenizer(tokenizer.to_str(), None).encode(prompt_of(*parts, chat=False))
    assert tokenizer.decode(ids) == "".join(text for _, text in parts)


@pytest.mark.parametrize("tokenizer", [GPT2, LLAMA3])
@pytest.mark.parametrize(
    "end", ["fox ", "fox\n", "fox\n\n", "fox  ", "dog.\n\n", "fox \n", "fox\n ", "fox\t", "fox" + " " * 30]
)
def test_piecewise_agrees_with_joint_tokenisation_where_a_piece_ends_in_a_blank(tokenizer: Tokenizer, end: str) -> None:
    prompt = prompt_of(("constant", "The quick " + end), ("value", "jumps over"), chat=False)
    ids, _ = PromptTokenizer(tokenizer.to_str(), None).encode(prompt)
    assert ids == tokenizer.encode("The quick " + end + "jumps over").ids


def test_a_model_without_a_chat_template_refuses_a_chat() -> None:
    with pytest.raises(EngineError, match="format: text") as caught:
        PromptTokenizer(GPT2.to_str(), None).encode(prompt_of(("role", "user"), ("value", "hi")))
    assert caught.value.fault is Fault.CALL


def test_a_model_that_begins_text_with_a_control_token_gets_it() -> None:
    described = json.loads(GPT2.to_str())
    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [IDS["<s>"]], "tokens": ["<s>"]}},
    }
    tokenizer = PromptTokenizer(json.dumps(described), ChatFormat(CHATML))
    assert tokenizer.encode(prompt_of(("value", "fox"), chat=False)).ids[0] == IDS["<s>"]
    assert IDS["<s>"] not in tokenizer.encode(prompt_of(("role", "user"), ("value", "fox"))).ids


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SetupError, match=r"tokenizer\.json"):
        PromptTokenizer.from_folder(tmp_path)


def test_a_folder_as_hugging_face_lays_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "tokenizer.json").write_text(GPT2.to_str())
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "x"}]
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [IDS["</s>"]]}))
    tokenizer = PromptTokenizer.from_folder(tmp_path)
    assert {IDS["<|im_end|>"], IDS["</s>"]} <= tokenizer.end_ids
    assert tokenizer.encode(prompt_of(("role", "user"), ("value", "hi"))).ids[0] == IDS["<|im_start|>"]


@given(st.text(alphabet="fox é日本😀\n", max_size=40))
def test_text_survives_token_by_token_with_no_broken_character(text: str) -> None:
    detokenizer = Detokenizer(CHAT.token_bytes)
    pieces = [detokenizer.feed(token) for token in CHAT.encode_text(text)]
    assert "".join(pieces) + detokenizer.flush() == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_that_never_becomes_whole_is_marked_and_holds_up_nothing() -> None:
    detokenizer = Detokenizer([b"\xf0\x9f", b"a", b""])
    assert detokenizer.feed(0) == ""
    assert detokenizer.feed(1) == "\ufffda"
    assert detokenizer.feed(0) + detokenizer.feed(2) == ""
    assert detokenizer.flush() == "\ufffd"
