"""What a device would be asked to do: operations and synchronisations, counted on torch."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WITHOUT_KERNEL = {
    "_unsafe_view",
    "alias",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "lift_fresh",
    "new_empty",
    "new_empty_strided",
    "squeeze_",
    "transpose_",
    "unsqueeze_",
}
"""Operations that are no views to torch, and launch nothing: memory, and other names for it."""
WAITS = {
    "_linalg_check_errors",
    "_unique2",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
"""Operations that wait for the device, because their shape, type or error depends on values."""


class TorchCounts(TorchDispatchMode):
    """
    Count what runs inside ``with TorchCounts() as counts``.

    ``operations`` is the number of ATen operations that launch a kernel on a GPU: all but views,
    changes of metadata and the allocation of memory. A synchronisation is a point at which a GPU
    is waited for. It is one of

    - ``scalars``: numbers read by ``float``, ``bool``, ``int`` or ``item``;
    - ``transfers``: whole arrays handed to NumPy, or read by ``tolist``;
    - ``waits``: operations that wait for a value themselves, such as ``nonzero``, indexing by a
      mask, ``equal``, and the check for errors of a linear solve. These are operations as well.

    Copies from the host are not synchronisations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self.scalars = self.transfers = self.waits = 0

    @property
    def operations(self) -> int:
        """How many operations ran."""
        return self.by_name.total()

    @property
    def synchronisations(self) -> int:
        """How often the host waited for the device."""
        return self.scalars + self.transfers + self.waits

    def __enter__(self) -> "TorchCounts":
        # Copies of tensors on the CPU to NumPy are not dispatched.
        for name in ("numpy", "tolist"):
            setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for name in ("numpy", "tolist"):
            delattr(torch.Tensor, name)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.scalars += 1
        elif not (function.is_view or name in WITHOUT_KERNEL):
            self.by_name[name] += 1
            self.waits += name in WAITS or (name == "index" and _has_mask(args[1]))
        return function(*args, **(kwargs or {}))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.transfers += 1
            return method(tensor, *args, **kwargs)

        return call


def _has_mask(indices: list[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)
