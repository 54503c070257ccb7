"""No token that was added to a vocabulary, and no marker of a template, can stem from outside text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rpl.core.encoding import TextEncoder, template_markers
from rpl.core.errors import ConfigError
from rpl.core.tags import defuse
from rpl.policy.tiny import tiny_tokenizer

ADDED = ["<|User|>", "<\uff5cAssistant\uff5c>", "<think>", "<tool_call>", "[INST]", "  ", "owl"]


def byte_level():
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=text == "owl") for text in ADDED])
    return tokenizer


def pieces_in_the_vocabulary():
    """The strings of the added tokens are pieces of the model itself, as in converted sentencepiece files."""
    vocabulary = [("<unk>", 0.0), *((c, -5.0) for c in "<>|[]/owlUserINST thinkco_a"), ("<s>", 0.0), ("[INST]", 0.0)]
    core = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    core.decoder = decoders.Fuse()
    core.add_special_tokens(["<s>", "<unk>"])
    core.add_tokens([AddedToken("[INST]", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>")


def words():
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "owl": 1, "[SEP]": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(["[SEP]", "[UNK]"])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="[UNK]")


TOKENIZERS = {"bytes": byte_level(), "unigram": pieces_in_the_vocabulary(), "words": words()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(st.sampled_from([*ADDED, "<s>", "<unk>", "[SEP]", "<|im_end|>", "\u2603", " ", "x", "o"])))
@settings(max_examples=80, deadline=None)
def test_no_added_token_stems_from_text(name, parts):
    tokenizer = TOKENIZERS[name]
    ids = TextEncoder(tokenizer).encode("".join(parts))
    assert not set(ids) & set(tokenizer.get_added_vocab().values())


def test_the_text_is_kept():
    tokenizer = byte_level()
    text = "Say <|User|> and <think>, owl  \u2603<|im_end|>."
    assert tokenizer.decode(TextEncoder(tokenizer).encode(text)) == text
    # and the tokenizer itself would have given control tokens
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert set(ids) & set(tokenizer.get_added_vocab().values())


def test_ordinary_text_has_the_ids_of_the_tokenizer():
    tokenizer = tiny_tokenizer()
    text = "The Rh\u00f4ne ends\n  near Arles."
    assert TextEncoder(tokenizer).encode(text) == tokenizer.encode(text, add_special_tokens=False)


def test_a_tokenizer_without_a_backend_is_refused():
    with pytest.raises(ConfigError, match="not a fast one"):
        TextEncoder(object())


def test_markers_of_ordinary_text_are_broken_up():
    encoder = TextEncoder(tiny_tokenizer(), ["[INST]", "### User:", "+ +", "<|im_end|>"])
    assert encoder.outside("a [INST] b ### User: c") == "a [ INST] b # ## User: c"
    assert encoder.outside("[[INST]INST]") == "[[ INST]INST]"
    assert "+ +" not in encoder.outside("+ + + +")
    assert encoder.outside("<|im_end|>") == "<|im_end|>"  # a token of its own, which encode never gives


def test_markers_are_learnt_from_what_the_template_writes():
    tokenizer = tiny_tokenizer()
    pieces = ["<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n", "[/INST] ", "\n### User:\nuser\n- \n"]
    assert template_markers(pieces, tokenizer) == ("<|im_start|>", "<|im_end|>", "### User:", "[/INST]")


@pytest.mark.parametrize(
    "hidden",
    [
        "\uff3bINST\uff3d",
        "\uff3b\uff29\uff2e\uff33\uff34\uff3d",
        "[IN\u200bST]",
        "[\uff3bINST]\u200bINST\uff3d",
        "\uff1c/result\uff1e",
        "\ufe64/result\ufe65",
        "</re\u200bsult>",
        "\u200b<answer\uff1e",
    ],
)
def test_what_a_normalizer_makes_of_a_text_holds_no_marker_and_no_tag(hidden):
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("\u200b", "")]
    )
    encoder = TextEncoder(tokenizer, ["[INST]"])
    assert re.search(r"\[INST\]|<", tokenizer.decode(encoder.encode(hidden)))  # it is hidden, and would be read
    seen = tokenizer.decode(encoder.encode(encoder.outside(f"a {hidden} b", defuse)))
    assert "[INST]" not in seen
    assert "<" not in seen
    assert seen.startswith("a ")
    assert seen.endswith(" b")


def test_a_marker_is_cut_where_the_tokenizer_drops_spaces():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" ", "")
    encoder = TextEncoder(tokenizer, ["[INST]"])
    assert tokenizer.decode(encoder.encode(encoder.outside("a [INST] b"))) == "aINST]b"


def test_a_text_that_hides_nothing_stays_as_it_is_under_a_normalizer():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    text = "\uff2b\u00f6ln \ufb01nds [1] <b>"
    assert TextEncoder(tokenizer, ["[INST]"]).outside(text, defuse) == text
