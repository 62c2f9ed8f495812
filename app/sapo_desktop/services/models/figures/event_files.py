"""TensorBoard: one event file in the folder, one scalar per figure, at the round and the time of its row."""

from __future__ import annotations

import os

from sapo_desktop.services.models.figures.formats import FigureJob

_VERSION = "brain.Event:2"
"""Contents of the first record of an event file (tensorflow/core/util/events_writer.cc)."""


def write(job: FigureJob) -> None:
    """See formats.write_figures. Other files in the folder stay."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    target = job.target
    if target.exists() and not target.is_dir():
        raise job.taken("is a file, and TensorBoard reads folders")
    existing = sorted(target.glob("events.out.tfevents.*"))
    if existing and not job.force:
        raise job.taken("holds event files")
    target.mkdir(exist_ok=True)
    first = job.figures[0].time
    beside = target / ".figures.part"
    try:
        with beside.open("wb") as file:
            records = RecordWriter(file)
            records.write(Event(wall_time=first, file_version=_VERSION).SerializeToString())
            for row in job.counted():
                values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.figures.items()]
                records.write(
                    Event(wall_time=row.time, step=row.round, summary=Summary(value=values)).SerializeToString()
                )
        for old in existing:
            old.unlink()
        os.replace(beside, target / f"events.out.tfevents.{int(first):010d}.{job.name}")
    finally:
        beside.unlink(missing_ok=True)
