"""The criterion of the soak run: what is flat passes under noise, what leaks a little of its level does not."""

from random import Random

import pytest

from tests.soak.growth import ALLOWED, Allowed, growth, growths, slope

SECONDS = 600
MEMORY = 150.0  # MiB


def run(value, *, interval=5):
    """Return the points of a run whose value is a function of the seconds."""
    return [(time, value(time)) for time in range(0, SECONDS + 1, interval)]


def noise(size, seed=5):
    random = Random(seed)
    return lambda: random.gauss(0, size)


def test_the_slope_of_a_line_is_its_slope_whatever_stands_out():
    points = run(lambda time: 3 + 0.5 * time)
    assert slope(points) == pytest.approx(0.5)
    points[7] = (points[7][0], 1e9)
    assert slope(points) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_flat(seed):
    draw = noise(1.0, seed)
    assert growth(run(lambda _: MEMORY + draw()), ALLOWED["memory"]).flat


def test_warming_up_does_not_count():
    assert growth(run(lambda time: MEMORY + min(time, SECONDS // 3)), ALLOWED["memory"]).flat


def test_one_step_is_no_leak():
    assert growth(run(lambda time: MEMORY + 20 * (time > 550)), ALLOWED["memory"]).flat


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_one_percent_a_minute_is_seen_under_noise(seed):
    draw = noise(1.0, seed)
    found = growth(run(lambda time: MEMORY * (1 + 0.01 * time / 60) + draw()), ALLOWED["memory"])
    assert not found.flat
    assert found.grown == pytest.approx(0.01 * MEMORY * 400 / 60, abs=2)


def test_a_leak_in_stairs_is_seen():
    assert not growth(run(lambda time: MEMORY + 4 * (time // 60)), ALLOWED["memory"]).flat


def test_what_shrinks_is_no_leak():
    assert growth(run(lambda time: MEMORY - 0.1 * time), ALLOWED["memory"]).flat


def test_few_may_come_and_go_but_not_stay():
    draw = noise(4.0)
    assert growth(run(lambda _: 40 + round(draw())), ALLOWED["descriptors"]).flat
    assert not growth(run(lambda time: 40 + time // 60), ALLOWED["descriptors"]).flat


def test_too_short_a_run_is_no_evidence():
    with pytest.raises(ValueError, match="4 samples"):
        growth([(time, 1.0) for time in range(6)], Allowed(0, 0))


def test_everything_sampled_is_looked_at():
    samples = [(time, {("a", "tasks"): time, ("b", "keys"): 5.0}) for time in range(20)]
    assert {name: found.flat for name, found in growths(samples).items()} == {
        ("a", "tasks"): False,
        ("b", "keys"): True,
    }
