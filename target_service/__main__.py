"""Run the target service: ``python -m target_service --model PATH``."""

import asyncio
import sys

from prometheus_client import CollectorRegistry

from specdec.serving.model_server import run_model_server
from specdec.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide


def main() -> None:
    """Read the settings and serve until SIGTERM or SIGINT."""
    settings = TargetSettings.load(sys.argv[1:])
    registry = CollectorRegistry()
    servicer = TargetServicer(settings, registry)
    asyncio.run(
        run_model_server("specdec-target", settings, servicer, registry, add_TargetServiceServicer_to_server, decide)
    )


if __name__ == "__main__":
    main()
