"""Survey all users' nodes once and append the result to the archive."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..core.config import Configuration
from ..core.errors import UsageError, shown
from ..core.process import Deadline
from ..core.settings import Settings
from ..load import Origin, Survey, origin
from ..node import processes
from . import archive, records
from .archive import Appended
from .rules import samples

SOURCES = ("agents", "prometheus", "local")
"""Sources that show everybody's load."""
READ_S = 60.0
LOCK_S = 60.0
"""The longest wait for another archiver's lock."""


def take(given: str | None, folder: Path, interval_s: int, configuration: Configuration) -> tuple[Survey, Appended]:
    """Survey all nodes through a source (None: the site's), and append the samples to the archive.

    Raises UsageError for a source that does not show everybody's load, StateError, CommandError.
    """
    settings = configuration.settings
    survey = _survey(_source(given, settings), settings)
    found = samples.samples(
        survey, records.slot(survey.taken, interval_s), interval_s, settings, configuration.partitions
    )
    archive.prepare(folder, settings.operators_group)
    return survey, archive.append(folder, found, settings.operators_group, Deadline.after(LOCK_S))


def _source(given: str | None, settings: Settings) -> str:
    name = given or settings.load_source
    if name not in SOURCES:
        raise UsageError(
            f"the source {shown(name)} does not show everybody's load; write --source {', '.join(SOURCES[:-1])} or "
            f"{SOURCES[-1]}"
        )
    return name


def _survey(source: str, settings: Settings) -> Survey:
    wanted = Origin(user=processes.read_user_name(os.geteuid()), everybody=True, source=source)
    with contextlib.closing(origin.open_survey_source(wanted, settings)) as reader:
        return reader.read(READ_S)
