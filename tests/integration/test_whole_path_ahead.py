"""Drafting ahead over the whole path: the same text, from real caches too, and signs of what was there."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from specdec.fence import Fence
from specdec.model.loading import load_model
from specdec.serving import names
from tests.in_process import serving_draft, serving_target
from tests.integration.whole_path import BLOCK, COUPLED, TOKEN, whole_path
from tests.recorded_spans import recorded_spans
from tests.tiny_models import write_tiny_model

PROMPT = list(range(5, 40))
GAMMA = 3
SUPPORT = 16  # far fewer than the target's tokens: some of its answers cannot be foreseen
WAYS = {"token": (TOKEN, 0.7), "block": (BLOCK, 1.0), "coupled": (COUPLED, 1.0), "greedy": (BLOCK, 0.0)}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Patient:
    """A model that lets a draft do ahead what it can before each pass."""

    def __init__(self, model, draft):
        self._model, self._draft = model, draft.servicer.engine
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, segments):
        # The draft's thread answers a call before it notes what may come next: it has when it takes another job.
        asyncio.run_coroutine_threadsafe(self._draft.release("nobody", Fence(1, "0" * 32), 0), self._loop).result()
        while self._draft._batching.ahead.pending:
            time.sleep(0)
        return self._model.forward(segments)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "target")


@asynccontextmanager
async def path_of(redis_url, model, **settings):
    """Serve a target, and before it a draft that is the same model as far as its support goes."""
    async with (
        serving_draft(model, dtype="float64", support_size=SUPPORT, **settings) as draft,
        serving_target(model, loaded=Patient(load_model(model, dtype="float64"), draft)) as target,
        whole_path(redis_url, target, draft) as path,
    ):
        yield path


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def paths(redis_server, model):
    async with path_of(redis_server.url, model, ahead_tokens=24) as ahead, path_of(redis_server.url, model) as plain:
        yield ahead, plain


def request(name):
    way, temperature = WAYS[name]
    return {
        "token_ids": PROMPT,
        "sampling_params": {"temperature": temperature, "seed": 4, "max_new_tokens": 40, "ignore_eos": True},
        "speculation": {"gamma": GAMMA, "verification": way},
    }


def counters(path):
    """Return what the draft has counted of its work ahead."""
    registry = path.draft.servicer._registry
    return {
        what: registry.get_sample_value(f"specdec_ahead_{what}_total") for what in ("hits", "misses", "tokens", "used")
    }


@pytest.mark.parametrize("name", WAYS)
async def test_rounds_are_the_same_and_what_was_there_takes_no_pass(paths, name):
    ahead, plain = paths
    before = counters(ahead)
    expected = await plain.answer(**request(name))
    with recorded_spans() as spans:
        answer = await ahead.answer(**request(name))
        await ahead.draft.server._calls.idle.wait()  # its calls have ended their spans
        calls = [dict(span.attributes) for span in spans.get_finished_spans() if names.AHEAD_HIT in span.attributes]
    assert (answer.text, answer.rounds) == (expected.text, expected.rounds)
    assert set(answer.fallbacks) == {0}

    hits = [call for call in calls if call[names.AHEAD_HIT]]
    counted = {what: value - before[what] for what, value in counters(ahead).items()}
    assert (counted["hits"], counted["misses"]) == (len(hits), len(calls) - len(hits))
    assert counted["tokens"] > counted["used"] == sum(call[names.AHEAD_TOKENS] for call in calls) > 0
    assert ahead.draft.servicer._registry.get_sample_value("specdec_ahead_failed_passes") == 0
    for call in hits:  # all of it was there
        assert call[names.AHEAD_TOKENS] == call[names.GAMMA]
        assert call[names.PASSES] == call[names.FED_TOKENS] == 0
