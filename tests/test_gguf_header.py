import gguf
import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.gguf_header import read_header


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int16("i16", -5)
    writer.add_uint64("u64", 2**40)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("yes", True)
    writer.add_string("text", "価格 📈")
    writer.add_array("ids", [3, -1, 7])
    writer.add_array("words", ["Ġa", "", "b c"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_kind_of_value(small_file):
    metadata, tensors = read_header(small_file)
    assert tensors == {}
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i16": -5,
        "u64": 2**40,
        "f32": 0.5,
        "f64": 1e-300,
        "yes": True,
        "text": "価格 📈",
        "ids": [3, -1, 7],
        "words": ["Ġa", "", "b c"],
    }
    assert metadata["yes"] is True


def test_a_file_cut_anywhere_is_refused_by_name(small_file):
    whole = small_file.read_bytes()
    for length in range(len(whole)):
        small_file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"small\.gguf"):
            read_header(small_file)


def test_what_is_no_gguf_file_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    with pytest.raises(UserError, match="no such file"):
        read_header(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UserError, match="not a GGUF file"):
        read_header(path)
    path.write_bytes(b"GGUF\x01\x00\x00\x00" + bytes(100))
    with pytest.raises(UserError, match="version 1"):
        read_header(path)


@pytest.mark.parametrize(("add", "alignment"), [("add_uint32", 0), ("add_string", "x")])
def test_an_impossible_alignment_is_refused(tmp_path, add, alignment):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    getattr(writer, add)("general.alignment", alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match=rf"m\.gguf: .*general\.alignment is {alignment!r}"):
        read_header(tmp_path / "m.gguf")


def test_an_unknown_value_type_is_refused(small_file):
    data = small_file.read_bytes()
    at = data.index(b"u8") + 2
    small_file.write_bytes(data[:at] + b"\x63" + data[at + 1 :])
    with pytest.raises(UserError, match="unknown value type 99"):
        read_header(small_file)
