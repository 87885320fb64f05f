"""`Annotated` and `Literal` for records: those of `typing`, which msgspec reads to check what comes from a file.

Where hooks make their records without msgspec, nobody reads them, and the import of `typing` would cost every job of a
share two milliseconds; there they are words without a meaning.
"""

from __future__ import annotations

import msgspec

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING or hasattr(msgspec, "convert"):
    from typing import Annotated as Annotated
    from typing import Literal as Literal
else:

    class _AnyType:
        """Stands for every type."""

        def __class_getitem__(cls, items: object) -> type:
            return object

    Annotated = Literal = _AnyType
