"""Static steps say what ordinary passes say, whoever shares them, and a recording of one is a step of any sessions."""

import contextlib
import random
from types import SimpleNamespace

import pytest
import torch

from specdec.model import static_steps
from specdec.model.attention_calls import Span
from specdec.model.kv_arena import Arena
from specdec.model.kv_cache import STEP
from specdec.model.language_model import Branches, Segment
from specdec.model.loading import load_model
from specdec.model.recorders import CallingRecorder, GraphRecorder, recorder_of
from specdec.model.refusal import ModelRefused
from specdec.model.static_pass import Shape, packed_numbers
from specdec.model.static_steps import MOST_PAGES, MOST_TOKENS, StaticSteps
from tests.tiny_drafts import write_tiny_draft
from tests.tiny_models import VOCABULARY, write_tiny_model
from tests.unit.model.recorded_operations import OperationRecorder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(write_tiny_model(tmp_path_factory.mktemp("tiny"), context=1024), "cpu", "float64")


@pytest.fixture
def model(loaded):
    """The model with an arena that is new, but has been used."""
    loaded.arena = Arena()
    loaded.forward([Segment(loaded.new_cache(), [0], 0)])
    return loaded


def sequence(length, seed):
    return random.Random(seed).choices(range(len(VOCABULARY)), k=length)


class Twins:
    """The same sessions fed with static steps and, each alone, in ordinary passes."""

    def __init__(self, model, recorder, room=1):
        self.model = model
        self.steps = StaticSteps(model, room, recorder.of_device)
        self.caches = {}
        self.given = []

    def feed(self, parts, rows=1):
        """Feed tokens to sessions by name, and compare with the twins; what was held or given before must stay."""
        for name in parts:
            self.caches.setdefault(name, (self.steps.new_cache(), self.model.new_cache()))
        fed = [(*self.caches[name], tokens) for name, tokens in parts.items()]
        before = {name: self.held(name) for name in self.caches}
        found = self.steps.forward([Segment(cache, tokens, min(rows, len(tokens))) for cache, _, tokens in fed])
        for logits, (cache, twin, tokens) in zip(found, fed, strict=True):
            (expected,) = self.model.forward([Segment(twin, tokens, min(rows, len(tokens)))])
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)
            assert cache.length == twin.length
        assert all(torch.equal(logits, copy) for logits, copy in self.given)
        self.given = [(logits, logits.clone()) for logits in found]
        for name, held in before.items():
            now = self.held(name)
            assert all(torch.equal(old, new[: len(old)]) for old, new in zip(held, now, strict=True))

    def held(self, name):
        cache = self.caches[name][0]
        rows = slice(cache.start, cache.start + cache.length)
        return [tensor[rows].clone() for layer in self.model.arena.layers for tensor in layer]

    def cut(self, name, length):
        """Cut a session, and leave behind what a broken pass may leave."""
        for cache in self.caches[name]:
            cache.cut(length)
        self.spoil(self.caches[name][0], length)

    def end(self, name):
        cache, _ = self.caches.pop(name)
        self.spoil(cache, 0)

    def spoil(self, cache, length):
        with torch.inference_mode():
            for layer in self.model.arena.layers:
                for tensor in layer:
                    tensor[cache.start + length : cache.start + cache.written] = float("nan")


class Calls:
    """What serves on a CPU, counted."""

    replays = 0

    def of_device(self, device):
        assert isinstance(recorder_of(device), CallingRecorder)
        return self

    def record(self, work):
        work = CallingRecorder().record(work)

        def replay():
            self.replays += 1
            work()

        return replay


