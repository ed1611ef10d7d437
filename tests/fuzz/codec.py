"""Fuzzes the codec: whatever bytes come, a value or an error that names the field. ``python -m tests.fuzz.codec``."""

from google.protobuf.message import DecodeError

from specdec.errors import InvalidParameter, InvalidProposal
from specdec.parameters import Verification
from specdec.v1 import common_pb2, target_pb2
from specdec.wire import (
    fence_from_message,
    params_from_message,
    params_to_message,
    prefix_from_message,
    prefix_to_message,
    proposal_from_message,
    proposal_to_message,
    verification_from_message,
)
from tests.hostile_messages import is_field

REQUEST = target_pb2.VerifyRequest.DESCRIPTOR


def fuzz(data: bytes) -> None:
    """Read bytes as each of the messages that the services decode; what is read is written the same."""
    for read in (_prefix, _params, _proposal, _fence, _verification):
        try:
            read(data)
        except DecodeError:
            pass
        except (InvalidParameter, InvalidProposal) as error:
            if not is_field(REQUEST, error.field):
                raise


def _prefix(data: bytes) -> None:
    prefix = prefix_from_message(common_pb2.CommittedPrefix.FromString(data))
    assert prefix_from_message(prefix_to_message(prefix)) == prefix


def _params(data: bytes) -> None:
    params = params_from_message(common_pb2.SamplingParams.FromString(data))
    assert params_from_message(params_to_message(params)) == params


def _proposal(data: bytes) -> None:
    message = common_pb2.Proposal.FromString(data)
    for verification in (Verification.TOKEN,) if message.draft_distributions else Verification:
        proposal = proposal_from_message(message, verification)
        assert proposal_from_message(proposal_to_message(proposal), verification) == proposal


def _fence(data: bytes) -> None:
    fence_from_message(common_pb2.Fence.FromString(data), "prefix.fence")


def _verification(data: bytes) -> None:
    verification_from_message(target_pb2.VerifyRequest.FromString(data).verification)


if __name__ == "__main__":
    from tests.fuzz.coverage_guided import run

    run(fuzz, ["specdec.wire", "specdec.parameters"])
