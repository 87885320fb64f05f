"""slurm.conf and its neighbours, taken apart as Slurm does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.core.errors import ConfigError
from slurm_share.slurm.conf import may_be_file, read_conf, read_text, slurm_conf_path
from slurm_share.slurm.conf_text import parse


@pytest.fixture
def conf(tmp_path):
    def write(text, **others):
        for name, content in others.items():
            file = tmp_path / name.replace("__", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(content)
        (tmp_path / "slurm.conf").write_text(text)
        return read_conf(tmp_path / "slurm.conf")

    return write


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Prolog=/a\n", "/a"),
        ("prolog = /a", "/a"),
        ("PROLOG\t=\t/a\r\n", "/a"),
        ('Prolog="/a b"\n', "/a b"),
        ("Prolog=/a # Prolog=/b\n", "/a"),
        ("#Prolog=/a\n", None),
        (r"Prolog=/a\#1", "/a#1"),
        ("Prolog=/a\nProlog=/b\n", "/b"),
        ("ClusterName=x Prolog = /a ReturnToService=2\n", "/a"),
        ('ClusterName=x JobCompLoc="a Prolog=/a"\n', None),
        ("Prolog=\\\n/a\n", "/a"),
        ("Prolog=/a\\\\\n", "/a\\"),
        ("# goes on? \\\nProlog=/a\n", "/a"),
        ("NodeName=n1 Prolog=/a\n", None),
        ("PrologFlags=Alloc\n", None),
    ],
)
def test_a_value_is_what_slurm_takes_it_for(conf, text, value):
    assert conf(text).value("Prolog") == value


def test_a_line_keeps_its_place_in_the_file(conf):
    text = conf("# top\n\nNodeName=n[1-2] CPUs=4 \\\n  Gres=gpu:2\nPartitionName=p Nodes=ALL\n")
    node, partition = text.lines
    assert (node.number, node.last, partition.number) == (3, 4, 5)
    assert node.pairs == (("NodeName", "n[1-2]"), ("CPUs", "4"), ("Gres", "gpu:2"))
    assert node.get("gres") == "gpu:2"
    assert text.values("nodename") == ("n[1-2]",)
    assert text.values("gres") == ()


def test_included_files_stand_where_their_line_stood(conf, tmp_path):
    text = conf(
        "ClusterName=Demo\nProlog=/a\ninclude %c.conf\nProlog=/d\n",
        **{
            "demo.conf": "Prolog=/b\nInclude d/more.conf\n",
            "d__more.conf": "INCLUDE  b.conf # ours",
            "d__b.conf": "Prolog=/c",
        },
    )
    assert text.values("Prolog") == ("/a", "/b", "/c", "/d")
    assert [file.name for file in text.files] == ["slurm.conf", "demo.conf", "b.conf"]
    assert text.lines[2].file == tmp_path / "demo.conf"


def test_a_pattern_includes_what_there_is(conf):
    """plugstack.conf names a folder; none there is no error, a name that is not there is kept."""
    text = conf(
        "include plug.d/*.conf\ninclude none.d/*\ninclude gone.conf\n",
        **{"plug.d__b.conf": "optional /b.so", "plug.d__a.conf": "required /a.so x=1\n"},
    )
    assert [line.text for line in text.lines] == ["required /a.so x=1", "optional /b.so"]
    assert [path.name for path in text.missing] == ["gone.conf"]


@pytest.mark.parametrize("others", [{}, {"slurm.conf": "include a\n", "a": "include b\n", "b": "include a\n"}])
def test_a_file_that_includes_itself_is_refused(conf, others):
    with pytest.raises(ConfigError, match="include itself"):
        conf(others.get("slurm.conf", "include slurm.conf\n"), **others)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_conf(tmp_path / "slurm.conf")
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_conf(tmp_path)


def test_bytes_that_are_no_text_come_through(conf, tmp_path):
    (tmp_path / "slurm.conf").write_bytes(b"# caf\xe9\nProlog=/caf\xe9\n")
    value = read_conf(tmp_path / "slurm.conf").value("Prolog")
    assert value is not None
    assert value.encode("utf-8", "surrogateescape") == b"/caf\xe9"


def test_lists_are_split_at_commas(conf):
    assert conf("PrologFlags=Alloc, X11\nPrologFlags=Contain,X11\n").listed("prologflags") == ("Contain", "X11")


def test_the_last_line_may_go_on_into_nothing():
    (line,) = parse("Prolog=/a \\", Path("f"))
    assert line.pairs == (("Prolog", "/a"),)


def test_where_slurm_conf_is_looked_for(tmp_path):
    assert slurm_conf_path(tmp_path / "a", {"SLURM_CONF": "/b"}) == tmp_path / "a"
    assert slurm_conf_path(None, {"SLURM_CONF": "/b"}) == Path("/b")


def test_what_may_not_be_looked_at_is_not_said_to_be_missing(tmp_path, monkeypatch):
    file = tmp_path / "slurm.conf"

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    assert not may_be_file(file)
    monkeypatch.setattr(Path, "stat", refused)
    assert may_be_file(file)
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        read_text(file)
