"""Prolog and Epilog keep the files by which dcgm-exporter and jobstats know the job of a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hooked_nodes import ALICE, BOB, HookedNode, as_root
from slurm_share_hooks import epilog, prolog

from slurm_share.node.records import LiveJob
from slurm_share.share import hook, job_note
from slurm_share.testing import FakeNvml
from slurm_share.usage import gpu_jobs


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = HookedNode(tmp_path, monkeypatch)
    driver = FakeNvml().gpu().gpu()
    made.uuids = [gpu.uuid for gpu in driver.read_driver().gpus]
    made.gpus(driver)
    monkeypatch.setattr(job_note, "nvml", driver)
    monkeypatch.setattr(gpu_jobs, "nvml", driver)
    monkeypatch.setattr(hook, "start_after", lambda _who, _job: None)
    return made


@pytest.fixture
def told(site):
    """Return the site with both settings; `site.mapping` and `site.gpustat` are the folders."""
    site.mapping, site.gpustat = site.root / "dcgm", site.root / "gpustat"
    site.configure(f'mode = "on"\njob_mapping_folder = "{site.mapping}"\ngpustat_folder = "{site.gpustat}"')
    return site


def content(folder: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in folder.iterdir()}


@as_root
def test_an_ordinary_job_is_in_the_files_of_its_gpu_until_its_end(told):
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="1", gpus="1") == 0
    assert content(told.mapping) == {"1": "4711\n"}
    assert content(told.gpustat) == {"1": f"4711 {ALICE}\n", told.uuids[1]: f"4711 {ALICE}\n"}
    assert (told.gpustat / "1").stat().st_mode & 0o777 == 0o644
    assert told.run(epilog, uid=ALICE) == 0
    assert content(told.mapping) == content(told.gpustat) == {}
    assert told.log == []


@as_root
def test_a_shared_gpu_has_a_line_for_each_of_its_jobs_in_the_order_of_their_start(told):
    told.live = [LiveJob(9, ALICE), LiveJob(8, ALICE)]
    for job in (9, 8):
        assert told.run(prolog, job, share="2", uid=ALICE, SLURM_JOB_GPUS="0") == 0
    assert content(told.mapping) == {"0": "9\n8\n"}
    assert content(told.gpustat)["0"] == f"9 {ALICE}\n8 {ALICE}\n"
    assert told.run(epilog, 9, uid=ALICE) == 0
    assert content(told.mapping) == {"0": "8\n"}
    assert told.run(epilog, 8, uid=ALICE) == 0
    assert content(told.mapping) == {}


@as_root
@pytest.mark.parametrize("gone", ["no step of it runs", "the machine was booted"])
def test_a_job_whose_epilog_was_lost_is_gone_with_the_next_on_its_gpu(told, monkeypatch, gone):
    assert told.run(prolog, 1, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    if gone == "the machine was booted":
        monkeypatch.setattr("slurm_share.share.ledger_file.read_boot_id", lambda *_: "another")
        assert told.run(prolog, 2, uid=BOB, SLURM_JOB_GPUS="1", gpus="1") == 0
        assert content(told.mapping) == {"1": "2\n"}
    else:
        assert told.run(prolog, 2, uid=BOB, SLURM_JOB_GPUS="0") == 0
        assert content(told.mapping) == {"0": "2\n"}
        assert content(told.gpustat)["0"] == f"2 {BOB}\n"


@as_root
def test_a_requeued_job_has_its_new_gpu_only(told):
    for gpu in ("0", "1"):
        assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS=gpu, gpus=gpu) == 0
    assert content(told.mapping) == {"1": "4711\n"}


@as_root
def test_what_a_killed_hook_left_half_written_is_put_right_by_the_next(told, monkeypatch):
    real = gpu_jobs._write_folder
    monkeypatch.setattr(gpu_jobs, "_write_folder", lambda *_: None)  # killed after its entry, before the files
    assert told.run(prolog, 1, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    monkeypatch.setattr(gpu_jobs, "_write_folder", real)
    told.mapping.mkdir()
    (told.mapping / ".slurm-share.new").write_text("torn")
    told.live = [LiveJob(1, ALICE)]
    assert told.run(prolog, 2, uid=ALICE, SLURM_JOB_GPUS="1", gpus="1") == 0
    assert {name: text for name, text in content(told.mapping).items() if name in "01"} == {"0": "1\n", "1": "2\n"}
    assert told.run(epilog, 1, uid=ALICE) == told.run(epilog, 2, uid=ALICE) == 0
    assert {one for one in content(told.mapping) if one in "01"} == set()


@as_root
def test_the_files_go_with_the_job_when_the_site_has_switched_them_off_meanwhile(told):
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    told.configure('mode = "off"')
    assert told.run(epilog, uid=ALICE) == 0
    assert content(told.mapping) == content(told.gpustat) == {}


@as_root
def test_other_files_in_the_folder_stay(told):
    told.mapping.mkdir()
    (told.mapping / "README").write_text("ours")
    (told.mapping / "7").write_text("of nobody\n")
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    assert content(told.mapping) == {"0": "4711\n", "README": "ours"}


@as_root
@pytest.mark.parametrize("how", ["a link", "a user's", "open to all", "below a user's"])
def test_a_folder_that_a_user_can_change_is_not_written(told, how):
    aim = told.root / "aim"
    aim.mkdir()
    if how == "a link":
        told.mapping.symlink_to(aim)
    elif how == "below a user's":
        told.configure(f'mode = "on"\njob_mapping_folder = "{aim}/dcgm"')
        os.chown(aim, ALICE, ALICE)
    else:
        told.mapping.mkdir()
        told.mapping.chmod(0o777 if how == "open to all" else 0o755)
        if how == "a user's":
            os.chown(told.mapping, ALICE, ALICE)
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    assert [one for one in told.log if "not written there" in one]
    assert [*aim.iterdir()] == []  # not even a folder: its user could put a link in its place
    assert not (told.mapping / "0").exists()


@as_root
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(told):
    aim = told.root / "aim"
    aim.write_text("precious")
    told.mapping.mkdir()
    (told.mapping / "0").symlink_to(aim)
    (told.mapping / ".slurm-share.new").symlink_to(aim)
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    assert aim.read_text() == "precious"
    assert (told.mapping / "0").read_text() == "4711\n"
    assert not (told.mapping / "0").is_symlink()


@as_root
def test_no_folder_and_no_driver_fail_no_job(told, monkeypatch):
    told.configure(f'mode = "on"\njob_mapping_folder = "{told.root}/missing/dcgm"')
    assert told.run(prolog, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    monkeypatch.setattr(job_note, "nvml", FakeNvml("gone"))
    assert told.run(prolog, 5, uid=ALICE, SLURM_JOB_GPUS="0") == 0
    assert f"{told.root}/missing cannot be used (No such file" in told.log[0]
    assert "exporters are not told" in told.log[1]


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [("", "0"), ('mode = "off"\n{}', "0"), ('mode = "on"\n{}', None)],
    ids=["not set", "switched off", "a job without GPUs"],
)
@as_root
def test_nothing_is_written(site, settings, gpus):
    folder = site.root / "dcgm"
    site.configure(settings.format(f'job_mapping_folder = "{folder}"'))
    given = {} if gpus is None else {"SLURM_JOB_GPUS": gpus}
    assert site.run(prolog, gpus=gpus or "", **given) == 0
    assert not folder.exists()
    assert not (site.paths.root / "gpu-jobs").exists()
