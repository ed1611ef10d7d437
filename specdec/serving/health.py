"""Health as others ask for it or follow it (grpc.health.v1); none of them can hold up who tells it.

The servicer of the grpc_health package writes to whoever follows under a lock that telling needs, too: one that does
not read what it is sent would stop the process from saying anything, for ever.
"""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """Answers what was told last."""

    def __init__(self) -> None:
        """Know of no service."""
        self._told: dict[str, int] = {}
        self._changed = asyncio.Event()  # another one after each change

    def tell(self, service: str, status: int) -> None:
        """Say how a service is from now on."""
        self._told[service] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        """Say how a service is."""
        if request.service not in self._told:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=self._told[request.service])

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """Say how a service is, and again when that has changed; what has changed back meanwhile is left out."""
        last = None
        while True:
            changed, status = self._changed, self._told.get(request.service, _UNKNOWN)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            await changed.wait()
