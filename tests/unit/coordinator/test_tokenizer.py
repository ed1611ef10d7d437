"""Tokenizers of both kinds: encoding, chat templates, pieces that are exactly the tokenizer's text."""

import asyncio
import random
import subprocess
import sys

import huggingface_hub
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from coordinator.text import TextStream
from coordinator.tokenizer import ModelTokenizer, load_tokenizer
from specdec.errors import InvalidParameter

CHATML = (
    "{% for message in messages %}{% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
INSTRUCT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST]' + message['content'] + '[/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
TEXTS = ["the cat sat on the mat", "über 🙂 naïve", "user assistant system", "one\ntwo  three"]


def byte_level():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 20, trainer)
    backend.add_tokens([AddedToken("    ", normalized=False), AddedToken("é🙂", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=CHATML)


def byte_fallback():
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    for piece in ["▁", "▁a", "a", "b", "▁the", "[", "]", "IN", "ST", "/", "h", "i", "€"]:
        vocabulary[piece] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=INSTRUCT)


COMMIT = "0" * 40
MAKERS = {"byte level": byte_level(), "byte fallback": byte_fallback()}


@pytest.fixture(params=list(MAKERS))
def raw(request):
    return MAKERS[request.param]


@given(name=st.sampled_from(list(MAKERS)), data=st.data())
def test_pieces_concatenate_to_what_the_tokenizer_adds_to_other_text(name, data):
    raw = MAKERS[name]
    tokens = data.draw(st.lists(st.integers(0, len(raw) + 5), max_size=40))
    stream = TextStream(ModelTokenizer(raw).detokenizer())
    text = "".join(stream.feed(token) for token in tokens) + stream.finish()
    before = raw.backend_tokenizer.encode("a", add_special_tokens=False).ids
    whole = raw.decode(before + tokens, skip_special_tokens=True)
    assert text == whole[len(raw.decode(before)) :]


@pytest.fixture
def threads_that_only_yield_of_themselves():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("threads_that_only_yield_of_themselves")
async def test_the_loop_goes_on_while_a_long_text_is_encoded():
    tokenizer, at_work = ModelTokenizer(MAKERS["byte level"]), []
    text = "".join(random.Random(1).choices("abcdefgh ", k=2**17))

    def encode():
        at_work.append(True)
        tokens = tokenizer.encode(text, begin=True)
        at_work.clear()
        return tokens

    turns = 0
    for _ in range(20):  # on a busy machine the loop may have to wait for as long as a text takes
        encoding = asyncio.create_task(asyncio.to_thread(encode))
        while not encoding.done():
            turns += bool(at_work)
            await asyncio.sleep(0)
        if turns:
            break
    assert turns
    assert await encoding == MAKERS["byte level"].encode(text)


@pytest.mark.parametrize(("name", "longest"), [("byte level", 12), ("byte fallback", 6)])
def test_the_longest_token_is_measured_in_bytes(name, longest):
    assert ModelTokenizer(MAKERS[name]).longest_token == longest


def test_plain_text_gets_the_tokenizers_special_tokens_once():
    tokenizer = ModelTokenizer(MAKERS["byte fallback"])
    assert tokenizer.encode("a", begin=True)[0] == 1
    assert 1 not in tokenizer.encode("a", begin=False)


def test_the_template_is_applied_once_and_adds_the_generation_prompt():
    raw = MAKERS["byte level"]
    messages = [{"role": "user", "content": "the cat"}]
    ids = ModelTokenizer(raw).encode_chat(messages, [])
    assert raw.decode(ids) == "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"


def test_a_first_chat_has_one_beginning_of_sequence():
    ids = ModelTokenizer(MAKERS["byte fallback"]).encode_chat([{"role": "user", "content": "hi"}], [])
    assert ids.count(1) == 1


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", list(MAKERS))
def test_a_continuation_equals_the_whole_conversation_rendered_at_once(name, closed):
    raw = MAKERS[name]
    tokenizer = ModelTokenizer(raw)
    first = [{"role": "user", "content": "the cat"}]
    answer = " a the" if name == "byte fallback" else "sat on"
    committed = tokenizer.encode_chat(first, []) + raw.backend_tokenizer.encode(answer, add_special_tokens=False).ids
    if closed:
        committed.append(raw.eos_token_id)
    more = [{"role": "user", "content": "b"}]
    text = raw.decode(committed + tokenizer.encode_chat(more, committed))
    spoken = answer.strip() if name == "byte fallback" else answer
    conversation = [*first, {"role": "assistant", "content": spoken}, *more]
    whole = raw.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text.replace(" ", "") == whole.replace(" ", "")


def test_what_the_template_refuses_names_the_field():
    with pytest.raises(InvalidParameter, match="no tools") as caught:
        ModelTokenizer(MAKERS["byte level"]).encode_chat([{"role": "tool", "content": "x"}], [])
    assert caught.value.field == "messages"


def test_what_a_template_says_with_words_of_the_messages_is_not_repeated():
    raw = byte_level()
    raw.chat_template = "{{ raise_exception('cannot read ' + messages[0]['content']) }}"
    with pytest.raises(InvalidParameter, match=r"refuses the messages$") as caught:
        ModelTokenizer(raw).encode_chat([{"role": "user", "content": "secret"}], [])
    assert caught.value.__suppress_context__


def test_without_a_template_messages_are_refused():
    for tokenizer in (
        load_tokenizer("bytes"),
        ModelTokenizer(
            PreTrainedTokenizerFast(
                tokenizer_object=MAKERS["byte level"].backend_tokenizer,
            )
        ),
    ):
        with pytest.raises(InvalidParameter) as caught:
            tokenizer.encode_chat([{"role": "user", "content": "x"}], [])
        assert caught.value.field == "messages"


def test_the_text_of_a_special_token_can_be_named(raw):
    tokenizer = ModelTokenizer(raw)
    assert tokenizer.token_text(raw.eos_token_id) == raw.eos_token
    assert tokenizer.detokenizer().feed(raw.eos_token_id) == ""


def test_the_coordinators_process_holds_no_torch(tmp_path):
    MAKERS["byte level"].save_pretrained(tmp_path)
    program = (
        "import sys\n"
        "import coordinator.__main__\n"
        "from coordinator.tokenizer import load_tokenizer\n"
        f"tokenizer = load_tokenizer({str(tmp_path)!r})\n"
        "ids = tokenizer.encode_chat([{'role': 'user', 'content': 'hi'}], [])\n"
        "detokenizer = tokenizer.detokenizer()\n"
        "print(''.join(detokenizer.feed(token) for token in ids), 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "user\nhi\nassistant\n False\n"


@pytest.mark.parametrize("source", [f"owner/tiny@{COMMIT}", "owner/tiny"])
def test_a_hub_id_is_loaded_at_its_revision(tmp_path, monkeypatch, source):
    saved = tmp_path / "models--owner--tiny"
    MAKERS["byte level"].save_pretrained(saved / "snapshots" / COMMIT)
    (saved / "refs").mkdir()
    (saved / "refs" / "main").write_text(COMMIT if "@" not in source else "1" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert load_tokenizer(source).encode("the cat", begin=True) == MAKERS["byte level"].encode("the cat")


def test_a_folder_may_have_an_at_sign(tmp_path):
    folder = tmp_path / "tokenizer@home"
    MAKERS["byte level"].save_pretrained(folder)
    assert load_tokenizer(str(folder)).encode("the cat", begin=True) == MAKERS["byte level"].encode("the cat")
