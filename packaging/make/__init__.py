"""The parts of the packages' build that are written in Python; packaging/build.sh and packaging/Makefile call them.

`fetch` brings what comes over the network, with `debian`; `unpack` lays wheels out, `pages` writes manual pages and
completion from the commands' own parsers, `manual` writes the documents with links that lead somewhere on a host.
"""
