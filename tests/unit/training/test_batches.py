"""Batches: every answer once an epoch, the same batches after a resume and on any number of devices."""

from itertools import islice

from training.answers import Answer
from training.batches import answer_tokens, micro_batches, share, shuffled, step_batch

ANSWERS = [Answer(tuple(range(2 + length)), 2) for length in (1, 9, 4, 4, 7, 2, 8, 3, 5, 6)]


def test_every_epoch_has_every_answer_once_in_an_order_of_its_own():
    first, second = (list(islice(shuffled(ANSWERS, 3, start), 10)) for start in (0, 10))
    assert set(first) == set(second) == set(ANSWERS)
    assert ANSWERS != first != second
    assert first != list(islice(shuffled(ANSWERS, 4, 0), 10))


def test_the_order_goes_on_from_any_place():
    whole = list(islice(shuffled(ANSWERS, 3, 0), 30))
    for start in range(20):
        assert list(islice(shuffled(ANSWERS, 3, start), 10)) == whole[start : start + 10]


def test_a_batch_has_enough_tokens_and_an_answer_for_each_device():
    order = iter(ANSWERS)
    batch = step_batch(order, 11, 2)
    assert batch == ANSWERS[:3]
    assert answer_tokens(batch) == 14
    assert step_batch(order, 1, 3) == ANSWERS[3:6]


def test_shares_are_the_batch():
    for devices in range(1, 6):
        shares = [share(ANSWERS, rank, devices) for rank in range(devices)]
        assert all(shares)
        assert sorted(answer.token_ids for part in shares for answer in part) == sorted(
            answer.token_ids for answer in ANSWERS
        )


def test_micro_batches_hold_what_fits_padding_counted():
    answers = share(ANSWERS, 0, 1)
    batches = micro_batches(answers, 24)
    assert [answer for batch in batches for answer in batch] == answers
    assert all(len(batch) * len(batch[0].token_ids) <= 24 for batch in batches)
    assert len(batches) == 4
    assert micro_batches(answers, 1) == [[answer] for answer in answers]  # one that is too long goes alone
