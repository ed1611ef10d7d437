"""Settings of the draft service: environment DRAFT_* and flags of the same names."""

import dataclasses
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.model.engine import EngineLimits
from specdec.model.lookup_model import LOOKUP
from specdec.serving.model_server import ModelServerSettings
from specdec.serving.settings import Port


class DraftSettings(ModelServerSettings):
    """What the draft service can be told."""

    model_config = SettingsConfigDict(env_prefix="DRAFT_")

    model: Annotated[str, Field(min_length=1)]
    """Model to serve, named as for the target; or lookup: (what followed before), or lookup:MODEL (then that model)."""
    port: Port = 50052
    """Port for calls; 0 takes any free one."""
    support_size: Annotated[int, Field(ge=1, le=1024)] = 64
    """Tokens that a draft distribution is cut to before the draw (k)."""
    lookup_shared: bool = False
    """With lookup: alone, learn from the answers of all sessions together. It leaks text from one session to others."""

    ahead_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens of a pass that drafts ahead while no call waits; 0 is off. Not with lookup:, which costs too little."""
    static_steps: bool = False
    """Replay draft steps as CUDA graphs, with room for DRAFT_CACHE_TOKENS taken at the start; a CPU gains nothing."""

    @property
    def engine_limits(self) -> EngineLimits:
        """What the engine may take."""
        return dataclasses.replace(super().engine_limits, ahead_tokens=self.ahead_tokens)

    @model_validator(mode="after")
    def _shared_by_a_lookup_alone(self) -> Self:
        if self.lookup_shared and self.model != LOOKUP:
            raise ValueError(f"DRAFT_LOOKUP_SHARED is for DRAFT_MODEL={LOOKUP} alone")
        return self

    @model_validator(mode="after")
    def _steps_of_a_model(self) -> Self:
        if self.static_steps and self.model == LOOKUP:
            raise ValueError(f"DRAFT_STATIC_STEPS is not for DRAFT_MODEL={LOOKUP}: a lookup runs no model")
        return self

    @model_validator(mode="after")
    def _ahead_of_a_model(self) -> Self:
        if self.ahead_tokens and self.model.startswith(LOOKUP):
            raise ValueError(f"DRAFT_AHEAD_TOKENS is not for DRAFT_MODEL={LOOKUP}…: a lookup needs no idle time")
        if self.ahead_tokens > self.max_batch_tokens:
            raise ValueError(f"DRAFT_AHEAD_TOKENS must be at most DRAFT_MAX_BATCH_TOKENS, {self.max_batch_tokens}")
        return self
