"""Vocabularies are compared by what their ids mean."""

import pytest

from specdec.vocabulary import bytes_vocabulary, real_size, vocabulary_fingerprint

WORDS = {"a": 0, "b": 1, "<eos>": 2}


def test_padding_of_the_head_does_not_count():
    assert real_size(WORDS, 128) == 3
    assert real_size(WORDS, 2) == 2


def test_order_of_the_mapping_and_ids_past_the_size_do_not_count():
    shuffled = dict(reversed(WORDS.items())) | {"<image>": 3}
    assert vocabulary_fingerprint(shuffled, 3) == vocabulary_fingerprint(WORDS, 3)


@pytest.mark.parametrize(
    ("vocabulary", "size"),
    [
        (WORDS | {"b": 2, "<eos>": 1}, 3),
        ({"a": 0, "c": 1, "<eos>": 2}, 3),
        ({"a": 0, "<eos>": 2}, 3),
        (WORDS | {"<pad>": 3}, 4),
        (WORDS, 2),
        (WORDS, 4),
    ],
    ids=["swapped", "another text", "a hole", "one more", "fewer", "larger"],
)
def test_another_vocabulary_has_another_fingerprint(vocabulary, size):
    assert vocabulary_fingerprint(vocabulary, size) != vocabulary_fingerprint(WORDS, 3)


def test_texts_cannot_run_into_one_another():
    assert vocabulary_fingerprint({"ab": 0, "c": 1}, 2) != vocabulary_fingerprint({"a": 0, "bc": 1}, 2)


def test_bytes_vocabulary_has_every_id_once():
    assert sorted(bytes_vocabulary(300).values()) == list(range(300))
