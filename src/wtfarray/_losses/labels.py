"""Agreement of the labels of costs and data."""

from __future__ import annotations

from wtfarray._arrays.axes import Axis, check_labels
from wtfarray._losses.loss_sum import losses_of
from wtfarray._losses.protocol import Loss
from wtfarray._losses.wasserstein import Wasserstein


def check_cost_labels(loss: Loss, axes: tuple[Axis, ...]) -> None:
    """Refuse data whose labels are not those of the costs, in the same order."""
    for part in losses_of(loss) if axes else ():
        if not isinstance(part, Wasserstein):
            continue
        first = len(axes) - len(part.costs)
        groups = part.modes or tuple((first + k,) for k in range(len(part.costs)))
        for k, (group, labels) in enumerate(zip(groups, part.labels, strict=True)):
            if len(group) == 1:
                check_labels(f"costs[{k}]", labels, 0, axes[group[0]], f"mode {group[0]} of X")
