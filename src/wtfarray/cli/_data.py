"""Input of the command line: arrays, tables, images and fits."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import wtfarray as wtf
from wtfarray._arrays.typing import Array
from wtfarray.cli._tables import read_table
from wtfarray.distributed import Communicator, mpi, torch_distributed

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff")
BACKENDS = ("numpy", "torch", "jax", "cupy")
Real = NDArray[Any]


def read_array(
    path: Path, key: str | None, size: tuple[int, ...] | None, *, gaps: bool = False
) -> Real:
    """
    Read the data.

    Parameters
    ----------
    path : Path
        A file ``.npy``, ``.npz``, ``.csv`` or ``.mat``, or a folder of images.
    key : str or None
        The name of the array, if the file contains several.
    size : tuple of int or None
        Rows and columns to which images are resized.
    gaps : bool
        Whether empty fields of a table and transparent pixels are NaN; otherwise the former are
        refused and the latter have the value that is stored.
    """
    readers: dict[str, Callable[[Path], Real]] = {
        ".npy": _read_npy,
        ".npz": lambda path: _read_npz(path, key),
        ".csv": lambda path: read_table(path, missing=gaps)[0],
        ".mat": lambda path: _read_mat(path, key),
    }
    suffix = path.suffix.lower()
    if not path.is_dir() and suffix not in readers:
        known = ", ".join(readers)
        msg = f"{path} has suffix {path.suffix!r}: expected {known} or a folder of images"
        raise ValueError(msg)
    if key is not None and (path.is_dir() or suffix in (".npy", ".csv")):
        msg = f"--key is {key!r}, but {path} contains a single array: expected no key"
        raise ValueError(msg)
    try:
        array = _read_images(path, size, gaps=gaps) if path.is_dir() else readers[suffix](path)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # a damaged file may raise anything
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        msg = f"{path} cannot be read: {str(error) or type(error).__name__}"
        raise ValueError(msg) from error
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "biuf":
        found = f"{array.dtype}, {array.ndim}-d" if isinstance(array, np.ndarray) else "no array"
        msg = f"{path} contains {found}: expected an array of real numbers"
        raise TypeError(msg)
    return array


def _read_npy(path: Path) -> Real:
    array: Real = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        msg = f"{path} is not an .npy file"
        raise ValueError(msg)  # noqa: TRY004
    return array


def team(launcher: str | None) -> Communicator | None:
    """The processes that were started together, by mpiexec or torchrun; None for this one alone."""
    if launcher is None:
        return None
    if launcher == "mpi":
        return mpi()
    try:
        import torch
    except ImportError:
        msg = "--comm torch needs torch: pip install 'wtfarray[torch]'"
        raise ImportError(msg) from None
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return torch_distributed()


def read_samples(
    path: Path,
    key: str | None,
    size: tuple[int, ...] | None,
    comm: Communicator | None,
    *,
    gaps: bool,
) -> Real:
    """The data, or the part of them that this process of several fits."""
    return read_array(path, key, size, gaps=gaps) if comm is None else read_rows(path, comm)


def read_rows(path: Path, comm: Communicator) -> Real:
    """The samples of this process: a part of the rows of an ``.npy`` file."""
    if path.suffix.lower() != ".npy":
        msg = f"--comm was given with {path}: expected an .npy file, of which each process reads a "
        msg += "part"
        raise ValueError(msg)
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    if whole.ndim == 0:
        msg = f"{path} holds a single number: expected samples"
        raise ValueError(msg)
    begin, end = (whole.shape[0] * k // comm.size for k in (comm.rank, comm.rank + 1))
    return np.array(whole[begin:end])


def _read_npz(path: Path, key: str | None) -> Real:
    if not zipfile.is_zipfile(path):
        msg = f"{path} is not an .npz file"
        raise ValueError(msg)
    with np.load(path, allow_pickle=False) as stored:
        array: Real = stored[_choose(path, stored.files, key)]
    return array


def read_axes(path: Path, shape: tuple[int, ...]) -> tuple[wtf.Axis, ...] | None:
    """The labels of data of this shape, read from a table; of its rows only if it was reshaped."""
    if path.suffix.lower() != ".csv" or path.is_dir():
        return None
    axes = read_table(path, missing=True)[1]
    if not axes:
        return None
    return axes if len(shape) == 2 else (axes[0], *(wtf.Axis() for _ in shape[1:]))


def _read_mat(path: Path, key: str | None) -> Real:
    try:
        from scipy.io import loadmat
    except ImportError:
        msg = "reading .mat needs SciPy: pip install scipy"
        raise ImportError(msg) from None
    stored: dict[str, Any] = loadmat(path)
    array = stored[_choose(path, [name for name in stored if not name.startswith("__")], key)]
    return np.asarray(array.toarray() if hasattr(array, "toarray") else array)


def _choose(path: Path, names: Sequence[str], key: str | None) -> str:
    """The name of the array to read."""
    if key in names:
        return str(key)
    if key is None and len(names) == 1:
        return names[0]
    found = "not given" if key is None else repr(key)
    names_found = ", ".join(names) or "no arrays"
    msg = f"--key is {found} and {path} contains {names_found}: expected one of them"
    raise ValueError(msg)


def _read_images(folder: Path, size: tuple[int, ...] | None, *, gaps: bool) -> Real:
    """
    Grey values (n, h, w) of the images of a folder, in the order of their names.

    With ``gaps``, transparent pixels are NaN, and so is the mean of several of which one is.
    """
    try:
        from PIL import Image
    except ImportError:
        msg = "reading images needs Pillow: pip install pillow"
        raise ImportError(msg) from None
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES)
    if not paths:
        msg = f"{folder} contains no images: expected files {', '.join(IMAGES)}"
        raise ValueError(msg)
    images: list[Real] = []
    depths: list[str] = []
    for path in paths:
        try:
            with Image.open(path) as image:
                # Keep more than eight bits: a conversion to "L" would clip the values.
                depths.append(image.mode if image.mode[0] in "IF" else "8 bits")
                grey = image.convert("I" if image.mode[0] == "I" else "L")
                # As floats, because resizing computes means.
                grey = (image if image.mode == "F" else grey).convert("F")
                if gaps and "A" in image.getbands():
                    opaque = np.asarray(image.getchannel("A")) > 0
                    grey = Image.fromarray(np.where(opaque, np.asarray(grey), np.float32(np.nan)))
                if size is not None and len(size) == 2:
                    grey = grey.resize((size[1], size[0]), Image.Resampling.BOX)
                images.append(np.asarray(grey, dtype=np.float64))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            msg = f"{path} cannot be read: {error}"
            raise ValueError(msg) from error
        if depths[-1] != depths[0]:
            msg = f"{path} has {depths[-1]} and {paths[0].name} {depths[0]}: expected one depth"
            raise ValueError(msg)
        if images[-1].shape != images[0].shape:
            found, first = ("x".join(map(str, i.shape)) for i in (images[-1], images[0]))
            msg = (
                f"{path} is {found} and {paths[0].name} {first}: expected images of one size, or "
                f"--grid to resize them"
            )
            raise ValueError(msg)
    return np.stack(images)


def observed(X: Real, missing: float | None) -> NDArray[np.bool_] | None:
    """A mask of what was observed: entries other than ``missing``, which may be NaN."""
    if missing is None:
        return None
    hidden: NDArray[np.bool_] = np.isnan(X) if math.isnan(missing) else np.equal(X, missing)
    return ~hidden


def normalised(X: Real, mask: NDArray[np.bool_] | None = None, *, first: int = 0) -> Real:
    """
    The samples, each divided by the sum of what was observed; one that is missing stays so.

    ``first`` is the number of the first one.
    """
    seen = X if mask is None else np.where(mask, X, 0.0)
    mass = seen.reshape(X.shape[0], -1).sum(axis=1)
    if mask is not None:
        mass = np.where(mask.reshape(X.shape[0], -1).any(axis=1), mass, 1.0)
    if not (mass > 0).all():
        i = int(np.argmin(mass > 0))
        where = f"--normalise: sample {first + i}"
        msg = f"{where} has mass {mass[i]}: expected samples of positive mass"
        raise ValueError(msg)
    array: Real = X / mass.reshape(-1, *(1,) * (X.ndim - 1))
    return array


def on_grid(X: Real, grid: tuple[int, ...] | None) -> Real:
    """The data with the grid as their last modes; rows of a table are reshaped."""
    if grid is None or X.shape[-len(grid) :] == grid:
        return X
    size = math.prod(grid)
    if X.ndim == 2 and X.shape[1] == size:
        return X.reshape(X.shape[0], *grid)
    sizes = ", ".join(map(str, grid))
    msg = (
        f"--grid is {'x'.join(map(str, grid))} and the data have shape {X.shape}: "
        f"expected (N, {size}) or (..., {sizes})"
    )
    raise ValueError(msg)


def to_backend(X: Real, backend: str, device: str | None, dtype: str) -> Array:
    """The data as an array of a library, on a device."""
    X = np.asarray(X, dtype=dtype)
    try:
        if backend == "torch":
            import torch

            return torch.asarray(X.copy(), device=device)
        if backend == "jax":
            import jax

            if dtype == "float64":
                config: Any = jax.config
                config.update("jax_enable_x64", True)  # noqa: FBT003
            where = None if device is None else jax.devices(device)[0]
            return jax.device_put(jax.numpy.asarray(X), where)
        if backend == "cupy":
            import cupy

            with cupy.cuda.Device(int((device or "cuda:0").partition(":")[2] or 0)):
                return cupy.asarray(X)
    except ModuleNotFoundError as error:
        extra = "cuda12" if backend == "cupy" else backend
        msg = f"--backend {backend} needs {error.name}: pip install 'wtfarray[{extra}]'"
        raise ImportError(msg) from None
    if device not in (None, "cpu"):
        msg = f"--device is {device}: expected cpu for NumPy, or --backend torch, jax or cupy"
        raise ValueError(msg)
    return X


def read_fit(path: Path) -> wtf.Factorisation:
    """A saved fit."""
    try:
        return wtf.load(path)
    except ValueError as error:
        msg = f"{path} is not a fit of `wtfarray fit`: {error}"
        raise ValueError(msg) from None
