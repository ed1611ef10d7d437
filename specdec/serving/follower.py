"""What a process does that holds a share of a model which another one serves: no port, no metrics, only passes."""

import signal

import structlog

from specdec.model.loading import load_share
from specdec.model.ranks import LeaderLost, Ranks
from specdec.model.refusal import ModelRefused
from specdec.model.tensor_parallel import follow
from specdec.serving import telemetry
from specdec.serving.model_server import ModelServerSettings

logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


def run_follower(name: str, settings: ModelServerSettings, ranks: Ranks) -> None:
    """Load a share of the model and run the leader's passes until it says that it is over.

    Signals that ask for an end are for the leader: it still answers the running calls, and needs this process for it.

    Args:
        name: of the service, for logs.
        settings: as read at start, the same in every process.
        ranks: the processes of the model; another one leads.

    Raises:
        SystemExit: the model cannot be served, or the leader is gone; the reason is logged.
    """
    telemetry.configure(name, settings.log_level)
    logger.info("loading", model=settings.model, rank=ranks.number)
    try:
        model = load_share(settings.model, settings.device, settings.dtype, settings.quantization, ranks.count)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        logger.info("following", rank=ranks.number)
        follow(model, ranks)
    except (ModelRefused, LeaderLost) as error:
        logger.error("follower ends", model=settings.model, rank=ranks.number, why=str(error))
        raise SystemExit(1) from None
    logger.info("stopped", rank=ranks.number)
