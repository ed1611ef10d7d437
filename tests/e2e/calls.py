"""Calls of a running system, as any client makes them."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from client.failures import RequestFailed, from_rpc_error
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.channels import NOTHING_AHEAD

SECONDS = 900  # the long forms ask eight at once of a model that does a few tokens a second


class Caller:
    """A client of one coordinator."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=NOTHING_AHEAD)
        self.stub = generation_pb2_grpc.GenerationServiceStub(self.channel)

    def stream(self, *, traceparent: str = "", **request):
        """Begin an answer; what is returned gives its events and can be cancelled."""
        metadata = (("traceparent", traceparent),) if traceparent else ()
        return self.stub.Generate(generation_pb2.GenerateRequest(**request), timeout=SECONDS, metadata=metadata)

    def events(self, **request) -> list[generation_pb2.GenerateResponse]:
        """Return all events of an answer, after the checks that hold for every stream."""
        events = list(self.stream(**request))
        assert [bool(event.finish_reason) for event in events] == [False] * (len(events) - 1) + [True]
        assert len({event.session_id for event in events}) == 1
        index = request.get("resume_from", 0)
        for event in events:
            if event.token_ids:
                assert event.index == index
            assert len(event.token_ids) == len(event.sources)
            index += len(event.token_ids)
        return events

    def tokens(self, **request) -> list[int]:
        """Return the token ids of an answer."""
        return token_ids_of(self.events(**request))

    def refusal(self, **request) -> RequestFailed:
        """Return why a request is refused."""
        try:
            events = list(self.stream(**request))
        except grpc.RpcError as error:
            return from_rpc_error(error, self.address)
        raise AssertionError(f"answered: {events}")

    def session(self, session_id: str) -> generation_pb2.GetSessionResponse:
        """Look at a session."""
        return self.stub.GetSession(generation_pb2.GetSessionRequest(session_id=session_id), timeout=SECONDS)

    def tokens_of_all(self, requests) -> list[list[int]]:
        """Return the answers to several requests that run at once."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(lambda request: self.tokens(**request), requests))


def text_of(events) -> str:
    """Return the text of an answer."""
    return "".join(event.text for event in events)


def token_ids_of(events) -> list[int]:
    """Return the tokens of an answer."""
    return [token for event in events for token in event.token_ids]
