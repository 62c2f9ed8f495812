"""Chat templates that would take for ever or gigabytes are refused in a second; those that people have render as before."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.errors import TemplateRefused

USER = [{"role": "user", "content": "Hello."}]
DOUBLE = (
    "{% set ns = namespace(t='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.t = BODY %}{% endfor %}{{ ns.t }}"
)
BOMBS = {
    "loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "loops that skip": "{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% for a in [1, 2] recursive %}{% if loop.depth < 90 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "center": "{{ 'x'.center(3000000000) }}",
    "center filter": "{{ 'x'|center(3000000000) }}",
    "float width": "{{ 'x'|center(3e9|int) }}",
    "named width": "{{ 'x'|center(width=3000000000) }}",
    "ljust": "{{ 'x'.ljust(3000000000) }}",
    "zfill": "{{ 'x'.zfill(3000000000) }}",
    "tabs": "{{ ('\t' * 999999).expandtabs(999999) }}",
    "tojson": "{{ [1, [2]]|tojson(indent=2000000000) }}",
    "separators": "{{ range(9999)|list|tojson(separators=('x' * 999999, 'y')) }}",
    "indent": "{{ 'a\nb'|indent(2000000000) }}",
    "indent lines": "{{ ('a\n' * 99999)|indent(999999) }}",
    "indent text": "{{ ('a\n' * 99999)|indent('x' * 99999) }}",
    "format": "{{ '{:>3000000000}'.format(1) }}",
    "format by width": "{{ '{:>{}}'.format(1, 3000000000) }}",
    "percent": "{{ '%3000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (3000000000, 1) }}",
    "percent filter": "{{ '%3000000000d'|format(1) }}",
    "repeat": "{{ 'x' * 3000000000 }}",
    "repeat list": "{{ ([0] * 3000000000)|length }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "replace": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replace filter": "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "join": "{{ ('b' * 99999).join(('a' * 99999)|list) }}",
    "join filter": "{{ ('a' * 99999)|list|join('b' * 99999) }}",
    "slice": "{{ [1]|slice(3000000000)|list }}",
    "batch": "{{ [1]|batch(3000000000, 0)|list }}",
    "doubled": DOUBLE.replace("BODY", "ns.t ~ ns.t"),
    "doubled by plus": DOUBLE.replace("BODY", "ns.t + ns.t"),
    "doubled by join": DOUBLE.replace("BODY", "[ns.t, ns.t]|join"),
    "doubled by format": DOUBLE.replace("BODY", "'{}{}'.format(ns.t, ns.t)"),
    "doubled by percent": DOUBLE.replace("BODY", "'%s%s' % (ns.t, ns.t)"),
    "list of lists": DOUBLE.replace("BODY", "[ns.t, ns.t]"),
    "object of objects": DOUBLE.replace("BODY", "{'a': ns.t, 'b': ns.t}"),
    "dict of dicts": DOUBLE.replace("BODY", "dict(a=ns.t, b=ns.t)"),
    "squares": DOUBLE.replace("'xxxxxxxxxxxxxxxx'", "99").replace("BODY", "ns.t * ns.t"),
    "namespaces": "{% set a = namespace() %}{% set b = namespace(x=a, y=a) %}{{ b }}",
    "block of text": "{% set ns = namespace(t='x' * 1000) %}{% for i in range(60) %}{% set b %}{{ ns.t }}{{ ns.t }}{% endset %}"
    "{% set ns.t = b %}{% endfor %}{{ ns.t }}",
    "output": "{% for i in range(90000) %}{{ 'x' * 90000 }}{% endfor %}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "compared": "{% set a = 'x' * 3999999 %}{% set b = 'x' * 3999998 ~ 'x' %}{% for i in range(90000) %}"
    + "{{ a == b }}" * 50
    + "{% endfor %}",
    "filtered": "{% for i in range(90000) %}{{ range(90000)|map('string')|map('upper')|select|list|length }}{% endfor %}",
    "source": "{{ 'x' }}" * 100_000,
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "blocks": "{% if 1 %}" * 500 + "{% endif %}" * 500,
}  # fmt: skip
HONEST = {
    "tools": "{% for t in tools or [] %}{{ t|tojson(indent=4) }}\n{% endfor %}{{ messages[-1].content|trim }}",
    "namespace": "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ loop.last }}{% endfor %}{{ ns.n }}",
    "macro": "{% macro part(m, deep=1) %}<{{ m.role }}>{{ m['content'] }}{% endmacro %}{% for m in messages %}"
    "{{ part(m) }}{% endfor %}",
    "strings": "{{ 'a' ~ messages|length ~ ('%05d' % 3) ~ '{}-{:>4}'.format(1, 2) ~ 'b'.ljust(4) ~ '='*8 }}"
    "{{ messages[::-1][0].content.split('l')[-1] }}",
    "dates": "{{ strftime_now('%d %b %Y') }}{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
    "objects": "{{ {'a': [1, 2.5, None], 'b': (1, 2)}|tojson }}{{ messages|map(attribute='role')|join(', ') }}"
    "{{ {'a': 1}.items()|list }}",
    "loops": "{% for m in messages if m.role == 'user' %}"
    "{{ loop.index0 }}{{ loop.previtem is defined }}{% if loop.first %}{% continue %}{% endif %}x{% else %}none{% endfor %}",
    "sets": "{% set s %}a{{ 1 }}{% endset %}{{ s|upper|length }}{{ 2 ** 5 }}{{ 7 // 2 }}{{ 'a' in s }}",
    "unpacked": "{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
}  # fmt: skip


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_template_bomb_is_refused_before_it_takes_time_or_memory(source: str) -> None:
    """One sentence, within seconds, with less memory than a conversation's texts."""
    start = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(TemplateRefused) as refused:
            ChatTemplate(source).render(USER)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
    assert time.thread_time() - start < 12  # tracing makes it several times slower
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_an_honest_template_renders_as_in_jinjas_own_sandbox(source: str) -> None:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from sapo_backends.checkpoints.chat_template import TODAY, to_json

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    plain.filters["tojson"] = to_json
    chat = [*USER, {"role": "assistant", "content": " Hi\n"}, {"role": "user", "content": "ll"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}, "description": "é"}}]
    expected = plain.from_string(source).render(
        messages=chat, tools=tools if "tools" in source else None, strftime_now=TODAY.strftime
    )
    assert ChatTemplate(source).render(chat, tools if "tools" in source else ()).text == expected


def test_a_conversation_of_a_thousand_messages_stays_within_the_budget() -> None:
    source = "{% for m in messages %}{% for word in m.content.split(' ') %}{{ word|trim }} {% endfor %}{% endfor %}"
    chat = [{"role": ("user", "assistant")[i % 2], "content": "some words " * 50} for i in range(1001)]
    assert len(ChatTemplate(source).render(chat).text) > 500_000
