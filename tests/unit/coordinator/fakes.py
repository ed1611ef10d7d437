"""A draft, a target and a store in memory for the loop: the target's text is fixed, the draft knows it or not."""

import asyncio
from collections import defaultdict
from dataclasses import replace

from coordinator.answer import Answer
from coordinator.experience import Experience
from coordinator.gamma import policy_of
from coordinator.generation import Generation, Parties
from coordinator.rounds import Drafted, Fallback, Verdict
from coordinator.session import Session, Speculation, Usage
from coordinator.text import ByteDetokenizer, TextStream
from specdec.errors import StaleFence
from specdec.fence import Fence
from specdec.parameters import SamplingParams

EOS = 300
WRONG = 299


class Timeline:
    """What happened in which order, and gates that keep it from happening."""

    def __init__(self):
        self.events = []
        self.gates = {}
        self.passed = defaultdict(asyncio.Event)

    async def pass_by(self, name):
        self.events.append(name)
        self.passed[name].set()
        if name in self.gates:
            await self.gates[name].wait()

    def hold(self, name):
        self.gates[name] = asyncio.Event()

    async def reached(self, name):
        await self.passed[name].wait()


class FakeTarget:
    """Wants ``text`` after the prompt; keeps the draft tokens that agree with it."""

    def __init__(self, timeline, text, prompt_length):
        self.timeline, self.text, self.prompt_length = timeline, text, prompt_length
        self.errors = {}
        self.max_gamma = 16

    async def verify(self, session, proposal):
        base = session.length - self.prompt_length
        await self.timeline.pass_by(f"verify {base}")
        if errors := self.errors.get(base):
            raise errors.pop()
        tokens = proposal or []
        kept = 0
        while kept < len(tokens) and tokens[kept] == self.text[base + kept]:
            kept += 1
        logprobs = [f"logprob {base + index}" for index in range(kept + 1)]
        return Verdict(kept, self.text[base + kept], reused_length=99, logprobs=logprobs)


class FakeDraft:
    """Proposes the target's text, wrong from the ``wrong_at``-th draft token on."""

    def __init__(self, timeline, text, prompt_length, wrong_at=99):
        self.timeline, self.text, self.prompt_length, self.wrong_at = timeline, text, prompt_length, wrong_at
        self.fallback = None
        self.errors = []
        self.asked = []

    async def propose(self, session, gamma, min_survival):
        base = session.length - self.prompt_length
        await self.timeline.pass_by(f"propose {base}")
        self.asked.append(gamma)
        if self.errors:
            raise self.errors.pop()
        if self.fallback:
            return Drafted(fallback=self.fallback)
        tokens = self.text[base : base + gamma]
        tokens = [token if index < self.wrong_at else WRONG for index, token in enumerate(tokens)]
        return Drafted(tokens, tokens)


class FakeStore:
    """Keeps what is committed under the highest fence."""

    def __init__(self, timeline, session):
        self.timeline = timeline
        self.fence = session.fence
        self.tokens = list(session.tokens)
        self.finish_reason = None
        self.left = False
        self.errors = []

    async def commit(self, session):
        tokens, finish = list(session.tokens), session.finish_reason
        await self.timeline.pass_by(f"commit {len(tokens) - session.prompt_length}")
        if self.errors:
            raise self.errors.pop()
        if session.fence != self.fence:
            raise StaleFence("taken over")
        self.tokens, self.finish_reason = tokens, finish

    async def renew(self, session):
        await self.timeline.pass_by("renew")
        if session.fence != self.fence:
            raise StaleFence("taken over")

    async def leave(self, session):
        await self.timeline.pass_by("leave")
        self.left = True

    async def resume(self, session_id, principal, owner, *, above):
        self.fence = Fence(max(above, self.fence.counter) + 1, owner)
        return Session(session_id, principal, self.fence, [], bytearray(), 0, SamplingParams(), Speculation(), "")


class World:
    """One answer with everything it needs."""

    def __init__(self, text, *, gamma=4, stops=(), max_new_tokens=100, wrong_at=99, renew_seconds=60.0, patience=0.0):
        prompt = [1, 2, 3]
        wanted = [*(text.encode() if isinstance(text, str) else text), *b"what would follow"]
        self.timeline = Timeline()
        self.session = Session(
            "s", "", Fence(1, "0" * 32), list(prompt), bytearray(3), 3, SamplingParams(), Speculation(), "m",
            usage=Usage(prompt_tokens=3),
        )  # fmt: skip
        self.store = FakeStore(self.timeline, self.session)
        self.target = FakeTarget(self.timeline, wanted, 3)
        self.draft = FakeDraft(self.timeline, wanted, 3, wrong_at)
        self.answer = Answer(
            TextStream(ByteDetokenizer(lambda token: bytes([token]) if token < 256 else b""), stops),
            stop_ids={EOS},
            limit=max_new_tokens,
            token_text=lambda token: f"<{token}>",
        )
        parties = Parties(self.draft, self.target, self.store, self.rest, renew_seconds, patience)
        self.generation = Generation(
            self.session, self.answer, parties, policy_of(gamma, Experience(), shared=False), 16
        )
        self.shown = []

    async def show(self, event):
        assert self.store.tokens[3 + event.index : 3 + event.index + len(event.token_ids)] == list(event.token_ids)
        await self.timeline.pass_by(f"show {event.index + len(event.token_ids)}")
        usage = event.ending and replace(event.ending, usage=replace(event.ending.usage))
        self.shown.append(replace(event, ending=usage))

    async def rest(self, session):
        await self.timeline.pass_by(f"rest {session.length - 3}")

    async def run(self):
        await self.generation.run(self.show)

    @property
    def text(self):
        return "".join(text for event in self.shown for text in event.texts)

    @property
    def tokens(self):
        return [token for event in self.shown for token in event.token_ids]

    @property
    def sources(self):
        return "".join(source.name[0] for event in self.shown for source in event.sources)


__all__ = ["EOS", "WRONG", "Fallback", "World"]
