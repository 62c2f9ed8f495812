"""The user's settings: one frozen schema, stored as TOML tables. Unknown keys are refused with the nearest match."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from sapo_desktop.errors import AppError, UsageError
from sapo_swarm.config import RENAMED, RunConfig, rename_legacy_keys
from sapo_swarm.errors import suggest_names
from sapo_swarm.node.governor.rules import ResourceLimits
from sapo_swarm.whole_file import write_atomically

# The settings file as TOML tables: read, written atomically, and migrated when a key was renamed or removed.

_RENAMED: Mapping[str, Mapping[str, str]] = {"run": RENAMED}
"""Section -> key name in an earlier version -> current name."""
_REMOVED: Mapping[str, frozenset[str]] = {
    "limits": frozenset(
        {
            "slow_fan_rpm",
            "slow_memory_wait",
            "pause_lid_closed",
            "pause_on_metered",
            "slow_other_load",
            "max_network_mb_a_day",
        }
    ),
    "node": frozenset({"metrics_port"}),
    "run": frozenset({"stage", "stage_groups", "group_sizes", "imitation"}),
}
"""Section -> keys of an earlier version that no longer exist; a file loses them, and a section that holds nothing else."""


def read_tables(path: Path) -> dict[str, Any]:
    """The raw tables with current key names; empty if there is no file. Raises UsageError, AppError.

    A file with keys of an earlier version is rewritten, with one line in the log; everything else in it is unchanged.
    """
    try:
        text = path.read_text("utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML ({error}). Mend that line or delete the file.") from error
    except OSError as error:
        raise AppError(f"Cannot read {path} ({error.strerror}).") from error
    outdated = _outdated_keys(tables)
    return _migrate(path, text, tables, outdated) if outdated else tables


def write_tables(path: Path, tables: Mapping[str, Any]) -> None:
    """Write atomically. Raises AppError."""
    import tomli_w

    _write_text(path, tomli_w.dumps(dict(tables)))


def _outdated_keys(tables: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(section, old name, current name or "") of each key that an earlier version wrote."""
    of_today = {(section, name): now for section, names in _RENAMED.items() for name, now in names.items()}
    of_today |= {(section, name): "" for section, names in _REMOVED.items() for name in names}
    return [
        (section, old, now)
        for (section, old), now in sorted(of_today.items())
        if isinstance(table := tables.get(section), dict) and old in table
    ]


def _migrate(path: Path, text: str, tables: Mapping[str, Any], outdated: list[tuple[str, str, str]]) -> dict[str, Any]:
    """The tables with current keys only; also updates the file if it can be written."""
    removed = {(section, old) for section, old, now in outdated if not now}
    emptied = {
        section
        for section, _ in removed
        if section not in Settings.__struct_fields__ and tables[section].keys() <= _REMOVED[section]
    }
    current = {
        section: {
            name: value
            for name, value in rename_legacy_keys(table, _RENAMED.get(section, {})).items()
            if (section, name) not in removed
        }
        if isinstance(table, dict)
        else table
        for section, table in tables.items()
        if section not in emptied
    }
    changes = ", ".join(
        f"{section}.{old} is called {section}.{now} now" if now else f"there is no {section}.{old} any more"
        for section, old, now in outdated
    )
    try:
        edited = _edited(text, outdated, emptied)
        if _parsed(edited) == current:
            _write_text(path, edited)
        else:
            write_tables(path, current)
        outcome = f"{path} was brought up to date"
    except AppError as error:
        outcome = f"that counts, but {path} still has the old keys. {error}"
    logging.getLogger(__name__).warning("Settings: %s; %s.", changes, outcome.rstrip("."))
    return current


def _edited(text: str, outdated: list[tuple[str, str, str]], emptied: set[str]) -> str:
    """The text with the keys renamed or taken out in place, so that comments and order are preserved."""
    lines, section = [], ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            section = header[1].strip()
            line = "" if section in emptied else line
        for place, old, now in outdated:
            if place == section and now:
                line = re.sub(rf"^(\s*){re.escape(old)}(\s*=)", rf"\g<1>{now}\g<2>", line)
            elif place == section and re.match(rf"\s*{re.escape(old)}\s*=", line):
                line = ""
        lines.append(line)
    return "".join(lines)


def _parsed(text: str) -> dict[str, Any] | None:
    """The parsed text; None if it is not valid TOML (the edit duplicated a key, for example)."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _write_text(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise AppError(f"Cannot write {path} ({error.strerror}). Free some space or check who owns it.") from error


# The schema of the settings.


class UiSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the dashboard looks."""

    theme: Annotated[str, Meta(description="Colours of the dashboard")] = "sapo-dark"
    glyphs: Annotated[Literal["auto", "unicode", "ascii"], Meta(description="Characters of the charts")] = "auto"
    linear: Annotated[
        bool, Meta(description="Sentences instead of drawings, for screen readers; a dumb terminal has them anyway")
    ] = False


class PersonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What other members of a swarm see."""

    name: Annotated[str, Meta(description="Shown on leaderboards; empty = anonymous", max_length=40)] = ""


class SwarmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Whether this machine contributes to a swarm. The invite is in a separate file that only its owner can read."""

    join: Annotated[bool, Meta(description="Contribute to the swarm whose invite is saved")] = False
    directories: Annotated[
        tuple[str, ...],
        Meta(
            description="Signed lists of swarms to look in, a line each: https://host/file.json#key=ID. None is built in"
        ),
    ] = ()


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set, in sections."""

    run: RunConfig = RunConfig()
    limits: ResourceLimits = ResourceLimits()
    ui: UiSettings = UiSettings()
    person: PersonSettings = PersonSettings()
    swarm: SwarmSettings = SwarmSettings()


_KINDS = {"str": "text", "int": "whole number", "float": "number", "vartuple": "list"}
S = TypeVar("S", bound=msgspec.Struct)


class SettingField(NamedTuple):
    """One setting as people see it. key: section.name, or the name; kind: the allowed values, in words, or the choices."""

    key: str
    kind: str
    default: Any
    help: str
    choices: tuple[str, ...]


def setting_fields() -> Iterator[SettingField]:
    """Every setting, in order; flags, the settings screen and the docs are built from these."""
    for section in msgspec.structs.fields(Settings):
        yield from schema_fields(section.type, f"{section.name}.")


def schema_fields(schema: type[msgspec.Struct], section: str = "") -> Iterator[SettingField]:
    """Every field of a schema, in order. section: the prefix of their keys, such as "run."."""
    for field in msgspec.structs.fields(schema):
        node: Any = msgspec.inspect.type_info(field.type)
        help_text = ""
        if isinstance(node, msgspec.inspect.Metadata):
            help_text, node = (node.extra_json_schema or {}).get("description", ""), node.type
        choices = tuple(map(str, node.values)) if isinstance(node, msgspec.inspect.LiteralType) else ()
        plain = type(node).__name__.removesuffix("Type").lower()
        choices = choices or (("true", "false") if plain == "bool" else ())
        kind = "|".join(choices) or _KINDS[plain] + _bounds(node)
        yield SettingField(f"{section}{field.name}", kind, field.default, help_text, choices)


def _bounds(node: Any) -> str:
    """The bounds of a number, such as ", 1 to 64"; "" without limits."""
    low, above, high, below = (getattr(node, name, None) for name in ("ge", "gt", "le", "lt"))
    high = below - 1 if isinstance(below, int) else high
    if above is not None:
        return f", more than {above:g}" + ("" if high is None else f", at most {_number(high)}")
    if low is None:
        return ""
    return f", {_number(low)} or more" if high is None else f", {_number(low)} to {_number(high)}"


def _number(bound: float) -> str:
    """A bound as people read it, in groups of three digits from 100,000 on."""
    return f"{bound:,.15g}" if bound >= 100_000 else f"{bound:.15g}"


def format_value(value: object) -> str:
    """A value as people type it: lists with commas, true and false in small letters."""
    built = msgspec.to_builtins(value)
    if isinstance(built, bool):
        return str(built).lower()
    return ",".join(map(str, built)) if isinstance(built, (list, tuple)) else str(built)


def setting_text(settings: Settings, key: str) -> str:
    """The value of a key, as text."""
    section, _, name = key.partition(".")
    return format_value(getattr(getattr(settings, section), name))


def load_settings(path: Path) -> Settings:
    """The settings in the file, with defaults for missing keys or a missing file. Raises UsageError with the line to fix."""
    return settings_from_tables(read_tables(path), str(path))


class LiveLimits:
    """The current limits from the settings file: a change takes effect within a second, whoever made it. Reads the file only
    when it changed; an unreadable file leaves the limits unchanged."""

    def __init__(self, path: Path, limits: ResourceLimits) -> None:
        """limits: as the file has them now."""
        self._path, self._limits = path, limits
        self._seen = self._stamp()

    def __call__(self) -> ResourceLimits:
        """The limits as they are now."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._limits = load_settings(self._path).limits
            except AppError as error:
                logging.getLogger(__name__).warning("The limits stay as they were. %s", error)
        return self._limits

    def _stamp(self) -> tuple[int, int]:
        """A stamp that changes with every write (each replaces the file); (0, 0) without a file."""
        try:
            facts = self._path.stat()
        except OSError:
            return 0, 0
        return facts.st_mtime_ns, facts.st_ino


def settings_from_tables(tables: Mapping[str, Any], origin: str, strict: bool = True) -> Settings:
    """Settings from nested tables. Raises UsageError that names the key, the nearest match or the allowed values."""
    for key in unknown_keys(tables):
        raise UsageError(f"{origin}: {unknown_sentence(key)}")
    return convert_schema(tables, Settings, setting_fields(), origin, strict)


