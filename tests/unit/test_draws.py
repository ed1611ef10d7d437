"""Draws are functions of their key, inside the open interval, and independent of each other."""

import math

import pytest
import torch

from specdec import draws
from specdec.draws import Purpose, gumbel_noise, gumbel_noise_of, uniform

CPU = torch.device("cpu")


def test_uniform_is_a_function_of_every_part_of_its_key():
    key = (7, 10, 12, Purpose.DRAFT)
    others = [
        (8, 10, 12, Purpose.DRAFT),
        (7, 11, 12, Purpose.DRAFT),
        (7, 10, 13, Purpose.DRAFT),
        (7, 10, 12, Purpose.NEXT),
    ]
    assert uniform(*key) == uniform(*key)
    assert len({uniform(*key), *(uniform(*other) for other in others)}) == 5


@pytest.mark.parametrize(("bits", "edge"), [(0, 0.0), (2**64 - 1, 1.0)])
def test_uniform_is_never_an_end_of_the_interval(monkeypatch, bits, edge):
    monkeypatch.setattr(draws, "_hash64", lambda key: bits)
    value = uniform(0, 0, 0, Purpose.NEXT)
    assert 0.0 < value < 1.0
    assert value == pytest.approx(edge)


def test_draws_stay_what_they_were():
    # Stored sessions and replicas of other versions count on them: another key or hash is another text.
    assert [uniform(7, 10, 12, purpose).hex() for purpose in Purpose] == [
        "0x1.7e0ef3746c65dp-1",
        "0x1.dc599b85df66bp-1",
        "0x1.955db6a50ad2cp-3",
    ]
    assert uniform(2**64 - 1, 0, 4095, Purpose.DRAFT).hex() == "0x1.e5386a845afa2p-2"
    assert gumbel_noise(7, 12, 3, CPU).tolist() == pytest.approx(
        [0.6889053130619052, -0.35312169876799016, 1.3056096442561336], rel=1e-12
    )


def test_uniform_fills_the_interval_evenly():
    count, cells = 20_000, 20
    observed = [0] * cells
    for position in range(count):
        observed[int(uniform(3, 5, position, Purpose.ACCEPT) * cells)] += 1
    chi_square = sum((seen - count / cells) ** 2 / (count / cells) for seen in observed)
    assert chi_square < 19 + 5 * math.sqrt(38)  # mean + 5 standard deviations


def test_seeds_take_the_whole_64_bits():
    assert uniform(2**64 - 1, 1, 1, Purpose.NEXT) != uniform(2**63 - 1, 1, 1, Purpose.NEXT)
    assert not torch.equal(gumbel_noise(2**64 - 1, 1, 8, CPU), gumbel_noise(2**63 - 1, 1, 8, CPU))


@pytest.mark.parametrize("bits", [0, 1, 2**63, 2**64 - 1])
def test_gumbel_noise_is_finite_for_any_key(monkeypatch, bits):
    monkeypatch.setattr(draws, "_hash64", lambda key: bits)
    assert gumbel_noise(0, 0, 4096, CPU).isfinite().all()


def test_gumbel_noise_has_the_gumbel_law():
    noise = torch.cat([gumbel_noise(5, position, 5000, CPU) for position in range(20)])
    assert noise.mean().item() == pytest.approx(0.5772, abs=5 * 1.2825 / math.sqrt(len(noise)))
    uniforms = torch.exp(-torch.exp(-noise))
    observed = torch.histc(uniforms, bins=50, min=0, max=1)
    expected = len(noise) / 50
    assert ((observed - expected) ** 2 / expected).sum().item() < 49 + 5 * math.sqrt(98)


def test_gumbel_noise_of_a_token_does_not_depend_on_the_vocabulary():
    assert torch.equal(gumbel_noise(5, 3, 100, CPU), gumbel_noise(5, 3, 1000, CPU)[:100])
    token_ids = torch.tensor([70, 3, 99])
    assert torch.equal(gumbel_noise_of(5, 3, token_ids), gumbel_noise(5, 3, 100, CPU)[token_ids])


def test_splitmix64_matches_its_published_stream(monkeypatch):
    # First outputs of SplitMix64 from state 1234567 (Steele, Lea, Flood's reference code).
    monkeypatch.setattr(draws, "_hash64", lambda key: 1234567)
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    expected = [-math.log(-math.log(((value >> 12) + 0.5) * 2.0**-52)) for value in reference]
    assert gumbel_noise(0, 0, 3, CPU).tolist() == pytest.approx(expected, rel=1e-12)
