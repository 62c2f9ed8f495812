"""One tokenizer for every engine, read from a Hugging Face folder without transformers.

Text that comes from a question or another node never becomes a control token: `encode_text` has special-token
splitting off, and `encode_chat` checks that the chat template's own control tokens are the only ones.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sapo_backends.base import Thinking, TokenIds
from sapo_backends.checkpoints.locate import require_tokenizer
from sapo_backends.checkpoints.spec import require_file_size
from sapo_backends.errors import BackendError, ModelNotFound

if TYPE_CHECKING:
    import tokenizers

Json = dict[str, Any]
CACHED_WORDS = 256
"""How many words' pieces a tokenizer caches. Its library keeps the first 10,000 that it meets: with questions full of
unique long words (4 KB for a program), a node grew by 7 MB an hour, for hours. A larger cache does not speed up
encoding."""

MOST_ADDED = 1 << 20
"""Maximum total characters of the tokens added beside the vocabulary. They become patterns, which took 20 s and 2.8 GB
for a tokenizer with 10 MB of them; real models have some 100,000."""


def read_json(path: Path) -> Json:
    """The object in a JSON file, or {} if there is no such file. Raises ModelNotFound if it is damaged."""
    if not path.is_file():
        return {}
    require_file_size(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise ModelNotFound(f"{path} cannot be read: {error}. Copy or download the model again.") from error
    if not isinstance(value, dict):
        raise ModelNotFound(f"{path} does not hold a JSON object. Copy or download the model again.")
    return value


def _text(token: object) -> str | None:
    """A token's text: tokenizer_config.json writes either the text itself or {"content": text}."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _ids(value: object) -> list[int]:
    return [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)]


def _embedded(folder: Path) -> int:
    """Number of tokens that the model has embeddings for. A token beyond them stands for a byte that the vocabulary
    lacks, and is left out."""
    config = read_json(folder / "config.json")
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) and size > 0 else sys.maxsize


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the texts, longest first; None if there are none."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _without_first_space(data: Json) -> Json:
    """The tokenizer for text after a control token, where a space is inserted only at the beginning of a text."""
    pre = data.get("pre_tokenizer") or {}
    return (
        {**data, "pre_tokenizer": {**pre, "prepend_scheme": "never"}} if pre.get("prepend_scheme") == "first" else data
    )


@contextmanager
def _damage_in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        raise ModelNotFound(
            f"{folder}: its tokenizer is damaged ({reason}). Copy or download the model again."
        ) from error


@dataclass(frozen=True, slots=True)
class _Specials:
    """Control tokens of a model folder, as texts and ids."""

    bos: str
    eos: str
    eos_ids: tuple[int, ...]
    pad_id: int


def _specials(folder: Path, settings: Json, ids: Mapping[str, int]) -> _Specials:
    """End-of-sequence ids from all three places that may name them; the first one also serves as padding."""
    generation, config = read_json(folder / "generation_config.json"), read_json(folder / "config.json")
    eos_text = _text(settings.get("eos_token")) or ""
    end_ids = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
    if eos_text in ids:
        end_ids.append(ids[eos_text])
    eos = tuple(dict.fromkeys(end_ids))
    if not eos:
        raise ModelNotFound(f"{folder} names no end-of-sequence token; completions would never end.")
    pad_text = _text(settings.get("pad_token")) or ""
    pad = ids[pad_text] if pad_text in ids else next(iter(_ids(config.get("pad_token_id"))), eos[0])
    return _Specials(_text(settings.get("bos_token")) or "", eos_text, eos, pad)


