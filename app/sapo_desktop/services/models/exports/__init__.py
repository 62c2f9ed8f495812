"""A trained model in the formats that other programs load, checked by those programs.

Nothing here imports a numerical library or Textual: child processes do the work.
"""

from sapo_desktop.services.models.exports.card import ModelCardRecord
from sapo_desktop.services.models.exports.export import (
    AnswerAgreement,
    ExportEstimate,
    ExportResult,
    create_export,
    default_target,
    estimate_export,
    formats_for,
)
from sapo_desktop.services.models.exports.formats import (
    FORMATS,
    QUANTS,
    ExportFailed,
    ExportPlan,
    ExportSource,
    Format,
    Quant,
)

__all__ = [
    "FORMATS",
    "QUANTS",
    "AnswerAgreement",
    "ExportEstimate",
    "ExportFailed",
    "ExportPlan",
    "ExportResult",
    "ExportSource",
    "Format",
    "ModelCardRecord",
    "Quant",
    "create_export",
    "default_target",
    "estimate_export",
    "formats_for",
]
