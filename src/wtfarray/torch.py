"""The smoothed Wasserstein loss for training loops in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, overload

try:
    import torch
except ModuleNotFoundError as error:
    msg = "wtfarray.torch needs torch: pip install 'wtfarray[torch]'"
    raise ModuleNotFoundError(msg, name=error.name) from error

from wtfarray._arrays.validation import instance_of, one_of
from wtfarray._losses.gradients import (
    REDUCTIONS,
    SECOND_DERIVATIVE,
    Reduction,
    losses_and_gradients,
    training_tolerance,
)
from wtfarray._losses.wasserstein import Wasserstein

__all__ = ["wasserstein_loss"]


@overload
def wasserstein_loss(
    X: torch.Tensor,
    Y: torch.Tensor,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = ...,
    max_iter: int = ...,
    reduction: Reduction = ...,
    potential: torch.Tensor | None = ...,
    return_potential: Literal[False] = ...,
) -> torch.Tensor: ...


@overload
def wasserstein_loss(
    X: torch.Tensor,
    Y: torch.Tensor,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = ...,
    max_iter: int = ...,
    reduction: Reduction = ...,
    potential: torch.Tensor | None = ...,
    return_potential: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


def wasserstein_loss(
    X: torch.Tensor,
    Y: torch.Tensor,
    /,
    loss: Wasserstein,
    *,
    tol: float | None = None,
    max_iter: int = 2000,
    reduction: Reduction = "sum",
    potential: torch.Tensor | None = None,
    return_potential: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """
    The smoothed Wasserstein loss between X and Y, differentiable in both.

    Gradients are exact at the solution of the transport problem, by the envelope theorem; the
    iterations are not differentiated and keep no graph. Works with ``backward`` and under
    ``torch.func.grad``, ``jvp`` and ``vmap``. Second derivatives raise an error.

    Parameters
    ----------
    X, Y : tensor (n_0, ..., n_{d-1})
        Non-negative data and prediction, of one dtype (float32 or float64) and device. Balanced
        transport needs samples of equal mass.
    loss : Wasserstein
        Costs, eps, lam and transported modes; each index of the other modes is one sample.
    tol : float, optional
        Relative duality gap, as in `wtfarray.wasserstein`. If None, 1e-3 for float32, and for
        float64 1e-6 or, if balanced, 1e-4. The error of the gradient is of the order of its square
        root or, if balanced, of the gap itself.
    max_iter : int
        Largest number of iterations; a warning says if it is reached.
    reduction : {"sum", "mean", "none"}
        Sum or mean over the samples, or the loss of each sample.
    potential : tensor, optional
        A warm start, of the shape and dtype of Y: the potential that an earlier step returned for
        the same samples. It decides how many iterations are needed, not where they end: the
        tolerance is the same. No gradient flows through it.
    return_potential : bool
        Whether to return the potential as well, detached, for the next step. Nothing is kept
        between calls otherwise.

    Returns
    -------
    value : tensor
        A scalar, or for "none" one number per sample, in the shape of the modes that are not
        transported.
    potential : tensor
        The Kantorovich potential g, of the shape of Y; only if ``return_potential``.

    Notes
    -----
    Where Y (or X) is 0 the derivative is -inf. The gradient holds the derivative at the smallest
    normal number instead, which is large and finite.

    For balanced transport Y is scaled to the mass of X, and the gradients are those of the loss as
    a function of X and the unscaled Y: the gradient in Y is orthogonal to Y in each sample.

    Examples
    --------
    >>> import torch
    >>> import wtfarray as wtf
    >>> from wtfarray.torch import wasserstein_loss
    >>> loss = wtf.Wasserstein(wtf.grid_cost(8), eps=0.05)
    >>> target = torch.eye(8, dtype=torch.float64)[[2, 5]]
    >>> logits = torch.zeros(2, 8, dtype=torch.float64, requires_grad=True)
    >>> value = wasserstein_loss(target, torch.softmax(logits, dim=1), loss, reduction="mean")
    >>> value.backward()
    >>> (-logits.grad).argmax(dim=1)  # towards the targets
    tensor([2, 5])
    >>> value, g = wasserstein_loss(target, target, loss, return_potential=True)
    >>> torch.equal(value, wasserstein_loss(target, target, loss, potential=g))
    True
    """
    one_of("reduction", reduction, REDUCTIONS)
    instance_of("X", X, torch.Tensor, "a torch tensor")
    instance_of("Y", Y, torch.Tensor, "a torch tensor")
    instance_of("loss", loss, Wasserstein, "Wasserstein")
    if potential is not None:
        instance_of("potential", potential, torch.Tensor, "a torch tensor")
        potential = potential.detach()
    one_of("return_potential", return_potential, (False, True))
    tol = training_tolerance(tol, Y, loss.lam)
    value, _, _, g = _SampleLosses.apply(X, Y, potential, loss, tol, max_iter)
    if reduction != "none":
        value = value.sum() if reduction == "sum" else value.mean()
    return (value, g) if return_potential else value


class _SampleLosses(torch.autograd.Function):
    """The loss of each sample; torch.func saves outputs only, so the gradients are outputs too."""

    @staticmethod
    def forward(
        X: torch.Tensor,
        Y: torch.Tensor,
        potential: torch.Tensor | None,
        loss: Wasserstein,
        tol: float,
        max_iter: int,
    ) -> tuple[torch.Tensor, ...]:
        return tuple(losses_and_gradients(X, Y, loss, tol, max_iter, potential))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        X, Y, _, loss, _, _ = inputs
        _, gradient_X, gradient_Y, g = output
        ctx.mark_non_differentiable(gradient_X, gradient_Y, g)
        ctx.save_for_backward(X, Y, gradient_X, gradient_Y)
        ctx.save_for_forward(X, Y, gradient_X, gradient_Y)
        ctx.transported = loss.transported(tuple(X.shape))

    @staticmethod
    def backward(ctx: Any, weights: torch.Tensor, *_: torch.Tensor) -> tuple[Any, ...]:
        X, Y, *both = ctx.saved_tensors
        for mode in sorted(ctx.transported):
            weights = weights.unsqueeze(mode)
        gradients = (
            _Weighted.apply(weights, gradient, X, Y) if needed else None
            for gradient, needed in zip(both, ctx.needs_input_grad[:2], strict=True)
        )
        return (*gradients, None, None, None, None)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor, None, None, None]:
        X, Y, *both = ctx.saved_tensors
        parts = [
            _Weighted.apply(tangent, gradient, X, Y).sum(ctx.transported)
            for tangent, gradient in zip(tangents[:2], both, strict=True)
            if tangent is not None
        ]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1], None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        X: torch.Tensor,
        Y: torch.Tensor,
        potential: torch.Tensor | None,
        loss: Wasserstein,
        tol: float,
        max_iter: int,
    ) -> tuple[Any, tuple[int, ...]]:
        def mapped_first(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
            """The mapped axis becomes an additional mode of samples, the first."""
            if dim is None:
                return tensor.expand(info.batch_size, *tensor.shape)
            return tensor.movedim(dim, 0)

        X, Y = mapped_first(X, in_dims[0]), mapped_first(Y, in_dims[1])
        if potential is not None:
            potential = mapped_first(potential, in_dims[2])
        modes = loss.modes
        if modes is not None:
            modes = tuple(tuple(k + 1 if k >= 0 else k for k in group) for group in modes)
        shifted = replace(loss, modes=modes)
        return _SampleLosses.apply(X, Y, potential, shifted, tol, max_iter), (0, 0, 0, 0)


class _Weighted(torch.autograd.Function):
    """A gradient in X or Y times the incoming weights; second derivatives raise an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        weights: torch.Tensor, gradient: torch.Tensor, X: torch.Tensor, Y: torch.Tensor
    ) -> torch.Tensor:
        del X, Y
        return weights * gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """No arrays are saved, because there are no further derivatives."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        raise NotImplementedError(SECOND_DERIVATIVE)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError(SECOND_DERIVATIVE)
