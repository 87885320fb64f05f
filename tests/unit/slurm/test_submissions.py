"""How a job was submitted, from scontrol's and sacct's text."""

from __future__ import annotations

import pytest

from slurm_share.core.errors import CommandError
from slurm_share.slurm import submit
from slurm_share.slurm.submit import SubmissionFields, parse_job, parse_line

SHOWN = """JobId=1 JobName=train
   UserId=alice(2001) GroupId=alice(2001) MCS_label=N/A
   Command=/home/alice/my dir/job.sh
   SubmitLine=sbatch -J train -w n1 job.sh one two
   WorkDir=/home/alice/my dir
   StdOut=/home/alice/my dir/slurm-1.out
"""
"""Slurm 26.05, shortened."""
OLD = "JobId=1 JobName=x\n   Command=/home/alice/job.sh\n   WorkDir=/home/alice\n   StdErr=/home/alice/slurm-1.out\n"
"""Slurm 24.11, shortened."""


def test_scontrols_fields():
    assert parse_job(SHOWN) == SubmissionFields(
        "sbatch -J train -w n1 job.sh one two", "/home/alice/my dir/job.sh", "/home/alice/my dir"
    )
    assert parse_job(OLD) == SubmissionFields("", "/home/alice/job.sh", "/home/alice")
    assert parse_job("   Command=(null)\n   WorkDir=/\n").command == ""


def test_a_line_break_inside_the_submit_line_makes_all_of_it_uncertain():
    """The text after it may imitate the next field."""
    forged = SHOWN.replace("one two", "one\n   WorkDir=/tmp\n   Command=/tmp/x")
    assert parse_job(SHOWN.replace("one two", "one\ntwo")) == SubmissionFields()
    assert parse_job(forged) == SubmissionFields()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("/home/alice|sbatch job.sh a|b\n", "sbatch job.sh a|b"),
        ("", ""),
        ("/elsewhere|sbatch job.sh\n", ""),
        ("/home/alice|sbatch job.sh\n/home/alice|sbatch other.sh\n", ""),
    ],
)
def test_saccts_line(text, line):
    assert parse_line(text, "/home/alice") == line


def test_where_slurmctld_does_not_keep_the_line_accounting_may(monkeypatch):
    def answer(argv, **_):
        if argv[0] == "sacct":
            if accounting is None:
                raise CommandError(("sacct",), 1, "Slurm accounting storage is disabled")
            return accounting
        return OLD

    monkeypatch.setattr(submit, "run", answer)
    accounting = "/home/alice|sbatch job.sh\n"
    assert submit.read_job(1).line == "sbatch job.sh"
    accounting = None
    assert submit.read_job(1) == SubmissionFields("", "/home/alice/job.sh", "/home/alice")
