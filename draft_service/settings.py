"""Settings of the draft service: environment DRAFT_* and flags of the same names."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specdec.serving.model_server import ModelServerSettings
from specdec.serving.settings import Port


class DraftSettings(ModelServerSettings):
    """What the draft service can be told."""

    model_config = SettingsConfigDict(env_prefix="DRAFT_")

    port: Port = 50052
    """Port for calls; 0 takes any free one."""
    support_size: Annotated[int, Field(ge=1, le=1024)] = 64
    """Tokens that a draft distribution is cut to before the draw (k)."""
