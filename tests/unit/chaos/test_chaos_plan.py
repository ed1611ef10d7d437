"""The plan of the chaos suite is what its seed says, and leaves nothing out."""

from itertools import product

from tests.chaos.plan import CALLS, COORDINATORS, PROCESSES, WIRE, Kind, Phase, full_plan, role, short_plan


def test_a_seed_says_everything():
    assert full_plan(1) == full_plan(1)
    assert full_plan(1) != full_plan(2)
    assert short_plan(1) == short_plan(1)


def test_every_process_is_killed_at_every_phase_and_every_call_meets_every_fault_of_the_wire():
    plan = full_plan(7)
    assert len(plan) >= 200
    kills = {(fault.victim, fault.phase) for fault in plan if fault.kind is Kind.KILL}
    assert kills == set(product(PROCESSES, Phase))
    wire = {(fault.kind, fault.victim, fault.phase) for fault in plan if fault.kind in WIRE}
    no_answer = set(product([Kind.CUT_ANSWER], COORDINATORS, [Phase.STREAMING]))
    assert wire == set(product(WIRE, COORDINATORS, CALLS)) - no_answer
    assert {fault.victim for fault in plan if fault.kind is Kind.PAUSE} == set(COORDINATORS)


def test_a_rolling_restart_of_all_follows_what_redis_has_lost():
    plan = full_plan(7)
    last_loss = max(place for place, fault in enumerate(plan) if fault.kind in (Kind.FORGET, Kind.OLDER))
    restarts = [(place, fault.victim) for place, fault in enumerate(plan) if fault.kind is Kind.RESTART]
    assert [victim for place, victim in restarts if place > last_loss] == [*PROCESSES, *PROCESSES]
    after = {role(fault.victim) for fault in plan[restarts[-1][0] + 1 :] if fault.kind is Kind.KILL}
    assert after == {"redis"}  # so that what leaks in the services shows


def test_the_short_form_has_one_of_each():
    for seed in range(20):
        plan = short_plan(seed)
        kills = [fault for fault in plan if fault.kind is Kind.KILL]
        assert {fault.kind for fault in plan} == set(Kind)
        assert {fault.phase for fault in kills} == set(Phase)
        assert {role(fault.victim) for fault in kills} == {"coordinator", "draft", "target", "redis"}
