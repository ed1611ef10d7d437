"""What the pair benchmark asks, and in which order."""

from collections import Counter

import pytest

from benchmarks.pair import main, parse, plan_of
from benchmarks.pair_run import Case, cases, request, rotated
from benchmarks.prompts import PROMPTS
from deploy.pairs import PAIRS
from specdec.v1 import common_pb2

PAIR = ["--target", "T", "--draft", "D"]


def plan(*arguments):
    return plan_of(parse([*PAIR, *arguments]))


def test_gamma_0_is_always_among_them_and_first():
    assert plan("--gamma", "8", "3").gammas == (0, 3, 8)


@pytest.mark.parametrize("flag", ["--gamma", "--laps", "--max-new-tokens", "--threads"])
def test_what_must_be_above_0_is(flag, capsys):
    with pytest.raises(SystemExit):
        plan(flag, "0")
    assert "0 is no whole number above 0" in capsys.readouterr().err


def test_every_gamma_comes_first_equally_often():
    gammas = (0, 2, 4, 8)
    orders = [rotated(gammas, turn) for turn in range(8)]
    assert all(sorted(order) == list(gammas) for order in orders)
    assert Counter(order[0] for order in orders) == dict.fromkeys(gammas, 2)


def test_a_lap_asks_every_kind_at_every_temperature_before_the_next():
    asked = cases(plan("--kind", "chat", "edit", "--laps", "2", "--temperature", "0", "0.7"))
    lap = [("chat", 0.0), ("chat", 0.7), ("edit", 0.0), ("edit", 0.7)]
    assert [(case.lap, case.kind, case.temperature) for case in asked] == [
        (number, *one) for number in range(2) for one in lap
    ]
    assert len(asked) * 4 == plan("--kind", "chat", "edit", "--laps", "2").answers


def test_a_quick_look_gives_way_to_flags_of_ones_own():
    quick = plan("--quick", "--gamma", "2", "--laps", "2")
    assert (quick.gammas, quick.laps, quick.temperatures) == ((0, 2), 2, (0.0,))
    assert quick.answers < plan().answers


def test_laps_beyond_the_prompts_ask_them_again_with_other_seeds():
    asked = plan("--seed", "5")
    first, again = (request(asked, Case("chat", lap, 0.7), 4) for lap in (0, len(PROMPTS["chat"])))
    assert first.messages == again.messages
    assert first.messages[0].content == PROMPTS["chat"][0]
    assert (first.sampling_params.seed, again.sampling_params.seed) == (5, 5 + len(PROMPTS["chat"]))


def test_a_request_says_what_the_plan_says():
    asked = request(plan("--verification", "token", "--ignore-eos"), Case("edit", 1, 0.75), 4)
    assert asked.speculation.gamma == 4
    assert asked.speculation.verification == common_pb2.VERIFICATION_TOKEN
    assert asked.sampling_params.temperature == 0.75
    assert asked.sampling_params.ignore_eos
    assert not asked.prompt


def test_synthetic_targets_and_plain_ones_get_no_chat_template():
    for asked in (plan("--plain"), plan("--target", "synthetic:seed=1")):
        message = request(asked, Case("story", 0, 0.0), 0)
        assert message.prompt == PROMPTS["story"][0]
        assert not message.messages


def test_a_pair_is_measured_with_its_draft_a_lookup_and_both():
    for name, pair in PAIRS.items():
        options = parse(["--pair", name])
        assert plan_of(options).target == pair.target
        assert plan_of(options).drafts == (pair.draft, "lookup:", f"lookup:{pair.draft}")
        assert options.name == name


def test_another_target_gets_a_lookup_and_its_own_section():
    options = parse(["--target", "T"])
    assert (options.name, plan_of(options).target, plan_of(options).drafts) == ("T", "T", ("lookup:",))


def test_a_pair_may_get_other_drafts():
    options = parse(["--pair", "smollm2", "--draft", "D", "--draft", "E"])
    assert (options.name, plan_of(options).drafts) == ("smollm2", ("D", "E"))
    assert plan_of(options).target == PAIRS["smollm2"].target


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--target", "models--a"), "--name: 'models--a' cannot stand"),
        (("--temperature", "-1"), "-1 is below 0"),
        (("--temperature", "warm"), "warm is no number"),
        (("--laps", "x"), "x is no whole number above 0"),
    ],
)
def test_bad_flags_are_told_before_anything_is_measured(flags, said, capsys):
    with pytest.raises(SystemExit):
        parse(list(flags))
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "no JSON"])
def test_a_report_that_cannot_be_read_is_told(tmp_path, content, capsys):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    assert main(["--from", str(path)]) == 1
    assert "cannot be read" in capsys.readouterr().err
