"""Run the draft service: ``python -m draft_service --model PATH``."""

import sys

import uvloop
from prometheus_client import CollectorRegistry
from torch import distributed

from draft_service.drafting import draw
from draft_service.servicer import DraftServicer
from draft_service.settings import DraftSettings
from specdec.serving.model_server import run_model_server
from specdec.v1.draft_pb2_grpc import add_DraftServiceServicer_to_server


def main() -> None:
    """Read the settings and serve until SIGTERM or SIGINT."""
    settings = DraftSettings.load(sys.argv[1:])
    if distributed.is_torchelastic_launched():  # every process would serve a draft of its own, on one port
        sys.exit("a draft runs in one process: start it without torchrun")
    registry = CollectorRegistry()
    servicer = DraftServicer(settings, registry)
    uvloop.run(
        run_model_server("specdec-draft", settings, servicer, registry, add_DraftServiceServicer_to_server, draw)
    )


if __name__ == "__main__":
    main()
