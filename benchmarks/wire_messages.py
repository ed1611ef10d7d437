"""The messages of a round as a coordinator sends and gets them, called directly, to weigh them one by one."""

import statistics
from collections.abc import Sequence
from typing import Any

import grpc

from benchmarks.recording import CALL_SECONDS
from specdec.fence import Fence
from specdec.parameters import SamplingParams, Verification
from specdec.prefix import CommittedPrefix, PrefixDigest
from specdec.v1 import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from specdec.wire import params_to_message, prefix_to_message, verification_to_message

FENCE = Fence(counter=1, owner="0123456789abcdef" * 2)


class Peer:
    """A model server, and what it has said it holds of the session."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.cached_length = 0
        self._digest = PrefixDigest()

    def prefix(self, session_id: str, committed: Sequence[int], prompt_length: int) -> Any:
        """Name the committed tokens from what it holds on."""
        start = min(self.cached_length, len(committed))
        self._digest.update(committed[self._digest.length : start])
        tokens = tuple(committed[start:])
        return prefix_to_message(
            CommittedPrefix(session_id, FENCE, start, self._digest.digest(), tokens, prompt_length)
        )


def weigh(draft: str, target: str, prompt: Sequence[int], gamma: int, rounds: int) -> dict[str, float]:
    """Run rounds of one session and weigh their messages; the first round, which carries the prompt, does not count.

    Args:
        draft: address of the draft.
        target: address of the target.
        prompt: token ids.
        gamma: draft tokens a round.
        rounds: that count.

    Returns:
        Mean bytes by message, serialised.
    """
    session_id = f"weighed-{len(prompt)}-{gamma}"
    params = params_to_message(SamplingParams(temperature=1.0, seed=1, ignore_eos=True))
    verification = verification_to_message(Verification.BLOCK)
    committed, peers = list(prompt), (Peer(), Peer())
    sizes: dict[str, list[int]] = {}
    with grpc.insecure_channel(draft) as drafts, grpc.insecure_channel(target) as targets:
        propose = draft_pb2_grpc.DraftServiceStub(drafts).Propose
        verify = target_pb2_grpc.TargetServiceStub(targets).Verify
        for number in range(rounds + 1):
            to_draft, to_target = (peer.prefix(session_id, committed, len(prompt)) for peer in peers)
            asked = draft_pb2.ProposeRequest(
                prefix=to_draft, sampling_params=params, gamma=gamma, verification=verification
            )
            drafted = propose(asked, timeout=CALL_SECONDS)
            claim = target_pb2.VerifyRequest(
                prefix=to_target, sampling_params=params, verification=verification, proposal=drafted.proposal
            )
            verdict = verify(claim, timeout=CALL_SECONDS)
            if number:
                for message in (asked, drafted, claim, verdict):
                    sizes.setdefault(type(message).__name__, []).append(message.ByteSize())
            peers[0].cached_length, peers[1].cached_length = drafted.cached_length, verdict.cached_length
            committed += [*drafted.proposal.draft_tokens[: verdict.accept_index], verdict.next_token]
    return {name: statistics.fmean(found) for name, found in sizes.items()}
