"""A model's fingerprint follows what it computes, not where it lies."""

import pytest

from specdec.model.fingerprint import BLOCK_BYTES, BLOCKS, model_fingerprint

CONFIG = {"model_type": "llama", "hidden_size": 8}
SIZE = 3 * BLOCKS * BLOCK_BYTES


def fingerprint(folder, data=b"weights", config=CONFIG, dtype="float32", variant="", name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return model_fingerprint(config, [path], dtype, variant)


def test_place_and_name_do_not_count(tmp_path):
    here = fingerprint(tmp_path / "here")
    assert fingerprint(tmp_path / "there", name="weights.safetensors") == here
    written_by_another = CONFIG | {"transformers_version": "9", "_name_or_path": "x", "dtype": "bfloat16"}
    assert fingerprint(tmp_path / "here", config=written_by_another) == here


@pytest.mark.parametrize(
    "change",
    [
        {"data": b"weighty"},
        {"data": b"weights!"},
        {"config": CONFIG | {"hidden_size": 9}},
        {"dtype": "bfloat16"},
        {"variant": "layers:2"},
    ],
)
def test_whatever_changes_the_logits_counts(tmp_path, change):
    assert fingerprint(tmp_path, **change) != fingerprint(tmp_path)


@pytest.mark.parametrize("place", [0, SIZE - 1, SIZE // 2, BLOCK_BYTES - 1])
def test_blocks_all_over_a_large_file_count(tmp_path, place):
    data = bytearray(SIZE)
    before = fingerprint(tmp_path, data=bytes(data))
    blocks = {(SIZE - BLOCK_BYTES) * block // (BLOCKS - 1) for block in range(BLOCKS)}
    nearest = max(start for start in blocks if start <= place)
    data[min(place, nearest + BLOCK_BYTES - 1)] = 1
    assert fingerprint(tmp_path, data=bytes(data)) != before
