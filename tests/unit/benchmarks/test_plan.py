"""Plans: sums made by hand, and what must follow from them."""

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks.cost_model import Costs, alike
from benchmarks.plan import grids, main, parse, plan
from benchmarks.sizing import Need, Pair, best, least_alpha, most_draft_ms, sizing
from draft_service.settings import DraftSettings
from target_service.settings import TargetSettings

PAIR = Pair(target_ms=30, token_ms=0, draft_ms=5, rtt_ms=1, alpha=0.7, target_batch=1, draft_batch=1)
NEED = Need(rate=20, tokens=256, busy=0.7)
COMMAND = ["--target-ms", "30", "--draft-ms", "5", "--alpha", "0.7", "--rtt-ms", "1", "--rate", "20"]


def test_plain_decoding_by_hand():
    """5120 tokens a second take 153.6 seconds of passes a second: 219.4 pods that are busy for 0.7 of it."""
    plain = sizing(PAIR, NEED, 0)
    assert (plain.target_pods, plain.draft_pods) == (220, 0)
    busy = 153.6 / 220
    assert plain.token_ms == pytest.approx(30 + 1 + busy * 30 / 2)
    assert plain.answers_at_once == pytest.approx(20 * 256 * plain.token_ms / 1000)


def test_a_round_by_hand():
    three = sizing(PAIR, NEED, 3)
    tokens = 1 + 0.7 + 0.7**2 + 0.7**3
    rounds = 20 * 256 / tokens
    assert three.tokens_a_round == pytest.approx(tokens)
    assert three.target_pods == math.ceil(rounds * 0.030 / 0.7)
    assert three.draft_pods == math.ceil(rounds * 3 * 0.005 / 0.7)
    assert three.speedup == pytest.approx(Costs(5, 30, 30, 1).speedup(alike(0.7, 3)))
    assert three.most_tokens_a_second * 0.7 >= 20 * 256, "what is planned for fits"


def test_passes_for_many_need_fewer_pods():
    many = Pair(30, 0, 5, 1, 0.7, target_batch=16, draft_batch=16)
    assert sizing(many, NEED, 0).target_pods == math.ceil(153.6 / 16 / 0.7)
    assert sizing(many, Need(0.01, 256, 0.7), 3).target_pods == 1


def test_prompts_take_pods_of_their_own():
    """20 prompts of 500 ms keep ten pods busy, 14.3 at 0.7; those of drafts, at 70 ms, two."""
    read = Need(20, 256, 0.7, prompt_ms=500, draft_prompt_ms=70)
    assert sizing(PAIR, read, 0).target_pods == math.ceil((153.6 + 10) / 0.7)
    without, three = sizing(PAIR, NEED, 3), sizing(PAIR, read, 3)
    assert three.draft_pods - without.draft_pods == 2
    assert three.most_tokens_a_second >= 20 * 256, "what is planned for fits"


def test_every_answer_finds_a_session():
    many = Pair(30, 0, 5, 1, 0.7, target_batch=1000, draft_batch=1000)
    for gamma in (0, 3):
        roomy, small = sizing(many, Need(20, 256, 0.7, sessions=1000), gamma), sizing(many, NEED, gamma)
        assert roomy.target_pods == 1
        assert small.answers_at_once > 64
        assert small.answers_at_once / small.target_pods <= 64
        assert small.draft_pods == (small.target_pods if gamma else 0)
    rooms = [settings(model="synthetic:").max_sessions for settings in (DraftSettings, TargetSettings)]
    assert {*rooms, NEED.sessions, parse(COMMAND).sessions} == {64}


def test_the_largest_numbers_that_are_taken_can_be_planned(capsys):
    most = {"--target-ms": "0.001", "--draft-ms": "60000", "--rate": "1e6", "--tokens": "1000000", "--rtt-ms": "60000"}
    flags = most | {"--busy": "0.01", "--max-gamma": "64", "--alpha": "0", "--prompt-ms": "60000", "--sessions": "1"}
    [grid] = grids(plan(parse([text for pair in flags.items() for text in pair])))
    assert len(grid.rows) == 65
    assert "prompts" not in grid.title


def test_speculation_stops_paying_where_the_plan_says():
    gammas = range(1, 9)

    def at(alpha, draft_ms):
        pair = Pair(30, 0, draft_ms, 1, alpha, 1, 1)
        return max(pair.speedup(gamma) for gamma in gammas)

    alpha = least_alpha(lambda each: at(each, 5) > 1)
    assert at(alpha - 0.001, 5) < 1 < at(alpha + 0.001, 5)
    draft_ms = most_draft_ms(PAIR, 8)
    assert at(0.7, draft_ms + 0.01) < 1 < at(0.7, draft_ms - 0.01)


def test_where_no_draft_pays_none_is_named():
    slow = Pair(10, 20, 50, 1, 0.1, 1, 1)
    assert least_alpha(lambda alpha: Pair(10, 20, 50, 1, alpha, 1, 1).speedup(1) > 1) is None
    assert most_draft_ms(slow, 4) is None
    assert best([sizing(slow, NEED, gamma) for gamma in range(5)]).gamma == 0


def test_the_command_says_what_was_given_and_what_was_computed(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plan", *COMMAND])
    main()
    report = json.loads(capsys.readouterr().out)
    assert report["given"]["target_ms"] == 30
    computed = report["computed"]
    fastest = min(computed["by_gamma"], key=lambda each: each["token_ms"])
    assert computed["best"] == fastest
    assert len(computed["by_gamma"]) == 9
    [grid] = grids(report)
    assert [row[0] for row in grid.rows if "best" in row[0]] == [f"{fastest['gamma']} (best)"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--alpha", "1.2"),
        ("--target-ms", "0"),
        ("--rate", "-1"),
        ("--rate", "1e308"),
        ("--busy", "0"),
        ("--busy", "1e-300"),
        ("--tokens", "x"),
        ("--max-gamma", "100000"),
        ("--rtt-ms", "1e9"),
        ("--draft-ms", "1e9"),
        ("--sessions", "0"),
    ],
)
def test_senseless_numbers_are_refused_by_name(flag, value, capsys):
    with pytest.raises(SystemExit):
        parse([*COMMAND, f"{flag}={value}"])
    assert re.search(rf"argument {flag}: ", capsys.readouterr().err)


def test_a_plan_for_a_pair_that_pays_names_its_limits():
    [grid] = grids(plan(parse(COMMAND)))
    assert re.search(r"pays above alpha 0\.\d\d, or with a draft token below \d+\.\d ms", grid.title)
    assert "the reading of prompts is not counted (--prompt-ms)" in grid.title


ROW = r"^\| .+ \| `(--.+)` \| (?:measured|assumed) \| (\d) \| ([\d.]+) \| (\d+) \+ (\d+) \| (.+) \|$"
TABLE = re.findall(ROW, (Path(__file__).parents[3] / "deploy" / "README.md").read_text(), re.MULTILINE)


def test_the_table_for_operators_says_what_the_plan_says():
    assert len(TABLE) == 5
    for flags, gamma, speedup, targets, drafts, measured in TABLE:
        computed = plan(parse(flags.split()))["computed"]
        found = computed["best"]
        assert (found["gamma"], found["target_pods"], found["draft_pods"]) == (int(gamma), int(targets), int(drafts))
        assert f"{found['speedup']:.2f}" == speedup
        for other, value in re.findall(r"gamma (\d); computed: ([\d.]+)", measured):
            assert f"{computed['by_gamma'][int(other)]['speedup']:.2f}" == value
