"""The person's settings: one frozen schema, kept as TOML. Unknown keys are refused with the nearest match."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from sapo_desktop.errors import AppError, UsageError
from sapo_swarm.config import RunConfig
from sapo_swarm.node.governor.limits import Limits


class Ui(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the dashboard looks."""

    theme: Annotated[str, Meta(description="Colours of the dashboard")] = "sapo-dark"
    glyphs: Annotated[Literal["auto", "unicode", "ascii"], Meta(description="Characters of the charts")] = "auto"


class Person(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What others see of you in a swarm."""

    name: Annotated[str, Meta(description="Shown on leaderboards; empty = anonymous", max_length=40)] = ""


class Swarm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether this machine contributes to a swarm; the invite itself is kept apart, readable by you only."""

    join: Annotated[bool, Meta(description="Contribute to the swarm whose invite is saved")] = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set, in sections."""

    run: RunConfig = RunConfig()
    limits: Limits = Limits()
    ui: Ui = Ui()
    person: Person = Person()
    swarm: Swarm = Swarm()


_KINDS = {"str": "text", "int": "whole number", "float": "number", "vartuple": "list"}


class Field(NamedTuple):
    """One setting as people meet it. key: section.name; kind: what may be written, in words, or the choices."""

    key: str
    kind: str
    default: Any
    help: str
    choices: tuple[str, ...]


def fields() -> Iterator[Field]:
    """Every setting of the schema, in order: the source of flags, the settings screen and the docs."""
    for section in msgspec.structs.fields(Settings):
        for field in msgspec.structs.fields(section.type):
            node: Any = msgspec.inspect.type_info(field.type)
            text = ""
            if isinstance(node, msgspec.inspect.Metadata):
                text, node = (node.extra_json_schema or {}).get("description", ""), node.type
            choices = tuple(map(str, node.values)) if isinstance(node, msgspec.inspect.LiteralType) else ()
            plain = type(node).__name__.removesuffix("Type").lower()
            choices = choices or (("true", "false") if plain == "bool" else ())
            kind = "|".join(choices) or _KINDS[plain] + _bounds(node)
            yield Field(f"{section.name}.{field.name}", kind, field.default, text, choices)


def _bounds(node: Any) -> str:
    """Of a number: ", 1 to 64"; "" without limits."""
    low = getattr(node, "ge", None) if getattr(node, "ge", None) is not None else getattr(node, "gt", None)
    high = getattr(node, "le", None)
    if low is None:
        return ""
    return f", {low:g} or more" if high is None else f", {low:g} to {high:g}"


def text(value: object) -> str:
    """A value as people type it: lists with commas, true and false in small letters."""
    built = msgspec.to_builtins(value)
    if isinstance(built, bool):
        return str(built).lower()
    return ",".join(map(str, built)) if isinstance(built, (list, tuple)) else str(built)


def value(settings: Settings, key: str) -> str:
    """The value of a key, as text."""
    section, _, name = key.partition(".")
    return text(getattr(getattr(settings, section), name))


def load(path: Path) -> Settings:
    """The settings in the file, defaults where it is silent or missing. Raises UsageError with the line to mend."""
    return convert(read(path), str(path))


def read(path: Path) -> dict[str, Any]:
    """The raw TOML tables; empty when there is no file. Raises UsageError, AppError."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML ({error}). Mend that line or delete the file.") from error
    except OSError as error:
        raise AppError(f"Cannot read {path} ({error.strerror}).") from error


def convert(tables: Mapping[str, Any], origin: str, strict: bool = True) -> Settings:
    """Settings from nested tables. Raises UsageError that names the key, the nearest match or the allowed values."""
    known = {f.key for f in fields()}
    for section, table in tables.items():
        for key in table if isinstance(table, Mapping) else [""]:
            full = f"{section}.{key}".rstrip(".")
            if full not in known:
                raise UsageError(f"{origin}: there is no setting {full!r}. {nearest(full, known)}")
    try:
        return msgspec.convert(tables, Settings, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(_plain(str(error), origin)) from error


def parsed(key: str, typed: str) -> Any:
    """What was typed, lists split at commas; the schema does the rest."""
    is_list = any(f.key == key and f.kind == "list" for f in fields())
    return [part.strip() for part in typed.split(",") if part.strip()] if is_list else typed


def edited(config: RunConfig, key: str, typed: str) -> RunConfig:
    """The config with one setting of a run (key: run.name) as it was typed. Raises UsageError."""
    name = key.partition(".")[2]
    return convert({"run": {**msgspec.to_builtins(config), name: parsed(key, typed)}}, key, strict=False).run


def change(path: Path, key: str, typed: str, check: Callable[[Settings], None] = lambda _: None) -> Settings:
    """Set one key in the file. check: what the schema cannot; both before it is written. Raises UsageError, AppError."""
    tables = read(path)
    section, _, name = key.partition(".")
    tables.setdefault(section, {})[name] = parsed(key, typed)
    settings = convert(tables, key, strict=False)
    check(settings)
    tables[section][name] = msgspec.to_builtins(getattr(getattr(settings, section), name))
    write(path, tables)
    return settings


def reset(path: Path, key: str) -> Settings:
    """Take one key out of the file: its default counts again. Raises UsageError, AppError."""
    tables = read(path)
    section, _, name = key.partition(".")
    if name in tables.get(section, {}):
        del tables[section][name]
        write(path, {title: table for title, table in tables.items() if table})
    return convert(tables, str(path))


def write(path: Path, tables: Mapping[str, Any]) -> None:
    """Write atomically. Raises AppError."""
    import tomli_w

    temporary = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(tomli_w.dumps(dict(tables)), "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}). Free some space or check who owns it.") from error


def nearest(word: str, known: set[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(sorted(known))}."


def _plain(message: str, origin: str) -> str:
    """msgspec's "... - at `$.run.rounds`" with the key in front and what is allowed behind."""
    text, _, where = message.partition(" - at `$")
    key, text = where.rstrip("`").lstrip("."), text.rstrip(".")
    allowed = next((f" Allowed: {f.kind.replace('|', ', ')}." for f in fields() if f.key == key), "")
    start = f"{origin}: " if not key or origin.startswith(key) else f"{origin}: {key}: "
    return f"{start}{text[0].lower()}{text[1:]}.{allowed}"