class HfTokenizer:
    """Text to ids and back from `tokenizer.json`. Satisfies sapo_backends.base.Tokenizer."""

    def __init__(self, folder: Path, thinking: Thinking = "auto") -> None:
        """thinking: see base.LoadRequest. Raises ModelNotFound if the folder holds no usable tokenizer."""
        require_tokenizer(folder)
        with _damage_in_words(folder):
            self._open(folder, thinking)

    def _open(self, folder: Path, thinking: Thinking) -> None:
        import tokenizers  # with jinja2, a third of the time of a command that only reads a config.json

        from sapo_backends.checkpoints.chat_template import ChatTemplate

        data = read_json(folder / "tokenizer.json")
        settings = read_json(folder / "tokenizer_config.json")
        added = {t["content"]: int(t["id"]) for t in data.get("added_tokens", [])}
        if (spelled := sum(map(len, added))) > MOST_ADDED:
            raise ModelNotFound(
                f"{folder / 'tokenizer.json'} has added tokens of {spelled:,} characters, and at most {MOST_ADDED:,} are read. "
                "Copy or download the model again, or choose another."
            )
        vocabulary = data.get("model", {}).get("vocab", {})
        ids = {**vocabulary, **added} if isinstance(vocabulary, dict) else added
        special = _specials(folder, settings, ids)
        self._eos_ids, self._pad_id = special.eos_ids, special.pad_id
        for token in data.get("added_tokens", []):  # an end-of-sequence token is a control token even if unmarked
            token["special"] = bool(token.get("special")) or int(token["id"]) in special.eos_ids
        control = [t for t in data.get("added_tokens", []) if t["special"]]
        self._control = {int(t["id"]): str(t["content"]) for t in control}
        self._eats = {side: {int(t["id"]) for t in control if t.get(side)} for side in ("lstrip", "rstrip")}
        try:
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(data))
            inner = _without_first_space(data)
            self._inner = tokenizers.Tokenizer.from_str(json.dumps(inner)) if inner is not data else self._plain
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the Rust library raises bare Exception, and its panics are not even that
            reason = " ".join(str(error).split())[:200]
            raise ModelNotFound(f"{folder / 'tokenizer.json'} is not a tokenizer: {reason}") from error
        for tokenizer in (self._plain, self._inner):
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True
            if hasattr(tokenizer.model, "_resize_cache"):
                tokenizer.model._resize_cache(CACHED_WORDS)
        self._embedded = _embedded(folder)
        self._last = max([len(vocabulary) - 1, *ids.values()])  # not the number of tokens: a vocabulary may have gaps
        self._template = ChatTemplate.read(folder, settings, bos=special.bos, eos=special.eos, thinking=thinking)
        self._opening = self._beginning(ids.get(special.bos), settings) if self._template.is_plain else []
        self._split = _any_of(self._control.values())
        normaliser = self._plain.normalizer
        self._normalised = normaliser.normalize_str if normaliser else str
        self._split_normalised = _any_of(map(self._normalised, self._control.values())) if normaliser else None

    def _beginning(self, bos: int | None, settings: Json) -> list[int]:
        """What precedes every text of a base model: what its tokenizer itself puts there, else the configured BOS token
        unless add_bos_token is false."""
        whole, alone = (self._plain.encode("a", add_special_tokens=added).ids for added in (True, False))
        written = next((i for i in range(len(whole)) if whole[i : i + len(alone)] == alone), 0)
        named = [bos] if bos is not None and settings.get("add_bos_token") is not False else []
        return whole[:written] or named

    @property
    def opening(self) -> TokenIds:
        """Ids that precede every text of a base model."""
        return self._opening

    @property
    def opening_text(self) -> str:
        """The spelling of `opening`."""
        return "".join(str(self._plain.id_to_token(i)) for i in self._opening)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a completion."""
        return self._eos_ids

    @cached_property
    def eot_id(self) -> int:
        """See Tokenizer.eot_id."""
        try:
            behind = self._encode_parts(self._template.reply("", roles=("user",)))
        except BackendError:  # the template takes only one turn
            behind = []
        return next((i for i in behind if i in self._eos_ids), self._eos_ids[0])

    @property
    def opens_reasoning(self) -> bool:
        """See Tokenizer.opens_reasoning."""
        return self._template.opens_reasoning

    @property
    def pad_id(self) -> int:
        """The id that pads shorter rows."""
        return self._pad_id

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; never a control token."""
        return self._text(text, self._plain)

    def _text(self, text: str, tokenizer: tokenizers.Tokenizer) -> list[int]:
        try:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the Rust library, such as on a pattern that never ends
            raise BackendError(f"The model's tokenizer failed: {' '.join(str(error).split())[:200]}") from error
        return [i for i in ids if i not in self._control and i < self._embedded]

    def spells_control(self, text: str) -> bool:
        """See Tokenizer.spells_control."""
        patterns = ((self._split, text), (self._split_normalised, self._normalised(text)))
        return any(pattern is not None and pattern.search(spelled) for pattern, spelled in patterns)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        """Ids of the rendered chat with the generation prompt.

        Equal to what transformers gives for honest text. When message text contains the spelling of a control token,
        only the template's literal parts are encoded with control tokens, and everything between them as plain text.
        """
        rendered = self._template.render(messages, tools)
        if not any(self.spells_control(m["content"]) for m in messages):
            return [*self._opening, *self._encode_parts([(rendered.text, True)])]
        return [*self._opening, *self._encode_parts(rendered.parts)]

    def encode_reply(self, text: str) -> list[int]:
        """See Tokenizer.encode_reply: what the template writes after a model turn. Raises TemplateRefused."""
        return self._encode_parts(self._template.reply(text), self._inner)

    def _encode_parts(self, parts: Sequence[tuple[str, bool]], first: tokenizers.Tokenizer | None = None) -> list[int]:
        """first: the tokenizer for plain text at the start of the parts; by default it is treated as the beginning of a
        text."""
        spans = [(text, self._known(text) if control else None) for text, control in self._spans(parts)]
        ids: list[int] = []
        for number, (text, token) in enumerate(spans):
            if token is not None:
                ids.append(token)
                continue
            if number and spans[number - 1][1] in self._eats["rstrip"]:
                text = text.lstrip()
            if number + 1 < len(spans) and spans[number + 1][1] in self._eats["lstrip"]:
                text = text.rstrip()
            ids += self._text(text, self._inner if number else first or self._plain)
        return ids

    def _known(self, control: str) -> int:
        token: int | None = self._plain.token_to_id(control)
        if token is None:
            raise BackendError(f"The chat template uses {control!r}, which the tokenizer does not know.")
        return token

    def _spans(self, parts: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
        """(text, is a control token) in order; adjacent plain text is joined, as the tokenizer would see it."""
        plain = ""
        for text, literal in parts:
            at = 0
            for match in self._split.finditer(text) if literal and self._split else ():
                plain += text[at : match.start()]
                if plain:
                    yield plain, False
                yield match.group(), True
                plain, at = "", match.end()
            plain += text[at:]
        if plain:
            yield plain, False

    def decode(self, ids: TokenIds) -> str:
        """Text of the ids without control tokens; ids beyond the vocabulary (padded embeddings) decode to nothing."""
        return str(self._plain.decode([i for i in ids if i not in self._control and 0 <= i <= self._last]))
