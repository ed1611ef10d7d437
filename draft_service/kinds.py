"""The kinds of draft, told apart by the model's name: a model, ``lookup:`` alone, or ``lookup:MODEL``."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry

from draft_service.drafting import Draft
from draft_service.foresight import Foresight, ForesightedDraft
from draft_service.lookup import Lookups
from draft_service.lookup_drafting import ComposedDraft, LookupDraft, matches, own_and_shared_tokens, own_tokens
from draft_service.settings import DraftSettings
from draft_service.shared_steps import SharedSteps
from specdec.model.causal_lm import CausalLM
from specdec.model.language_model import LanguageModel
from specdec.model.lookup_model import LOOKUP, LookupModel
from specdec.model.refusal import ModelRefused
from specdec.model.static_steps import StaticSteps
from specdec.serving.model_server import load_served_model

# Tokens that a match has at least. After two, what followed before is right in most cases (on answers of SmolLM2 that
# copy, edit or summarise their prompt: 0.90 of 542, after three 0.93 of 501), and alone a lookup has nothing better.
SHORTEST_ALONE = 2
SHORTEST_BEFORE_MODEL = 3


class Drafts(Protocol):
    """Makes drafts of one kind.

    Attributes:
        make: a draft from the fields of a call.
    """

    make: Callable[..., Draft]

    def load(self) -> LanguageModel:
        """Return the model that the engine runs."""

    def drop(self, session_id: str) -> None:
        """Free what is kept of a session beside the engine's cache."""


class ModelDrafts:
    """Drafts of a model.

    Attributes:
        make: see ``Drafts``.
    """

    def __init__(self, settings: DraftSettings, registry: CollectorRegistry) -> None:
        """Draft from the model that the settings name, ahead of the calls too if they say so."""
        self._settings = settings
        self.make: Callable[..., Draft] = Draft
        if settings.ahead_tokens:
            self.make = partial(ForesightedDraft, foresight=Foresight(settings.ahead_tokens, registry))

    def load(self) -> LanguageModel:
        """Load the model."""
        return _load(self._settings)

    def drop(self, session_id: str) -> None:
        """Leave all to the engine."""


class LookupDrafts:
    """Drafts from the sessions' own tokens alone.

    Attributes:
        make: see ``Drafts``.
    """

    def __init__(self, settings: DraftSettings) -> None:
        """Keep lookups within the limits of the caches."""
        self._context_length = settings.cache_tokens
        self._lookups = Lookups(SHORTEST_ALONE, settings.max_sessions, settings.cache_tokens)
        source = partial(own_tokens, self._lookups)
        if settings.lookup_shared:
            source = partial(own_and_shared_tokens, self._lookups, SharedSteps())
        self.make: Callable[..., Draft] = partial(LookupDraft, source=source)

    def load(self) -> LanguageModel:
        """Make the model that is none."""
        return LookupModel(self._context_length)

    def drop(self, session_id: str) -> None:
        """Free a session's lookup."""
        self._lookups.drop(session_id)


class ComposedDrafts:
    """Drafts from the sessions' own tokens first, and from a model where nothing matches.

    Attributes:
        make: see ``Drafts``.
    """

    def __init__(self, settings: DraftSettings) -> None:
        """Keep lookups within the limits of the caches, beside the model that the settings name after ``lookup:``."""
        self._settings = settings
        self._lookups = Lookups(SHORTEST_BEFORE_MODEL, settings.max_sessions, settings.cache_tokens)
        self.make: Callable[..., Draft] = partial(ComposedDraft, source=partial(matches, self._lookups))

    def load(self) -> LanguageModel:
        """Load the model, under the whole name."""
        name = self._settings.model
        model = _load(self._settings.model_copy(update={"model": name.removeprefix(LOOKUP)}))
        model.description = dataclasses.replace(model.description, name=name)
        return model

    def drop(self, session_id: str) -> None:
        """Free a session's lookup."""
        self._lookups.drop(session_id)


def _load(settings: DraftSettings) -> LanguageModel:
    """Load the model that the settings name, with static steps if they say so.

    Raises:
        ModelRefused: it cannot be served, or not with static steps.
    """
    model = load_served_model(settings)
    if not settings.static_steps:
        return model
    if not isinstance(model, CausalLM):
        raise ModelRefused(f"{model.name}: DRAFT_STATIC_STEPS is for models that have weights")
    return StaticSteps(model, settings.cache_tokens)


def drafts_of(settings: DraftSettings, registry: CollectorRegistry) -> Drafts:
    """Return the kind of draft that the model's name asks for."""
    if not settings.model.startswith(LOOKUP):
        return ModelDrafts(settings, registry)
    return LookupDrafts(settings) if settings.model == LOOKUP else ComposedDrafts(settings)
