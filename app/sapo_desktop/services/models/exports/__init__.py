"""A trained model in the formats that other programs load, checked by those programs.

Nothing here imports a numerical library or Textual: the work is done by child processes.
"""

from sapo_desktop.services.models.exports.card import Record
from sapo_desktop.services.models.exports.export import export
from sapo_desktop.services.models.exports.formats import FORMATS, QUANTS, ExportFailed, Format, Plan, Quant, Source
from sapo_desktop.services.models.exports.report import Agreement, Exported
from sapo_desktop.services.models.exports.room import Estimate, default_target, estimate, formats_for

__all__ = [
    "FORMATS",
    "QUANTS",
    "Agreement",
    "Estimate",
    "ExportFailed",
    "Exported",
    "Format",
    "Plan",
    "Quant",
    "Record",
    "Source",
    "default_target",
    "estimate",
    "export",
    "formats_for",
]
