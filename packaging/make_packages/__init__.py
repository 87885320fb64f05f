"""Makes .deb and .rpm out of a checkout: trees of files first, then both kinds of package from the same trees.

`wheels` fetches third-party Python, `base`, `screen` and `spank` lay out the files of the three packages, `pages`
writes manual pages and completion from the commands' own parsers, `deb` and `rpm` wrap the trees. The scripts and units
that go in stand as files in packaging/deb, rpm, share, man and systemd.
"""
