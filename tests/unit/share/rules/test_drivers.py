"""What releases of the driver offer."""

import pytest

from slurm_share.share.rules import drivers


@pytest.mark.parametrize(
    ("version", "offered"),
    [
        (None, False),
        ("", False),
        ("?", False),
        ("550.54.15", False),
        ("589.99", False),
        ("590", True),
        ("590.44.01", True),
        ("1000.1", True),
    ],
)
def test_a_driver_of_a_known_release_offers_what_that_release_has(version, offered):
    assert drivers.offers(version, drivers.STATIC_PARTITIONS) is offered


def test_the_reason_names_both_releases():
    assert drivers.needs("580.105.08", 615) == "needs driver 615 or newer, and this node has 580"
    assert drivers.needs(None, 615) == "needs driver 615 or newer, and this node has one of unknown version"
