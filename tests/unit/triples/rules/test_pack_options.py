"""Options of llsub for packing: texts in, a PackRequest or an error out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_share.core.errors import UsageError
from slurm_share.packing import POLICIES, PackRequest, PackSettings, TaskSpec
from slurm_share.triples.rules import pack_options
from slurm_share.triples.rules.pack_options import PackOptions


def test_pack_alone_has_every_default() -> None:
    assert pack_options.request(PackOptions(pack="booked"), retries=0) == PackRequest()
    assert pack_options.request(PackOptions(), retries=3) is None


def test_each_option_reaches_the_request() -> None:
    written = PackOptions(
        pack="booked", gpu_mem="6G", gpus_per_task=2, name="resnet", oom_retries=0, max_per_gpu=3, order="long",
        memory_guard="hard", estimate="none", hang="kill", keep_going=True,
    )  # fmt: skip
    assert pack_options.request(written, retries=4) == PackRequest(
        settings=PackSettings(max_per_gpu=3, order="long", guard="hard", oom_retries=0, retries=4, keep_going=True),
        spec=TaskSpec(gpu_mem_mib=6144, gpus=2, name="resnet"),
        estimate="none",
        hang="kill",
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gpu_mem", "6G"), ("gpus_per_task", 1), ("name", "a"), ("oom_retries", 0), ("max_per_gpu", 1),
        ("order", "long"), ("memory_guard", "soft"), ("estimate", "history"), ("hang", "say"), ("undo", "off"),
        ("keep_going", True),
    ],
)  # fmt: skip
def test_an_option_without_pack_is_refused_by_name(option: str, value: object) -> None:
    name = f"--{option.replace('_', '-')}" + (f"={value}" if option == "order" else "")
    with pytest.raises(UsageError, match=f"{name} needs --pack; write --pack too"):
        pack_options.request(PackOptions(**{option: value}), retries=0)  # type: ignore[arg-type]


def test_what_is_undone_reaches_the_request() -> None:
    found = pack_options.request(PackOptions(pack="gain", undo="pause"), retries=0)
    assert found == PackRequest(settings=PackSettings(policy="gain", undo="pause"))


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "gain"])
def test_without_speed_what_is_undone_is_ignored_and_said(policy: str) -> None:
    written = PackOptions(pack=policy, undo="pause")
    assert pack_options.request(written, retries=0) == pack_options.request(PackOptions(pack=policy), retries=0)
    (note,) = pack_options.ignored_notes(written)
    assert note.startswith(f"--undo ignored: {policy} does not measure speed")


@pytest.mark.parametrize("is_auto", [True, False])
def test_trials_on_equal_tasks_say_what_is_about_neighbours(is_auto: bool) -> None:
    bare, written = PackOptions(compare_sharing=not is_auto), PackOptions(compare_sharing=not is_auto, undo="pause")
    found = pack_options.request(written, retries=0, is_auto=is_auto)
    assert found == pack_options.request(bare, retries=0, is_auto=is_auto)
    (note,) = pack_options.ignored_notes(written, is_auto=is_auto)
    assert "ignored: it is about unlike tasks on one GPU" in note


@pytest.mark.parametrize("policy", ["booked", "exclusive", "gain"])
def test_conditions_of_other_policies_are_ignored_and_said(policy: str) -> None:
    written = PackOptions(pack=f"{policy},smact_max=0.8,free_min=2G,book")
    assert pack_options.request(written, retries=0) == pack_options.request(PackOptions(pack=policy), retries=0)
    (note,) = pack_options.ignored_notes(written)
    assert "smact_max=0.8,free_min=2G,book ignored: only rr, magm, lug, mug, first-fit" in note


@pytest.mark.parametrize(
    "written",
    [
        PackOptions(), PackOptions(pack="gain", undo="pause", order="long"),
        PackOptions(pack="booked", order="short"), PackOptions(pack="rr,smact_max=0.8", order="fifo"),
        PackOptions(gpu_mem="6G"),
    ],
)  # fmt: skip
def test_of_options_with_an_effect_nothing_is_said(written: PackOptions) -> None:
    assert pack_options.ignored_notes(written) == []


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_taken_by_its_name(name: str) -> None:
    assert pack_options.parse_policy(name).policy == name


@pytest.mark.parametrize(
    ("text", "book", "smact", "free"),
    [
        ("magm", False, 0.80, 5120),
        ("magm,book", True, 0.80, 5120),
        ("lug,smact_max=0.85,free_min=2G", False, 0.85, 2048),
        ("lug,free_min=none,smact_max=none", False, None, None),
        ("mug,smact_max=.75", False, 0.75, 5120),
        ("rr", False, None, None),
        ("rr,smact_max=0.8,free_min=5120M", False, 0.8, 5120),
        ("worst-fit,smact_max=1", False, 1.0, 5120),
        ("best-fit,book,free_min=2G", True, 0.80, 2048),
    ],
)
def test_conditions_stand_behind_the_policy(text: str, book: bool, smact: float | None, free: int | None) -> None:
    found = pack_options.parse_policy(text)
    assert (found.uses_booking, found.smact_max, found.free_min_mib) == (book, smact, free)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no policy '': the policies are gain, booked, exclusive, rr"),
        ("lugg", "there is no policy lugg: .*; did you mean lug"),
        ("bestfit", "did you mean best-fit"),
        ("LUG", "there is no policy LUG"),
        ("oracle-lug", "slurm-share lab simulate"),
        ("book", "did you mean booked"),
        ("booked,book=2", "book=2 is not one of"),
        ("exclusive,smact_max=80", "80 is more; write 0.8"),
        ("lug,", "'' is not one of book, smact_max=RATIO"),
        ("lug,book=1", "book=1 is not one of"),
        ("lug,smact_max", "smact_max is not one of"),
        ("lug,book,book", "book is not one of .*, once"),
        ("lug,max=3", "max=3 is not one of"),
        ("lug,smact_max=80", "80 is more; write 0.8"),
        ("lug,smact_max=0", "above 0 and up to 1"),
        ("lug,smact_max=-1", "not -1"),
        ("lug,smact_max=", "not empty"),
        ("lug,smact_max=nan", "not nan"),
        ("lug,smact_max=101", "not 101"),
        ("lug,free_min=0", "free_min= is a size like 8G"),
        ("lug,free_min=2", "free_min=2 would be 2 MiB.*free_min=2G"),
        ("lug;x", "there is no policy lug;x"),
    ],
)
def test_another_policy_is_a_sentence_with_what_there_is(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        pack_options.parse_policy(text)
    assert "--pack=" in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "\x1b[2J"])
def test_a_name_that_no_terminal_can_show_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"--name .* must have at most 200 printable characters") as caught:
        pack_options.request(PackOptions(pack="booked", name=name), retries=0)
    assert str(caught.value).isprintable()


def test_an_order_is_for_the_policy_that_has_one() -> None:
    written = PackOptions(pack="lug", order="long")
    assert pack_options.request(written, retries=0) == pack_options.request(PackOptions(pack="lug"), retries=0)
    assert pack_options.ignored_notes(written) == [
        "--order=long ignored: lug starts the tasks in the order of the file; --pack has it"
    ]


@pytest.mark.parametrize(
    ("text", "mib"), [("6G", 6144), ("800M", 800), ("6144", 6144), ("6GiB", 6144), ("learned", None)]
)
def test_a_size_is_written_as_after_share_gpu_mem(text: str, mib: int | None) -> None:
    assert pack_options.parse_gpu_mem(text, "--gpu-mem=") == mib


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "--gpu-mem= is a size like 8G or 800M, at most 16T, not") for text in
          ("0", "-1", "-6G", "", "x", "6 G", "1e9", "nan", "6.5G", "99999T", "0G", "6GG")),
        ("6", "--gpu-mem=6G"),  # below any CUDA program
        ("10M", "--gpu-mem=10G"),
    ],
)  # fmt: skip
def test_a_size_that_is_none_is_a_sentence_with_one_that_is(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        pack_options.parse_gpu_mem(text, "--gpu-mem=")


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_a_sentence(text: str) -> None:
    try:
        pack_options.parse_policy(text)
    except UsageError as error:
        said = str(error)
    else:
        return
    assert said.isprintable()


def test_orders_that_need_no_durations_need_no_pack() -> None:
    for order in ("fifo", "reversed", "random", "random:12"):
        assert pack_options.request(PackOptions(order=pack_options.parse_order(order)), 0) is None
    packed = pack_options.request(PackOptions(pack="gain", order="reversed"), 0)
    assert packed is not None
    assert packed.settings.order == "fifo"


@pytest.mark.parametrize("text", ["", "largest", "random:", "random:x", "random:-1", "fifo:3", "long:1", "Random"])
def test_another_order_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the orders are fifo"):
        pack_options.parse_order(text)
