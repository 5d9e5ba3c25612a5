"""Settings of the Python side."""

from __future__ import annotations


class Config:
    """Settings that hold for the whole process.

    Attributes:
        warn_on_copy: warn with ``CopyWarning`` when an input has to be copied because its strides
            cannot be expressed in the C interface. ``True`` at the start.

    Examples:
        >>> import openbnns
        >>> openbnns.config.warn_on_copy
        True
    """

    __slots__ = ("warn_on_copy",)

    def __init__(self) -> None:
        self.warn_on_copy: bool = True

    def __repr__(self) -> str:
        return f"Config(warn_on_copy={self.warn_on_copy})"


config = Config()
