"""Run the target service: ``python -m target_service --model PATH``, or by torchrun over several GPUs."""

import sys

import uvloop
from prometheus_client import CollectorRegistry

from specdec.model.ranks import Ranks, joined_ranks
from specdec.serving.follower import run_follower
from specdec.serving.model_server import run_model_server
from specdec.v1.target_pb2_grpc import add_TargetServiceServicer_to_server
from target_service.servicer import TargetServicer
from target_service.settings import TargetSettings
from target_service.verifying import decide

NAME = "specdec-target"


def main() -> None:
    """Read the settings and serve until SIGTERM or SIGINT; of several processes the first one serves."""
    settings = TargetSettings.load(sys.argv[1:])
    with joined_ranks() as ranks:
        if ranks.leads:
            _serve(settings, ranks)
        else:
            run_follower(NAME, settings, ranks)


def _serve(settings: TargetSettings, ranks: Ranks) -> None:
    registry = CollectorRegistry()
    servicer = TargetServicer(settings, registry, ranks)
    uvloop.run(run_model_server(NAME, settings, servicer, registry, add_TargetServiceServicer_to_server, decide))


if __name__ == "__main__":
    main()
