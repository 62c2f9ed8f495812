"""A model behind OpenAI's chat completions, for other programs on this machine."""

from sapo_desktop.services.models.endpoint.answering import Answering
from sapo_desktop.services.models.endpoint.server import Endpoint, read_or_make

__all__ = ["Answering", "Endpoint", "read_or_make"]
