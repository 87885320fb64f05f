"""The user-mode Linux kernel of local clusters: which modules are kept, and how the kernel is started."""

from __future__ import annotations

from pathlib import Path

from localcluster import kernel, namespaces, running_kernel

# lines of modules.dep of Debian's user-mode-linux 6.1um4
DEP = """\
kernel/drivers/net/veth.ko:
kernel/net/llc/llc.ko:
kernel/net/802/stp.ko: kernel/net/llc/llc.ko
kernel/net/bridge/bridge.ko: kernel/net/ipv6/ipv6.ko kernel/lib/crc-ccitt.ko kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/bridge/netfilter/ebt_stp.ko: kernel/net/netfilter/x_tables.ko
kernel/net/ipv6/ipv6.ko: kernel/lib/crc-ccitt.ko
kernel/lib/crc-ccitt.ko:
"""


def test_modules_are_loaded_after_those_that_they_need() -> None:
    order = [Path(name).stem for name in kernel.load_order(DEP, ["bridge", "veth"])]
    assert order == ["veth", "llc", "stp", "crc-ccitt", "ipv6", "bridge"]


def test_a_module_that_is_built_in_is_left_out() -> None:
    assert kernel.load_order(DEP, ["ext4"]) == []


def test_the_kernel_ends_with_its_caller_and_runs_in_a_root_with_its_c_library() -> None:
    argv = kernel.start_argv(kernel.Kernel(Path("/cache/kernel"), Path("/cache/root")), ["mem=1M"])
    assert argv[:4] == ["/usr/bin/setpriv", "--pdeathsig", "KILL", "/usr/bin/unshare"]
    assert argv[-3:] == ["/cache/root", "/cache/kernel", "mem=1M"]


def test_the_command_line_names_what_the_first_process_needs(tmp_path: Path) -> None:
    (tmp_path / "modules/7.2.7").mkdir(parents=True)
    (tmp_path / "modules/7.2.7/modules.dep").write_text(DEP)
    made = kernel.Kernel(tmp_path, Path("/cache/root"))
    words = running_kernel.boot_arguments(made, [5, 9], "/cache/a/upper:/cache/b/root", Path("/kept"), 2048)
    assert {"mem=2048M", "ro", "ssl0=fd:5", "ssl1=fd:9", "KERNEL_LINES=2", 'KERNEL_KEPT="/kept"'} < set(words)
    assert 'KERNEL_LAYERS="/cache/a/upper:/cache/b/root"' in words
    assert f'KERNEL_MODULES="{tmp_path}/modules/7.2.7/kernel/drivers/net/veth.ko:' in " ".join(words)


def test_the_tree_of_cgroup_v2_is_found_wherever_it_is_mounted() -> None:
    v1 = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    assert namespaces.parse_v2_tree(v1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n") == Path(
        "/sys/fs/cgroup/unified"
    )
    assert namespaces.parse_v2_tree("none /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n") == Path("/sys/fs/cgroup")
    assert namespaces.parse_v2_tree(v1) is None
