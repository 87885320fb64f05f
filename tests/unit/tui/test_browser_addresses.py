"""Requests that are answered: tables of paths, Hosts and Origins."""

from __future__ import annotations

import pytest
from slurm_share_tui import options
from slurm_share_tui.browser import addresses
from slurm_share_tui.browser.addresses import Place, Target, refusal, target

from slurm_share.core.errors import UsageError

PLACE = Place(page_id="0123abcd")
BELOW = Place(page_id="0123abcd", base_path="/node/n1/8080")
PORTAL = Place(page_id="0123abcd", hosts=frozenset({"ood.example"}), public_url="https://ood.example")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", Target("entry")),
        ("/login", Target("login")),
        ("/0123abcd/", Target("page")),
        ("/0123abcd/ws", Target("socket")),
        ("/0123abcd/js/textual.js", Target("file", "js/textual.js")),
        ("/0123abcd/../../etc/passwd", Target("file", "../../etc/passwd")),  # a name that no file in memory has
        ("/0123abcd", None),
        ("/static/js/textual.js", None),
        ("", None),
        ("//", None),
        ("/LOGIN", None),
    ],
)
def test_a_path_at_the_root(path, found):
    assert target(PLACE, path) == found


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/node/n1/8080", Target("entry")),
        ("/node/n1/8080/", Target("entry")),
        ("/node/n1/8080/login", Target("login")),
        ("/node/n1/8080/0123abcd/", Target("page")),
        ("/node/n1/80801/0123abcd/", None),
        ("/node/n1/8080/../8080/0123abcd/", None),
        ("/node%2Fn1/8080/0123abcd/", None),
        ("/0123abcd/", None),
        ("/", None),
    ],
)
def test_a_path_below_a_base_path(path, found):
    assert target(BELOW, path) == found


@pytest.mark.parametrize(
    ("place", "kind", "headers", "is_refused"),
    [
        (PLACE, "page", {"Host": "127.0.0.1:8080"}, False),
        (PLACE, "page", {"Host": "localhost:9"}, False),
        (PLACE, "page", {"Host": "[::1]:9"}, False),
        (PLACE, "page", {"Host": "evil.example:8080"}, True),  # DNS rebinding
        (PLACE, "page", {"Host": "127.0.0.1.evil.example"}, True),
        (PLACE, "page", {"Host": "127.0.0.1@evil.example"}, True),
        (PLACE, "page", {"Host": ""}, True),
        (PLACE, "page", {}, True),
        (PLACE, "socket", {"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:80"}, False),
        (PLACE, "socket", {"Host": "127.0.0.1:80"}, True),
        (PLACE, "socket", {"Host": "127.0.0.1:80", "Origin": "null"}, True),
        (PLACE, "socket", {"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:81"}, True),  # another user's server
        (PLACE, "socket", {"Host": "127.0.0.1:80", "Origin": "http://localhost:80"}, True),
        (PLACE, "socket", {"Host": "127.0.0.1:80", "Origin": "https://evil.example"}, True),
        (PLACE, "login", {"Host": "127.0.0.1:80", "Origin": "null"}, False),
        (PLACE, "login", {"Host": "127.0.0.1:80", "Origin": "https://evil.example"}, True),
        (PLACE, "page", {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, False),
        (PLACE, "file", {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),
        (PLACE, "file", {"Host": "localhost", "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, True),
        (PLACE, "file", {"Host": "localhost", "Sec-Fetch-Site": "same-origin"}, False),
        (PORTAL, "socket", {"Host": "ood.example", "Origin": "https://ood.example"}, False),
        (PORTAL, "socket", {"Host": "ood.example", "Origin": "https://other.example"}, True),
        (PORTAL, "page", {"Host": "n1:8080"}, True),
        (PORTAL, "page", {"Host": "127.0.0.1:8080"}, True),
    ],
)
def test_who_asks_decides(place, kind, headers, is_refused):
    assert bool(refusal(place, kind, headers)) == is_refused


@pytest.mark.parametrize("path", ["/a/../b", "a", "/a//b", "/a?b", "/a b", "/<x>", "/%2e%2e", "/..", "/a\n"])
def test_a_base_path_that_is_none_is_refused(path):
    with pytest.raises(UsageError, match="no path such as"):
        addresses.base_path(path)


def test_a_base_path_loses_its_last_slash():
    assert addresses.base_path("/node/n1.cluster/8080/") == "/node/n1.cluster/8080"
    assert addresses.base_path("/") == ""


@pytest.mark.parametrize(
    "url", ["ood", "ftp://ood", "https://ood/x", "https://u@ood", "https://", "https://[", "//ood"]
)
def test_a_public_url_that_is_none_is_refused(url):
    with pytest.raises(UsageError, match="no address such as"):
        addresses.public_url(url)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--port", "80"], "write --serve as well"),
        (["--allow-actions"], "write --serve as well"),
        (["--serve", "--port", "70000"], "no port"),
        (["--serve", "--address", "0.0.0.0"], "--clear-text"),
        (["--serve", "--address", "n1"], "--clear-text"),
        (["--serve", "--socket", "s", "--port", "80"], "leave them out"),
        (["--serve", "--tls-key", "k"], "--tls-certificate"),
        (["--serve", "--base-path", "../x"], "no path such as"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(words, why):
    with pytest.raises(UsageError, match=why):
        options.checked(options.parser().parse_args(words))


def test_without_options_it_is_this_host_and_read_only():
    found = options.checked(options.parser().parse_args(["--serve"])).browser
    assert (found.address, found.port, found.allow_actions) == ("127.0.0.1", 0, False)
    far = options.checked(options.parser().parse_args(["--serve", "--address", "::", "--clear-text"])).browser
    assert far.address == "::"
