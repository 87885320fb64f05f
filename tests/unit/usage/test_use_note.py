"""The note of a job's GPUs from its Prolog to its Epilog, and the record that is made of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_share.node.gpus.counters import AccountedProcess, GpuCounter
from slurm_share.usage import note
from slurm_share.usage.rules import counted

NOTE = note.UseNote(
    job=7, uid=2001, gid=2001, node="n1", began=1000.0, gpus=(note.NotedGpu(uuid="GPU-a"), note.NotedGpu(uuid="GPU-b"))
)


class Site:
    """A state folder, and a driver with the counters `energy_mj`; `said` has the log."""

    def __init__(self, root, monkeypatch):
        self.root, self.said = root, []
        self.energy_mj = {"GPU-a": 5_000, "GPU-b": 7_000}
        self.refused = ""
        monkeypatch.setattr(note, "read_in_time", self._read)

    def _read(self, uuids, *, accounting):
        refused = self.refused if accounting else ""
        return {
            uuid: GpuCounter(uuid, self.energy_mj.get(uuid), "" if uuid in self.energy_mj else "Not Supported", refused)
            for uuid in uuids
        }

    def begin(self, made, *, accounting=False):
        note.begin(made, self.root, accounting=accounting, say=self.said.append)

    def end(self, job=7, now=1010.0):
        return note.end(job, self.root, now, self.said.append)

    def use(self, job=7):
        return counted.job_use(note.read(note.folder_of(self.root) / str(job)))


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path, monkeypatch)


def test_the_difference_of_a_counter_is_the_energy_of_a_job_that_was_alone(site):
    site.begin(NOTE)
    site.energy_mj["GPU-a"] += 2_500
    assert site.end()
    one, two = site.use().gpus
    assert (one.energy.joules, one.energy.rule, one.device_j, one.held_s, one.was_shared) == (
        *(2.5, "counter", 2.5),
        *(10.0, False),
    )
    assert two.energy.joules == 0.0
    assert one.by["energy"] == "hooks"
    assert site.said == []


def test_a_note_is_roots_alone_and_goes_with_its_marks(site):
    site.begin(replace(NOTE, is_part=True))
    site.begin(replace(NOTE, job=8, is_part=True))
    folder = note.folder_of(site.root)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "7").stat().st_mode & 0o777 == 0o600
    note.remove(7, site.root)
    note.remove(8, site.root)
    assert list(folder.iterdir()) == []


def test_parts_of_one_gpu_at_the_same_time_are_marked_in_both_jobs_whoever_came_first(site):
    for job, uuid in ((7, "GPU-a"), (8, "GPU-a"), (9, "GPU-b")):
        site.begin(replace(NOTE, job=job, gpus=(note.NotedGpu(uuid=uuid),), is_part=True))
    for job in (7, 8, 9):
        assert site.end(job)
    found = [site.use(job).gpus[0] for job in (7, 8, 9)]
    assert [gpu.was_shared for gpu in found] == [True, True, False]
    assert [gpu.energy is None for gpu in found] == [True, True, False]
    assert found[0].device_j == 0.0
    assert "only the node's agent can divide" in found[0].unknown["energy"]


def test_a_job_that_came_after_the_end_of_another_shares_nothing_with_it(site):
    site.begin(replace(NOTE, is_part=True))
    site.end()
    site.begin(replace(NOTE, job=8, is_part=True))
    site.end(8)
    assert [gpu.was_shared for gpu in site.use(8).gpus] == [False, False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda site: site.energy_mj.update({"GPU-a": 10}), "was reset"),
        (lambda site: site.energy_mj.update({"GPU-a": 10**12}), "was reset"),
        (lambda site: site.energy_mj.pop("GPU-a"), "cannot be read: Not Supported"),
    ],
    ids=["lower", "impossible", "gone"],
)
def test_a_counter_that_cannot_be_used_is_said(site, change, why):
    site.begin(NOTE)
    change(site)
    site.end()
    gpu = site.use().gpus[0]
    assert (gpu.energy, gpu.device_j) == (None, None)
    assert why in gpu.unknown["energy"]


def test_a_driver_without_accounting_mode_is_said_once(site):
    site.refused = "Not Supported"
    site.begin(NOTE)
    assert site.said == []
    site.begin(NOTE, accounting=True)
    site.begin(replace(NOTE, job=8), accounting=True)
    (said,) = site.said
    assert "accounting mode of the GPUs is not on (Not Supported)" in said


def test_a_second_epilog_changes_nothing_and_a_job_without_a_note_has_none(site):
    assert not site.end()
    site.begin(NOTE)
    site.end(now=1010.0)
    site.energy_mj["GPU-a"] += 1000
    assert site.end(now=1020.0)
    assert site.use().ended == 1010.0
    assert site.use().gpus[0].energy.joules == 0.0


def test_a_damaged_note_and_a_full_file_system_are_sentences(site, monkeypatch):
    folder = note.folder_of(site.root)
    folder.mkdir()
    (folder / "7").write_bytes(b"[")
    assert not site.end()
    assert "is damaged" in site.said[0]

    def fail(*_args, **_words):
        raise OSError(28, "No space left on device", str(folder / "7"))

    monkeypatch.setattr(note.files, "write", fail)
    site.begin(NOTE)
    assert "No space left on device: what it uses of its GPUs is not recorded" in site.said[1]


def process(began, seconds, *, percent=50, mib=100, runs=False):
    return AccountedProcess(int(began), began, seconds, percent, mib, runs)


@pytest.fixture
def ended(site):
    site.begin(NOTE)
    site.end()
    return site.use()


def test_the_drivers_figures_of_processes_one_after_the_other_are_the_jobs(ended):
    found = {"GPU-a": (process(1001.0, 4.0), process(1006.0, 2.0, percent=100, mib=300)), "GPU-b": ()}
    one, two = counted.with_accounted(ended, found).gpus
    assert (one.memory_peak_mib, one.utilization_percent, one.idle_s) == (300, 40.0, 6.0)
    assert (two.memory_peak_mib, two.utilization_percent, two.idle_s) == (0, 0.0, 10.0)
    assert one.by["memory_peak_mib"] == "driver"
    assert "memory_peak_mib" not in one.unknown


def test_the_drivers_figures_of_processes_at_once_are_not_added_up(ended):
    found = {"GPU-a": (process(1001.0, 4.0), process(1002.0, 4.0)), "GPU-b": "accounting mode is off"}
    one, two = counted.with_accounted(ended, found).gpus
    assert one.memory_peak_mib is None
    assert one.unknown["memory_peak_mib"].startswith("2 processes at once")
    assert "accounting mode is off" in two.unknown["utilization_percent"]


def test_a_process_that_began_after_the_job_is_the_next_jobs(ended):
    found = {"GPU-a": (process(1011.0, 1.0, mib=900),), "GPU-b": ()}
    assert counted.with_accounted(ended, found).gpus[0].memory_peak_mib == 0