def convert_schema(
    values: Mapping[str, Any], schema: type[S], fields: Iterable[SettingField], origin: str, strict: bool
) -> S:
    """These values as settings. origin: where they were read from. Raises UsageError with the key and the allowed values."""
    try:
        return msgspec.convert(values, schema, strict=strict)
    except msgspec.ValidationError as error:
        raise UsageError(_plain(str(error), fields, origin)) from error


def unknown_keys(tables: Mapping[str, Any]) -> list[str]:
    """The keys in the tables that are not in the schema, as section.name (only the section if it is not a table)."""
    known = {f.key for f in setting_fields()}
    keys: list[str] = []
    for section, table in tables.items():
        if isinstance(table, Mapping) and (table or section in Settings.__struct_fields__):
            keys += (f"{section}.{name}" for name in table)
        else:
            keys.append(section)
    return [key for key in keys if key not in known]


def unknown_sentence(key: str) -> str:
    """The message about an unknown key, with the nearest known one."""
    return f"there is no setting {key!r}. {suggest_names(key, {f.key for f in setting_fields()})}"


def known_part(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables without unknown keys."""
    strange = set(unknown_keys(tables))
    return {
        section: {name: value for name, value in tables[section].items() if f"{section}.{name}" not in strange}
        for section in Settings.__struct_fields__
        if section in tables and section not in strange
    }


def split_lists(typed: Mapping[str, Any], fields: Iterable[SettingField]) -> dict[str, Any]:
    """The typed values with lists split at commas; the schema converts the rest."""
    lists = {field.key for field in fields if field.kind == "list"}
    return {
        key: [part.strip() for part in value.split(",") if part.strip()] if key in lists else value
        for key, value in typed.items()
    }


def config_with_setting(config: RunConfig, key: str, typed: str) -> RunConfig:
    """The config with one run setting (key: run.name) set to the typed value. Raises UsageError."""
    changed = split_lists({key.partition(".")[2]: typed}, schema_fields(RunConfig))
    return settings_from_tables({"run": {**msgspec.to_builtins(config), **changed}}, key, strict=False).run


def write_setting(path: Path, key: str, typed: str, check: Callable[[Settings], None] = lambda _: None) -> Settings:
    """Set one key in the file; unknown keys in the file are preserved.

    check: validates what the schema cannot; both checks run before writing. Raises UsageError, AppError.
    """
    tables = read_tables(path)
    section, _, name = key.partition(".")
    _table(tables, section, path)[name] = split_lists({key: typed}, setting_fields())[key]
    settings = settings_from_tables(known_part(tables), key, strict=False)
    check(settings)
    tables[section][name] = msgspec.to_builtins(getattr(getattr(settings, section), name))
    write_tables(path, tables)
    return settings


def remove_setting(path: Path, key: str) -> Settings:
    """Remove one key, known or unknown, from the file, so that its default applies again.

    Raises UsageError, AppError.
    """
    tables = read_tables(path)
    section, _, name = key.partition(".")
    if not name and section in tables:
        del tables[section]
        write_tables(path, tables)
    elif name in _table(tables, section, path):
        del tables[section][name]
        write_tables(path, {title: table for title, table in tables.items() if table != {}})
    return settings_from_tables(known_part(tables), str(path))


def _table(tables: dict[str, Any], section: str, path: Path) -> dict[str, Any]:
    """The section's table, created if missing. Raises UsageError if the key is not a table."""
    table = tables.setdefault(section, {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: {section!r} is no section. Take it out: sapo-desktop config reset {section}")
    return table


_NO_SUCH = {"float": "that is no number", "int": "that is no whole number", "bool": "that is neither true nor false"}
"""The type that msgspec expected -> the plain message when a typed value cannot be converted to it."""
_BOUND = re.compile(r"Expected `(?:int|float)` ([<>]=?) .*")
"""What msgspec says of a number outside its bounds; which those are is said behind it."""


def _plain(message: str, fields: Iterable[SettingField], origin: str) -> str:
    """msgspec's "... - at `$.run.rounds`" rewritten with the key first and the allowed values last. A message without a path
    comes from the schema itself and is returned unchanged."""
    reason, at, where = message.partition(" - at `$")
    if not at:
        return message
    key, reason = where.rstrip("`").lstrip("."), reason.rstrip(".")
    reason = next((plain for kind, plain in _NO_SUCH.items() if reason == f"Expected `{kind}`, got `str`"), reason)
    allowed = next((f" Allowed: {f.kind.replace('|', ', ')}." for f in fields if f.key == key), "")
    if bound := _BOUND.fullmatch(reason):
        reason = f"that is too {'large' if bound[1].startswith('<') else 'small'}"
    start = f"{origin}: " if not key or origin.startswith(key) else f"{origin}: {key}: "
    return f"{start}{reason[0].lower()}{reason[1:]}.{allowed}"
