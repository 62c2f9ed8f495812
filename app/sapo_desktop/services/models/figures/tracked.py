"""trackio: a run with the model's name in the project `sapo-desktop`, stored in the folder. Nothing is sent anywhere."""

from __future__ import annotations

import contextlib
import io
import os

from sapo_desktop.services.models.figures.formats import FigureJob

PROJECT = "sapo-desktop"
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID")
"""trackio settings that would send the figures to another machine."""


def write(job: FigureJob) -> None:
    """See formats.write_figures. Other runs and projects in the folder stay."""
    target = job.target
    if target.exists() and not target.is_dir():
        raise job.taken("is a file, and trackio keeps folders")
    for variable in _ELSEWHERE:
        os.environ.pop(variable, None)
    os.environ["TRACKIO_DIR"] = str(target)  # trackio reads it when it is imported
    import trackio

    with contextlib.redirect_stdout(io.StringIO()):  # it prints how to open its dashboard, in colours
        existing = [run for run in trackio.Api().runs(PROJECT) if run.name == job.name] if target.exists() else []
        if existing and not job.force:
            raise job.taken(f"holds a run {job.name}")
        for run in existing:
            run.delete()
        trackio.init(project=PROJECT, name=job.name, embed=False, auto_log_gpu=False, auto_log_cpu=False)
        for row in job.counted():
            trackio.log(dict(row.figures), step=row.round)
        trackio.finish()
