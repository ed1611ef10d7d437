"""What the pair benchmark asks, and in which order."""

from collections import Counter

import pytest

from benchmarks.pair import main, parse, plan_of
from benchmarks.pair_plan import Case, cases, question, request, rotated
from benchmarks.pair_run import ask_all, warm_up, ways_of
from benchmarks.prompts import PROMPTS
from benchmarks.recording import Recording, Round
from deploy.pairs import PAIRS
from deploy.process import StartFailed
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


def test_every_way_comes_first_equally_often():
    ways = ["gamma 0", "gamma 4", "adaptive", "generate"]
    orders = [rotated(ways, turn) for turn in range(8)]
    assert all(sorted(order) == sorted(ways) for order in orders)
    assert Counter(order[0] for order in orders) == dict.fromkeys(ways, 2)


def test_ways_are_plain_each_gamma_adaptive_and_those_of_hugging_face():
    own = ["gamma 0", "gamma 2", "gamma 4", "adaptive", "gamma 0 again"]
    asked = plan("--gamma", "4", "2")
    assert ways_of(asked, "lookup:") == [*own, "generate", "assisted"]
    assert ways_of(asked, "lookup:D") == [*own, "generate"]
    assert ways_of(plan("--gamma", "4", "2", "--no-hugging-face"), "lookup:") == own
    assert ways_of(plan_of(parse(["--target", "synthetic:seed=1", "--gamma", "2", "4"])), "synthetic:seed=2") == own


def answer(case, most, prompt=(1, 2)):
    return Recording(prompt, tuple(range(most)), (Round(0, 0, most, arrived=most / 100),))


def test_every_case_is_asked_in_every_way():
    asked, order = plan("--kind", "chat", "--laps", "2", "--temperature", "0", "--max-new-tokens", "9"), []
    asks = {way: lambda case, most, way=way: order.append(way) or answer(case, most) for way in ("gamma 0", "adaptive")}
    answers = ask_all(asked, asks, lambda: None)
    assert order == ["gamma 0", "adaptive", "adaptive", "gamma 0"]
    assert [len(one.token_ids) for by_way in answers.values() for one in by_way.values()] == [9] * 4
    assert warm_up(asked, asks) == pytest.approx(2 * 2 * 9 / 100)


def test_another_prompt_is_not_compared():
    asks = {"gamma 0": answer, "generate": lambda case, most: answer(case, most, prompt=(3,))}
    with pytest.raises(StartFailed, match="generate reads the prompt as"):
        warm_up(plan(), asks)


def test_a_lap_asks_every_kind_at_every_temperature_before_the_next():
    asked = cases(plan("--kind", "chat", "edit", "--laps", "2", "--temperature", "0", "0.7"))
    lap = [("chat", 0.0), ("chat", 0.7), ("edit", 0.0), ("edit", 0.7)]
    assert [(case.lap, case.kind, case.temperature) for case in asked] == [
        (number, *one) for number in range(2) for one in lap
    ]
    assert len(asked) == plan("--kind", "chat", "edit", "--laps", "2").cases


def test_a_quick_look_gives_way_to_flags_of_ones_own():
    quick = plan("--quick", "--gamma", "2", "--laps", "2")
    assert (quick.gammas, quick.laps, quick.temperatures) == ((0, 2), 2, (0.0,))
    assert quick.cases < plan().cases


def test_laps_beyond_the_prompts_ask_them_again_with_other_seeds():
    asked = plan("--seed", "5")
    first, again = (request(asked, Case("chat", lap, 0.7), "gamma 4", 40) for lap in (0, len(PROMPTS["chat"])))
    assert first.messages == again.messages
    assert first.messages[0].content == PROMPTS["chat"][0]
    assert (first.sampling_params.seed, again.sampling_params.seed) == (5, 5 + len(PROMPTS["chat"]))


def test_a_request_says_what_the_plan_says():
    asked = request(plan("--verification", "token", "--ignore-eos"), Case("edit", 1, 0.75), "gamma 4", 40)
    assert asked.speculation.gamma == 4
    assert asked.speculation.verification == common_pb2.VERIFICATION_TOKEN
    assert asked.sampling_params.temperature == 0.75
    assert asked.sampling_params.ignore_eos
    assert not asked.prompt


def test_the_services_choose_gamma_for_answers_without_a_seed():
    asked = request(plan(), Case("edit", 1, 0.75), "adaptive", 40)
    assert not asked.speculation.HasField("gamma")
    assert not asked.sampling_params.HasField("seed")


def test_hugging_face_is_asked_the_same():
    asked, case = plan("--seed", "5"), Case("edit", 1, 0.75)
    ours, theirs = request(asked, case, "gamma 4", 40), question(asked, case, "assisted", 40)
    assert (theirs.text, theirs.plain, theirs.assisted) == (ours.messages[0].content, False, True)
    assert (theirs.seed, theirs.temperature) == (ours.sampling_params.seed, ours.sampling_params.temperature)
    assert theirs.max_new_tokens == ours.sampling_params.max_new_tokens
    assert not question(asked, case, "generate", 40).assisted


def test_synthetic_targets_and_plain_ones_get_no_chat_template():
    for asked in (plan("--plain"), plan("--target", "synthetic:seed=1")):
        message = request(asked, Case("story", 0, 0.0), "gamma 0", 40)
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
        (("--temperature", "-1"), "-1 is no number from 0 on"),
        (("--temperature", "warm"), "warm is no number"),
        (("--laps", "x"), "x is no whole number above 0"),
    ],
)
def test_bad_flags_are_told_before_anything_is_measured(flags, said, capsys):
    with pytest.raises(SystemExit):
        parse(list(flags))
    assert said in capsys.readouterr().err


WORDS = ("cannot be read", "is no report of benchmarks.pair", "is no whole report of benchmarks.pair: KeyError(")


@pytest.mark.parametrize("content", [None, "no JSON", "[]", '{"benchmark": "wire"}', '{"benchmark": "pair"}'])
def test_a_report_that_cannot_be_read_is_told(tmp_path, content, capsys):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    assert main(["--from", str(path)]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert any(words in shown for words in WORDS)
