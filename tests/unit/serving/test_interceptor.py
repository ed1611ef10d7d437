"""What a call that is refused leaves behind."""

import asyncio
import gc
import weakref
from types import SimpleNamespace

import grpc
import pytest

from specdec.errors import InvalidParameter
from specdec.serving.interceptor import CallInterceptor
from specdec.serving.reading import anything_goes


class Request:
    """What is sent."""


class Context:
    """Keeps what it ends a call with, as the contexts of grpc.aio do."""

    def __init__(self):
        self.aborted = None

    def code(self):
        return grpc.StatusCode.INVALID_ARGUMENT

    async def abort_with_status(self, status):
        self.aborted = grpc.aio.AbortError(status.details)
        raise self.aborted


async def refuse(request, context):
    try:
        raise KeyError
    except KeyError as error:
        raise InvalidParameter(f"no {type(request)}") from error


async def refuse_stream(request, context):
    yield await refuse(request, context)


@pytest.mark.parametrize(
    "handler",
    [grpc.unary_unary_rpc_method_handler(refuse), grpc.unary_stream_rpc_method_handler(refuse_stream)],
    ids=["unary", "stream"],
)
async def test_a_request_that_is_refused_does_not_wait_for_the_garbage_collector(handler):
    async def continuation(_):
        return handler

    details = SimpleNamespace(method="/specdec.v1.GenerationService/Generate", invocation_metadata=())
    wrapped = await CallInterceptor(anything_goes).intercept_service(continuation, details)
    request, context = Request(), Context()
    sent = weakref.ref(request)
    call = (wrapped.unary_unary or wrapped.unary_stream)(request, context)
    del request
    gc.disable()
    try:
        await asyncio.gather(call, return_exceptions=True)
        assert context.aborted is not None
        assert sent() is None
    finally:
        gc.enable()
