"""A short run of ``make chaos``: one fault of each kind, each process killed, under load."""

import uvloop

from tests.chaos.plan import Kind, short_plan
from tests.chaos.run import run

SEED = 20


def test_one_fault_of_each_kind_loses_repeats_and_changes_nothing(tmp_path):
    plan = short_plan(SEED)
    result = uvloop.run(run(plan, SEED, tmp_path))
    assert not result.violations
    assert {fault.kind for fault in result.done} == set(Kind)
    assert sum(request.resumptions for request in result.history.requests) > 0
