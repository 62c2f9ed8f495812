"""Tokenizers and chat templates as others make them."""

from __future__ import annotations

import pytest

from sapo_backends.base import TemplateRefused
from sapo_backends.checkpoints.chat_template import ChatTemplate


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ '{0}'.format() }}", "{{ 'x'.encode('foo') }}"])
def test_a_template_that_divides_by_zero_is_refused(template: str) -> None:
    """As every other mistake in one is."""
    with pytest.raises(TemplateRefused, match="template failed"):
        ChatTemplate(template).render([{"role": "user", "content": "hi"}])