def play(twins, turns, seed=5):
    """Run random turns: sessions come with prompts, step alone and together, are cut, branch and go."""
    chance = random.Random(seed)
    for turn in range(turns):
        named = chance.sample(range(6), chance.choice([1, 1, 2, 3, 5]))
        new = {name: sequence(chance.choice([1, 40, 250, 400]), turn) for name in named if name not in twins.caches}
        if new:
            twins.feed(new)
        for name in named:
            cache, _ = twins.caches[name]
            if chance.random() < 0.5:
                twins.cut(name, chance.randint(max(cache.length - 6, 0), cache.length))
            if chance.random() < 0.2 and cache.length:
                twins.steps.forward([Branches(cache, [1, 2], 0, [cache.length - 1] * 2)])
        for step in range(chance.choice([1, 4])):
            parts = {name: sequence(chance.choice([1, 1, 2]), 100 * turn + name) for name in named}
            twins.feed(parts, rows=chance.choice([1, 2]) if step else 1)
        if chance.random() < 0.3:
            twins.end(chance.choice(named))


@pytest.mark.parametrize("kind", [Calls, OperationRecorder])
def test_random_histories_agree_with_ordinary_passes(model, kind):
    recorder = kind()
    twins = Twins(model, recorder)
    builds, replays = model.arena.builds, recorder.replays
    play(twins, turns=12)
    assert model.arena.builds > builds
    assert recorder.replays > replays + 20


def test_a_recording_serves_until_the_arena_is_built_anew(model):
    recorder = OperationRecorder()
    twins = Twins(model, recorder, room=8 * STEP)
    recorded, recorders = recorder.recordings, recorder.recorders
    for tokens in (3, 77, 200):
        twins.feed({tokens: sequence(tokens, 1)})
    for turn in range(4):
        twins.feed({3: [turn], 77: [turn + 1], 200: [9]})  # one shape
    assert (recorder.recordings, recorder.recorders) == (recorded + 1, recorders)
    twins.feed({"long": sequence(3 * STEP, 1)})
    twins.feed({3: [5], 77: [6], 200: [7]})
    assert (recorder.recordings, recorder.recorders) == (recorded + 2, recorders + 1)


def test_a_recording_of_a_former_arena_would_be_found(model, monkeypatch):
    recorder = OperationRecorder()
    twins = Twins(model, recorder, room=2 * STEP)
    twins.feed({1: sequence(20, 1)})
    twins.feed({1: [5]})
    twins.feed({"long": sequence(4 * STEP - 9, 1)})
    monkeypatch.setattr(twins.steps, "_builds", twins.model.arena.builds)
    twins.feed({1: [6]})  # all that it reads is still in the former one
    with pytest.raises(AssertionError):
        twins.feed({1: [7, 8, 9]})


