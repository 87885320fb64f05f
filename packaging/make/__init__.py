"""Python programs of the packages' build, called by packaging/build.sh and packaging/Makefile.

`fetch` downloads, with `debian`; `unpack` unpacks wheels, `pages` writes manual pages and completion from the commands'
parsers, `manual` writes the documents with links that are valid on a host.
"""
