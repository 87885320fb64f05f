"""`Annotated` and `Literal` for records: those of `typing`, which msgspec reads to check what comes from a file.

Hooks make their records without msgspec, so nothing reads these annotations there, and importing `typing` would cost
every shared job two milliseconds. There they are placeholders.
"""

from __future__ import annotations

import msgspec

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING or hasattr(msgspec, "convert"):
    from typing import Annotated as Annotated
    from typing import Literal as Literal
else:

    class _AnyType:
        """Placeholder for any type."""

        def __class_getitem__(cls, items: object) -> type:
            return object

    Annotated = Literal = _AnyType
