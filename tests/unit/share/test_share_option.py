"""The values of --share-gpu, as the hooks parse them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core import names
from slurm_share.core.errors import OptionError, UsageError
from slurm_share.core.records import ShareRequest
from slurm_share.share import option

GOOD = [
    ("1", ShareRequest(1)),
    ("60", ShareRequest(60)),
    ("4,mem=8G", ShareRequest(4, mem_mib=8192)),
    ("4,mem=800", ShareRequest(4, mem_mib=800)),
    ("4,mem=512", ShareRequest(4, mem_mib=512)),
    ("4,mem=64M", ShareRequest(4, mem_mib=64)),
    ("4,mem=1T", ShareRequest(4, mem_mib=1048576)),
    ("4,mem=2gib,sm=25%", ShareRequest(4, mem_mib=2048, sm=25)),
    ("4,sm=even,mps=on", ShareRequest(4, sm="even", sharing="mps")),
    ("4,mps=off", ShareRequest(4, sharing="time-slicing")),
    ("4,sm=free,mps=off", ShareRequest(4, sm="free", sharing="time-slicing")),
    ("4,mem=8G,mps=off", ShareRequest(4, mem_mib=8192, sharing="time-slicing")),
    ("4,mem=8G:20G", ShareRequest(4, mem_mib=20480, mem_least_mib=8192)),
    ("4,sm=static,sharing=mps", ShareRequest(4, sm="static", sharing="mps")),
    ("4,sharing=auto", ShareRequest(4, sharing="auto")),
    ("4,sharing=time-slicing,mem=8G:20G", ShareRequest(4, 20480, None, "time-slicing", 8192)),
    ("1,sharing=exclusive", ShareRequest(1, sharing="exclusive")),
    ("4,mps=on,sharing=mps", ShareRequest(4, sharing="mps")),
    ("4,sharing=time-slicing,mps=off", ShareRequest(4, sharing="time-slicing")),
]
BAD = [
    "", "0", "x", "4;rm", "99999", "61", "-1", "+4", " 4", "4 ", "04", "4.0", "4,", ",4", "off,4", "4,off", "OFF", "٤",
    "4,mem=lots", "4,mem=", "4,mem", "4,mem=0", "4,mem=1.5G", "4,mem=8G,mem=8G", "4,mem=17T",
    "4,mem=8G:", "4,mem=:8G", "4,mem=8G:9G:10G", "4,sharing=mig", "4,sharing",
    "4,mem=99999999999999999999G", "4,mem=8GB,sm=50,mps=on" + " " * 60, "4" * 10_000,
    "4,sm=0", "4,sm=101", "4,sm=ev", "4,sm=50,mps=off", "4,sm=even,mps=off",
    "4,mem=8", "4,mem=511", "4,mem=8M", "4,mem=63MiB",
    "4,mps=maybe", "4,gpu=1", "4\n", "4\nSLURM_JOB_ID=1",
]  # fmt: skip


@pytest.mark.parametrize(("text", "request_"), GOOD)
def test_a_valid_value_becomes_a_request_and_its_canonical_text_the_same_request(text, request_):
    """The canonical text is what travels to the hooks, so reading it again must change nothing."""
    assert option.parse(text) == request_
    assert option.parse(option.render(request_)) == request_


def test_off_is_no_request():
    assert option.parse("off") is None
    assert option.render(None) == "off"


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused_with_the_valid_form(text):
    with pytest.raises(OptionError) as caught:
        option.parse(text)
    assert names.OPTION_FORM in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why", "way_out"),
    [
        ("4,mem=20G:8G", "8G is less than 20G", "mem=8G:20G"),
        ("4,mem=8G:8G", "names one size twice", "mem=8G"),
        ("4,mps=on,sharing=time-slicing", "mps=on is an older word for sharing=mps", "write one of them"),
        ("4,sharing=auto,mps=off", "cannot go with sharing=auto", "write one of them"),
        ("4,sharing=exclusive", "4 tasks are asked for on each", "--share-gpu=1,sharing=exclusive"),
        ("1,sharing=exclusive,mem=8G", "has all of its memory", "--share-gpu=1,sharing=exclusive"),
        ("1,sharing=exclusive,sm=static", "sm= cannot go with sharing=exclusive", "except sm=free"),
        ("4,sharing=time-slicing,sm=static", "sm= cannot go with sharing=time-slicing", "except sm=free"),
        ("4,mps=off,sm=50", "sm= cannot go with sharing=time-slicing", "except sm=free"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_with_the_reason_and_the_way_out(text, why, way_out):
    with pytest.raises(OptionError) as caught:
        option.parse(text)
    sentence = str(caught.value)
    assert sentence.startswith(f"--share-gpu={text}: ")
    assert why in sentence
    assert way_out in sentence


@pytest.mark.parametrize("text", ["4,mps=on", "4,mem=8192M,mps=off", "4,mem=8192M,sm=even,mps=on", "4,sharing=auto"])
def test_a_request_that_an_earlier_release_wrote_into_a_plan_is_canonical(text):
    request = option.parse(text)
    assert option.is_canonical(request, text)
    assert not option.is_canonical(request, text + ",sm=free")


@pytest.mark.parametrize("text", ["8,mem=8", "8,mem=141,sm=10", "8,mem=8MiB"])
def test_a_size_that_lost_its_unit_is_refused(text):
    with pytest.raises(OptionError) as caught:
        option.parse(text)
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("text", "site", "backend"),
    [
        ("4", "auto", None),
        ("4", "mps", None),
        ("4", "time-slicing", "time-slicing"),
        ("4,sharing=auto", "time-slicing", None),
        ("4,sharing=mps", "time-slicing", "mps"),
        ("4,sharing=time-slicing", "mps", "time-slicing"),
        ("1,sharing=exclusive", "mps", "time-slicing"),
        ("4,mem=8G", "time-slicing", None),
        ("4,sm=50", "time-slicing", None),
        ("4,sm=static", "time-slicing", "mps"),
        ("4,sm=free", "time-slicing", "time-slicing"),
        ("4,mem=8G,sharing=time-slicing", "mps", "time-slicing"),
    ],
)
def test_a_users_word_comes_before_the_sites(text, site, backend):
    assert option.backend_of(option.parse(text), site) == backend


@pytest.mark.parametrize(("site", "backend"), [("auto", None), ("mps", None), ("time-slicing", "time-slicing")])
def test_processes_without_a_share_go_by_the_sites_word(site, backend):
    assert option.backend_of(None, site) == backend


@pytest.mark.parametrize(
    ("written", "word", "merged"),
    [
        (None, None, None),
        ("4,mem=8G", None, "4,mem=8G"),
        (None, "mps", "sharing=mps"),
        (None, "exclusive", "1,sharing=exclusive"),
        ("4", "time-slicing", "4,sharing=time-slicing"),
        ("mem=8G", "auto", "mem=8G,sharing=auto"),
        ("4,mps=on", "mps", "4,mps=on"),
        ("sharing=mps,mem=8G", "mps", "sharing=mps,mem=8G"),
    ],
)
def test_the_option_sharing_is_a_setting_of_the_share(written, word, merged):
    assert option.with_sharing(written, word) == merged


@pytest.mark.parametrize(("written", "word"), [("off", "mps"), ("4,mps=off", "mps"), ("sharing=auto", "mps")])
def test_two_ways_of_sharing_are_refused(written, word):
    with pytest.raises(UsageError, match="say two things"):
        option.with_sharing(written, word)


@given(st.text(max_size=80))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    try:
        request = option.parse(text)
    except OptionError:
        return
    assert request is None or 1 <= request.per_gpu <= names.SHARE_MAX
