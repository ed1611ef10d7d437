"""Settings of the target service: environment TARGET_* and flags of the same names."""

from pydantic_settings import SettingsConfigDict

from specdec.serving.model_server import ModelServerSettings
from specdec.serving.settings import Port


class TargetSettings(ModelServerSettings):
    """What the target service can be told."""

    model_config = SettingsConfigDict(env_prefix="TARGET_")

    port: Port = 50053
    """Port for calls; 0 takes any free one."""
