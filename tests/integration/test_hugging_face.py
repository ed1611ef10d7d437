"""What users would run instead answers in a process of its own: the target's text, and when its tokens came."""

import pytest
import transformers

from benchmarks.hugging_face import HuggingFace, Question, can_assist
from deploy.process import StartFailed
from tests.reference import Reference
from tests.tiny_models import VOCABULARY, write_tiny_model

TEXT = "abcabcab"
TOKENS = 12


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "target", layers=3, context=256)


def question(assisted, temperature=0.0):
    return Question(assisted, TEXT, plain=True, temperature=temperature, seed=3, max_new_tokens=TOKENS, ignore_eos=True)


def test_alone_and_assisted_say_what_the_target_says(target):
    model = transformers.AutoModelForCausalLM.from_pretrained(target)
    with HuggingFace(target, f"layers:1:{target}", threads=1) as library:
        alone, assisted = (library.ask(question(one)) for one in (False, True))
        sampled = [library.ask(question(assisted=False, temperature=1.0)).token_ids for _ in range(2)]
        library._process.kill()
        library._process.join()
        with pytest.raises(StartFailed, match="the process has ended"):
            library.ask(question(assisted=False))
    expected = Reference(model, len(VOCABULARY)).model.generate(
        input_ids=model.dummy_inputs["input_ids"].new_tensor([alone.prompt_ids]),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
    )
    assert list(alone.token_ids) == expected[0, len(alone.prompt_ids) :].tolist()
    assert assisted.token_ids == alone.token_ids
    assert sampled[0] == sampled[1] != alone.token_ids
    assert [one.emitted for one in alone.rounds] == [1] * TOKENS
    assert 0 < len(assisted.rounds) <= TOKENS
    arrived = [one.arrived for one in assisted.rounds]
    assert arrived == sorted(arrived)


def test_a_draft_assists_unless_the_library_knows_no_such_thing(target):
    assert can_assist("lookup:")
    assert not can_assist(f"lookup:{target}")
    assert can_assist(f"layers:1:{target}")


def test_what_cannot_be_loaded_is_said(tmp_path):
    with pytest.raises(StartFailed, match="holds neither"), HuggingFace(str(tmp_path), "lookup:", threads=1):
        pass
