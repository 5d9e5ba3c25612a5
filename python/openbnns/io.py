"""Checkpoints: named arrays and a few words about them, in one safetensors file.

The file is complete or it is not there: it is written beside its place, brought to the disk, and
renamed. Nothing in a checkpoint is ever executed. Needs the package ``safetensors``
(``pip install safetensors``).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CheckpointError", "load_checkpoint", "save_checkpoint"]


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise CheckpointError(
            "[checkpoint] expected the package safetensors; got none: pip install safetensors"
        ) from error
    return safetensors


def save_checkpoint(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write named arrays to a file that appears all at once.

    Args:
        path: where the checkpoint shall be. What is there stays until the new one is complete.
        arrays: NumPy arrays of any shape, by name; strided ones are written packed.
        notes: short texts to keep beside them (a step, a seed), by name.

    Raises:
        CheckpointError: the file cannot be written. What was at ``path`` is untouched, and nothing
            is left beside it.

    Examples:
        >>> import numpy as np, os, tempfile
        >>> from openbnns.io import load_checkpoint, save_checkpoint
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
        >>> save_checkpoint(path, {"w": np.ones((2, 3), "f4")}, {"step": "7"})
        >>> arrays, notes = load_checkpoint(path)
        >>> arrays["w"].shape, notes["step"]
        ((2, 3), '7')
    """
    safetensors = _safetensors()
    target = Path(path)
    packed = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        content = safetensors.numpy.save(packed, dict(notes or {}))
    except Exception as error:  # the library has its own exception types
        raise CheckpointError(f"[save_checkpoint] arrays: cannot be stored: {error}") from error
    beside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except OSError as error:
        raise CheckpointError(f"[save_checkpoint] {target}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk, where folders can be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a checkpoint: its arrays and its notes.

    Args:
        path: a safetensors file.

    Returns:
        New arrays by name, and the texts kept beside them.

    Raises:
        CheckpointError: there is no such file, it cannot be read, it is cut short, or it is no
            safetensors file.

    See also: ``save_checkpoint``.
    """
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(os.fspath(path), framework="numpy") as file:
            notes = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"[load_checkpoint] {path}: no such file") from error
    except Exception as error:  # the library has its own exception types
        message = f"[load_checkpoint] {path}: not a whole checkpoint: {error}"
        raise CheckpointError(message) from error
    return arrays, notes
