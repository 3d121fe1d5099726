import json

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.errors import UserError

TEXTS = [
    "In 2024 it's 3.14, isn't it?  Two  spaces\n\n\tand a tab \n ",
    '{"query": "x != y ."}',
    "価格 📈 naïve ΑΒΓ العربية",
    "don'T WE'LL i'm  100000 $5 (a)(b) ...!!!\r\n\r\nx",
    "<tool_call>\n{}\n</tool_call><|im_end|>\n<think></think><|fim_prefix|>",
]


def write_gguf(path, tokens, merges, kinds, pre="smollm", model="gpt2", end=0, leave_out=()):
    writer = gguf.GGUFWriter(path, "llama")
    entries = {"model": model, "pre": pre, "tokens": tokens, "merges": merges, "token_type": kinds}
    for key, value in entries.items():
        if key not in leave_out:
            add = writer.add_string if isinstance(value, str) else writer.add_array
            add(f"tokenizer.ggml.{key}", value)
    writer.add_uint32("tokenizer.ggml.eos_token_id", end)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_smollm2_ids_are_the_published_ones(smollm2_tokenizer):
    ids = smollm2_tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=False
    )
    system = [9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
    assert ids == [1, *system, 2, 198, 1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198]


def test_smollm2_isolates_digits_before_anything_else(smollm2_tokenizer):
    # The GPT-2 split alone would cut the spaces before a number into "Ġ", "Ġ".
    assert smollm2_tokenizer.tokenize("in  2024") == ["in", "ĠĠ", "2", "0", "2", "4"]
    assert smollm2_tokenizer.tokenize("a\n\n3.5") == ["a", "ĊĊ", "3", ".", "5"]


def test_smollm2_begin_end_and_padding(smollm2_tokenizer):
    assert smollm2_tokenizer.bos_token == "<|im_start|>"
    assert smollm2_tokenizer.eos_token == smollm2_tokenizer.pad_token == "<|im_end|>"
    assert len(smollm2_tokenizer) == 49152


@pytest.mark.parametrize("name", ["smollm2_tokenizer", "qwen3_tokenizer"])
@pytest.mark.parametrize("text", TEXTS)
def test_decoding_changes_nothing(request, name, text):
    tokenizer = request.getfixturevalue(name)
    assert tokenizer.decode(tokenizer.encode(text)) == text


# SmolLM2's vocabulary lacks two lead bytes of unassigned planes (U+40000 to U+BFFFF) and six control characters.
@given(st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d")))
def test_smollm2_round_trip(smollm2_tokenizer, text):
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def qwen3_from_gguf(qwen3_folder, tmp_path_factory):
    """Qwen3's tokenizer in a GGUF as converters write it: added tokens in the list, padding rows at its end."""
    content = json.loads((qwen3_folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    kinds = [1] * len(tokens)
    for added in content["added_tokens"]:
        tokens.append(added["content"])
        kinds.append(3 if added["special"] else 4)
    for number in range(len(tokens), 151936):
        tokens.append(f"[PAD{number}]")
        kinds.append(5)
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    path = tmp_path_factory.mktemp("qwen3") / "qwen3.gguf"
    return load_tokenizer(write_gguf(path, tokens, merges, kinds, pre="qwen2", end=151645))


@pytest.mark.parametrize("text", [*TEXTS, "e\u0301 is composed", "[PAD151700]"])
def test_a_qwen2_gguf_gives_the_ids_of_the_folder(qwen3_from_gguf, qwen3_tokenizer, text):
    assert qwen3_from_gguf.encode(text) == qwen3_tokenizer.encode(text)
    plain = qwen3_tokenizer.encode(text, split_special_tokens=True)
    assert qwen3_from_gguf.encode(text, split_special_tokens=True) == plain


def test_padding_rows_of_a_gguf_are_no_tokens(qwen3_from_gguf):
    assert max(qwen3_from_gguf.get_vocab().values()) == 151668


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "llama-bpe"}, '"llama-bpe", but only "smollm" and "qwen2"'),
        ({"model": "llama"}, '"llama", but only "gpt2"'),
        ({"leave_out": ("merges",)}, "no tokenizer.ggml.merges"),
        ({"merges": ["ab"]}, "not two tokens: 'ab'"),
        ({"merges": ["a z"]}, "do not fit together"),
        ({"kinds": [3, 1]}, "4 tokens but 2"),
        ({"end": 4}, "eos_token_id is 4, but there are 4 tokens"),
    ],
)
def test_a_gguf_that_is_not_understood_is_refused(tmp_path, changes, message):
    parts = {"tokens": ["<e>", "a", "b", "ab"], "merges": ["a b"], "kinds": [3, 1, 1, 1]} | changes
    path = write_gguf(tmp_path / "odd.gguf", **parts)
    with pytest.raises(UserError, match=message) as error:
        load_tokenizer(path)
    assert "odd.gguf" in str(error.value)


def test_a_folder_that_asks_for_clean_up_does_not_get_it(tmp_path):
    backend = Tokenizer(models.BPE(vocab={"x": 0, " ": 1, "!": 2, "Ġ": 3}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["clean_up_tokenization_spaces"] is True
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.clean_up_tokenization_spaces is False  # some versions of transformers ignore a True, some do not
    assert tokenizer.decode(tokenizer.encode("x !")) == "x !"


def test_places_without_a_tokenizer_are_refused(tmp_path):
    with pytest.raises(UserError, match="neither a folder"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_tokenizer(tmp_path)