def test_what_pads_is_no_session_and_a_batch_takes_the_smallest_shape(model):
    caches = [model.new_cache() for _ in range(4)]
    for cache, length in zip(caches, (300, 20, 1, 1), strict=True):
        model.forward([Segment(cache, sequence(length, 1), 0)])
    segments = [Segment(caches[0], [5], 1), Segment(caches[1], [6, 7], 1)]
    shape = Shape.of(segments)
    assert shape == Shape(tokens=4, pages=2)
    spans = [Span(segment, segment.cache, segment.cache.length) for segment in segments]
    padding = Span(Segment(caches[2], [0], 0), caches[2], 0)
    numbers = torch.tensor(packed_numbers(spans, shape, padding)).split(shape.sizes)
    ids, positions, written, seen, wanted, pages = (part.tolist() for part in numbers)
    assert (ids, positions, seen, wanted) == ([5, 6, 7, 0], [300, 20, 21, 1], [301, 21, 22, 1], [0, 2, 0, 0])
    assert written == [caches[0].start + 300, caches[1].start + 20, caches[1].start + 21, caches[2].start + 1]
    first, second, third = (cache.start // STEP for cache in caches[:3])
    assert pages == [first, first + 1, *[second] * 4, *[third] * 2]


def test_prompts_branches_and_large_batches_are_ordinary_passes(model, monkeypatch):
    steps = StaticSteps(model, 1)
    ordinary = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda segments: ordinary.append(len(segments)) or forward(segments))

    def is_step(*segments):
        ordinary.clear()
        steps.forward(segments)
        return not ordinary

    cache = steps.new_cache()
    assert not is_step(Segment(cache, [1, 2, 3], 1))
    assert is_step(Segment(cache, [1, 2], 1), Segment(steps.new_cache(), [1], 0))
    assert not is_step(Branches(cache, [1], 1, [4]))
    caches = [steps.new_cache() for _ in range(MOST_TOKENS)]
    assert is_step(*[Segment(each, [1], 1) for each in caches])
    assert not is_step(Segment(cache, [1], 1), *[Segment(each, [1], 1) for each in caches])
    monkeypatch.setattr(static_steps, "MOST_PAGES", MOST_TOKENS // 2)
    assert not is_step(*[Segment(each, [1], 1) for each in caches])
    assert MOST_PAGES >= MOST_TOKENS


@pytest.mark.parametrize(("tokens", "rows"), [([], 0), ([1], 2), ([1, 2], -1)])
def test_what_cannot_be_fed_is_refused_as_ever(model, tokens, rows):
    steps = StaticSteps(model, 1)
    with pytest.raises(ValueError, match="cannot give"):
        steps.forward([Segment(steps.new_cache(), tokens, rows)])


def test_a_step_that_fails_leaves_the_caches_as_they_were(model, monkeypatch):
    twins = Twins(model, Calls())
    twins.feed({1: [1, 2, 3]})
    with monkeypatch.context() as patch:
        patch.setattr(twins.model.network.lm_head, "forward", lambda hidden: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            twins.steps.forward([Segment(twins.caches[1][0], [9], 1)])
    assert twins.caches[1][0].length == 3
    twins.feed({1: [4]})


@pytest.mark.parametrize("architecture", ["qwen3", "gemma", "cut head"])
def test_other_networks_can_be_recorded_too(tmp_path, architecture):
    folder = write_tiny_model(tmp_path / "model", "llama" if architecture == "cut head" else architecture)
    if architecture == "cut head":
        folder = write_tiny_draft(tmp_path / "draft", folder)
    twins = Twins(load_model(folder, "cpu", "float64"), OperationRecorder())
    twins.feed({1: [5, 6, 7, 8], 2: [9]})
    twins.feed({1: [30], 2: [31, 32]})
    twins.feed({1: [33, 34], 2: [35]})


def test_a_network_that_waits_for_the_device_is_refused(model, monkeypatch):
    norm = model.network.model.norm
    monkeypatch.setattr(norm, "forward", lambda hidden: hidden if hidden.sum() > 0 else -hidden)
    with pytest.raises(ModelRefused, match="cannot be recorded: operation not permitted"):
        StaticSteps(model, 1, OperationRecorder().of_device)


def test_too_little_memory_is_told_at_the_start(model, monkeypatch):
    def full(self, like):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Arena, "_empty", full)
    with pytest.raises(ModelRefused, match="out of memory"):
        StaticSteps(model, 100 * STEP)


def test_steps_that_differ_are_refused(model, monkeypatch):
    monkeypatch.setattr(static_steps, "packed_numbers", lambda *arguments: [*packed_numbers(*arguments)[:-1], 0])
    monkeypatch.setattr(Span, "seen", lambda span: [1] * span.fed)
    with pytest.raises(ModelRefused, match="differ from its own"):
        StaticSteps(model, 1)


def test_a_graph_is_captured_after_one_run_and_on_the_same_stream(monkeypatch):
    """CUDA itself cannot be had here: this is what it would be told."""
    told = []

    @contextlib.contextmanager
    def inside(*arguments, **_):
        told.append(arguments)
        yield

    stream = SimpleNamespace(wait_stream=lambda other: told.append(("waits", other)))
    fakes = {
        "Stream": lambda device: stream,
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: told.append(("is waited for", other))),
        "device": inside,
        "stream": inside,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: told.append("replay")),
        "graph": inside,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    recorder = recorder_of(torch.device("cuda"))
    assert isinstance(recorder, GraphRecorder)
    replay = recorder.record(lambda: told.append("work"))
    assert told[2:4] == [(stream,), "work"]
    assert told[4][1:] == ("pool", stream)
    assert told[5:] == ["work", ("is waited for", stream)]
    replay()
    assert told[-1] == "replay"
