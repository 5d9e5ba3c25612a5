"""Where the shared library and the C headers of this installation are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core

if TYPE_CHECKING:
    from pathlib import Path


def library_path() -> Path:
    """The shared library this process has loaded, for ctypes or a linker.

    Returns:
        Path of ``libopenbnns.so``, ``libopenbnns.dylib`` or ``libopenbnns.dll``.

    Examples:
        >>> import openbnns
        >>> openbnns.library_path().name.startswith("libopenbnns")
        True

    See also: ``lib/pkgconfig/openbnns.pc`` in the package.
    """
    from pathlib import Path  # NumPy does without it, so an import of openbnns should too

    return Path(_core.library_path())


def include_dir() -> Path:
    """The directory to give a C compiler with ``-I``.

    Returns:
        Path of the directory that holds ``openbnns/bnns.h``, ``Accelerate/Accelerate.h`` and
        ``vecLib/BNNS/bnns.h``.

    Examples:
        >>> import openbnns
        >>> (openbnns.include_dir() / "openbnns" / "bnns.h").is_file()
        True

    See also: ``openbnns.library_path``, ``openbnns.cmake_dir``.
    """
    from pathlib import Path

    return Path(__file__).parent / "include"


def cmake_dir() -> Path:
    """The directory of the CMake package, for ``-Dopenbnns_DIR=…``.

    ``find_package(openbnns)`` then has the target ``openbnns::openbnns``.

    Returns:
        Path of the directory that holds ``openbnnsConfig.cmake``.

    Examples:
        >>> import openbnns
        >>> (openbnns.cmake_dir() / "openbnnsConfig.cmake").is_file()
        True

    See also: ``openbnns.include_dir``.
    """
    return include_dir().parent / "lib" / "cmake" / "openbnns"
