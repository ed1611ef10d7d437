"""How answers end over the whole path when their clients leave, requests are refused, or a part breaks."""

import asyncio
import urllib.error
import urllib.request
from contextlib import aclosing

import pytest
import pytest_asyncio

from specdec.v1 import generation_pb2
from tests.engines import at_rest, state_of
from tests.in_process import serving_draft, serving_target
from tests.integration.coordinator_process import coordinating
from tests.integration.test_whole_path_draft_behind import DisturbedDraft
from tests.integration.whole_path import COUPLED, SERVING, WholePath, whole_path
from tests.tiny_models import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    target = write_tiny_model(tmp_path_factory.mktemp("models") / "target", context=512)
    return target, f"layers:1:{target}"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def path(redis_server, models):
    async with (
        serving_target(models[0], dtype="float64", max_batch_tokens=32) as target,
        serving_draft(models[1], dtype="float64", max_batch_tokens=32, servicer_class=DisturbedDraft) as draft,
        whole_path(redis_server.url, target, draft) as path,
    ):
        yield path


def request(first, gamma=3, limit=24, prompt_length=10, **fields):
    return {
        "token_ids": [first, *(position % 250 for position in range(1, prompt_length))],
        "sampling_params": {"temperature": 1.0, "seed": first, "max_new_tokens": limit, "ignore_eos": True},
        "speculation": {"gamma": gamma, "verification": COUPLED},
    } | fields


async def leave(path, after, session_id, asked):
    """Read an answer's first events, then leave; return their tokens."""
    async with aclosing(path.events(session_id=session_id, **asked)) as events:
        return [token async for event in _first(events, after) for token in event.token_ids]


async def _first(events, count):
    if count:
        async for event in events:
            yield event
            count -= 1
            if not count:
                return


async def test_clients_that_leave_stop_their_work_and_nobody_else_notices(path):
    staying = [request(50 + number, gamma=number % 4) for number in range(5)]
    alone = [(answer.tokens, answer.rounds) for answer in await path.answers(staying)]
    # Some leave within a long prompt, some between rounds.
    going = {f"left-{after}": (after, request(90 + after, limit=200)) for after in range(1, 7)}
    slow = request(99, prompt_length=300, limit=200)

    async def leave_in_prompt():
        task = asyncio.create_task(leave(path, 1, "left-in-prompt", slow))
        await until(lambda: path.target.servicer.engine.state.running)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    left, _, beside = await asyncio.gather(
        asyncio.gather(*(leave(path, after, name, asked) for name, (after, asked) in going.items())),
        leave_in_prompt(),
        path.answers(staying),
    )
    assert [(answer.tokens, answer.rounds) for answer in beside] == alone
    await answers_ended(path)
    for name, shown in zip(going, left, strict=True):
        session = await path.coordinator.left(name)
        assert session.state == generation_pb2.SESSION_STATE_INTERRUPTED
        assert list(session.token_ids[10 : 10 + len(shown)]) == shown
        assert len(session.token_ids) < 200
    await path.caches_released()
    await at_rest(path.draft.servicer.engine)
    before = await at_rest(path.target.servicer.engine)
    # Nothing runs on: a request of one token is one more pass of the target.
    await path.answer(**request(1, gamma=0, limit=1))
    assert (await state_of(path.target.servicer.engine)).passes == before.passes + 1


async def answers_ended(path):
    """Wait until no answer is generated any more and what was left has been given up."""
    if generating := path.coordinator.servicer._generating:
        await asyncio.wait(generating, timeout=30)


async def until(condition):
    """Wait for what the engine's thread does."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("after", [1, 3])
async def test_an_answer_that_was_left_is_resumed_as_if_nothing_had_been(path, after):
    name, asked = f"resumed-{after}", request(30 + after, limit=60)
    whole = await path.answer(**asked)
    shown = await leave(path, after, name, asked)
    rest = await path.answer(session_id=name, resume_from=len(shown))
    assert [*shown, *rest.tokens] == whole.tokens


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"token_ids": []}, "INVALID_ARGUMENT"),
        ({"prompt": "two inputs"}, "INVALID_ARGUMENT"),
        ({"token_ids": [1] * 512}, "INVALID_ARGUMENT"),
        ({"token_ids": [1] * 5000}, "INVALID_ARGUMENT"),
        ({"token_ids": [2**32 - 1]}, "INVALID_ARGUMENT"),
        ({"speculation": {"gamma": 1000}}, "INVALID_ARGUMENT"),
        ({"speculation": {"verification": 99}}, "INVALID_ARGUMENT"),
        ({"sampling_params": {"repetition_penalty": 0.0}}, "INVALID_ARGUMENT"),
        ({"sampling_params": {"max_new_tokens": 0}}, "INVALID_ARGUMENT"),
        ({"sampling_params": {"temperature": float("nan")}}, "INVALID_ARGUMENT"),
        ({"session_id": "no such character: ä"}, "INVALID_ARGUMENT"),
        ({"session_id": "new", "expected_length": 4}, "ABORTED"),
    ],
)
async def test_what_is_refused_is_told_so_and_makes_no_session(path, fields, code):
    shown, error = await path.failure(**request(1, **fields))
    assert (shown.events, error.code) == ([], code)
    assert error.reason
    _, unknown = await path.failure(session_id="new", resume_from=0)
    assert unknown.code == "NOT_FOUND"


async def test_a_draft_that_fails_in_any_way_costs_speed_alone(path, monkeypatch):
    asked = request(7, limit=6)
    plain = await path.answer(**asked | {"speculation": {"gamma": 0, "verification": COUPLED}})

    def fail(self):
        raise RuntimeError("broken")

    monkeypatch.setattr(DisturbedDraft, "_limits", fail)
    answer = await path.answer(**asked)
    assert answer.tokens == plain.tokens
    assert set(answer.fallbacks[:-1]) == {generation_pb2.FALLBACK_REASON_DRAFT_UNAVAILABLE}
    monkeypatch.undo()
    drafts = path.coordinator.fleet.drafts
    await drafts.wait_for(drafts.usable, 30)  # it was left alone for a while
    assert not any((await path.answer(**asked)).fallbacks)


class BrokenCollector:
    """Raises whenever somebody looks at the metrics."""

    def describe(self):
        return []

    def collect(self):
        raise RuntimeError("broken")


async def test_metrics_that_break_do_not_break_serving(redis_server, path):
    asked = request(8)
    expected = (await path.answer(**asked)).tokens
    async with coordinating(redis_server.url, [path.target.address], [path.draft.address], metrics_port=-1) as running:
        await running.health(SERVING)
        running.registry.register(BrokenCollector())
        with pytest.raises(urllib.error.HTTPError):
            await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{running.server.metrics_port}/metrics")
        other = WholePath(running, path.target, path.draft)
        assert (await other.answer(**asked)).tokens == expected
        assert await other.health() == SERVING
