"""Survey all users' nodes once and append the result to the archive."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..core.config import Configuration
from ..core.errors import ConfigError, UsageError, shown
from ..core.paths import CONFIG_FILE
from ..core.process import Deadline
from ..core.settings import DEFAULT, SOURCES_OF_ALL, Settings
from ..load import Origin, Survey, origin
from ..node import processes
from . import archive, records
from .archive import AppendResult
from .rules import samples

READ_S = 60.0
LOCK_S = 60.0
"""The longest wait for another archiver's lock."""


def take(given: str | None, folder: Path, interval_s: int, configuration: Configuration) -> tuple[Survey, AppendResult]:
    """Survey all nodes through a source (None: the site's), and append the samples to the archive.

    Raises UsageError for a source that does not show everybody's load, StateError, CommandError.
    """
    settings = configuration.settings
    survey = _survey(_source(given, configuration), settings)
    found = samples.samples(
        survey, records.slot(survey.taken, interval_s), interval_s, settings, configuration.partitions
    )
    archive.prepare(folder, settings.operators_group)
    return survey, archive.append(folder, found, settings.operators_group, Deadline.after(LOCK_S))


def _source(given: str | None, configuration: Configuration) -> str:
    """Return the source. Raises UsageError for one that does not show everybody's load; without the option that is a
    ConfigError with the line to write, because a timer runs the command without options."""
    name = given or configuration.settings.load_source
    if name in SOURCES_OF_ALL:
        return name
    if given:
        raise UsageError(
            f"the source {shown(name)} does not show everybody's load; write --source "
            f"{', '.join(SOURCES_OF_ALL[:-1])} or {SOURCES_OF_ALL[-1]}"
        )
    is_default = configuration.sources.get("load_source", DEFAULT) == DEFAULT
    its = f"is not set, and its default {name}" if is_default else f"is {name}, which"
    raise ConfigError(
        configuration.file or str(CONFIG_FILE),
        f'{its} does not show everybody\'s load; write load_source = "agents" there, with agents on the compute nodes '
        '("prometheus" with prometheus_url, "local" on a cluster of one node)',
        "load_source",
    )


def _survey(source: str, settings: Settings) -> Survey:
    wanted = Origin(user=processes.read_user_name(os.geteuid()), everybody=True, source=source)
    with contextlib.closing(origin.open_survey_source(wanted, settings)) as reader:
        return reader.read(READ_S)
