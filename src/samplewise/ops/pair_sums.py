"""log sum_c exp(x_s,c + y_t,c) of all pairs of rows, as a PyTorch operator: the denominators of a joint that only adds.

A matrix product of exponentials, each relative to the largest of its row, never holds the sums. It is right where the product
is not tiny: what underflows on the way is C times the smallest normal number at most, which is nothing beside a product of
C tiny / eps or more. Pairs below that, whose rows are large in different columns, are summed column by column, some at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from samplewise.ops.guards import first_derivative
from samplewise.ops.problem import real_dtype

AT_ONCE = 1 << 19  # numbers of pairs that are summed column by column


@torch.library.custom_op("samplewise::pair_sums", mutates_args=())
def pair_sums(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The logs of the sums (B, S, T) of x (B, S, C) and y (B, T, C), and the products that they are made of, for the
    gradient; float32, or float64 for float64."""
    with torch.autocast(x.device.type, enabled=False):
        (x, x_top), (y, y_top) = _relative(x), _relative(y)
        product = torch.bmm(x.exp(), y.exp().transpose(1, 2))
        sums = product.log()
        for b, s, t in _far(product, x.shape[2]):
            sums[b, s, t] = (x[b, s] + y[b, t]).logsumexp(1)
        return sums.add_(x_top).add_(y_top.transpose(1, 2)), product


@pair_sums.register_fake
def _(x, y):
    found = x.new_empty((x.shape[0], x.shape[1], y.shape[1]), dtype=real_dtype(x.dtype))
    return found, torch.empty_like(found)


@torch.library.custom_op("samplewise::pair_sums_gradient", mutates_args=())
def pair_sums_gradient(x: Tensor, y: Tensor, product: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """dL/dx and dL/dy: of each pair the softmax of its sums, times its upstream gradient."""
    dtype = x.dtype
    with torch.autocast(x.device.type, enabled=False):
        (x, _), (y, _) = _relative(x), _relative(y)
        used = upstream != 0
        near = product >= _smallest(product.dtype, x.shape[2])
        share = torch.where(near & used, upstream / product, 0.0)
        of_x = x.exp().masked_fill_(~used.any(2)[..., None], 0.0)  # padding, NaN included, ends here
        of_y = y.exp().masked_fill_(~used.any(1)[..., None], 0.0)
        d_x, d_y = torch.bmm(share, of_y).mul_(of_x), torch.bmm(share.transpose(1, 2), of_x).mul_(of_y)
        for b, s, t in _far(product.masked_fill(~used, 1.0), x.shape[2]):
            part = (x[b, s] + y[b, t]).softmax(1).mul_(upstream[b, s, t][:, None])
            d_x.index_put_((b, s), part, accumulate=True)
            d_y.index_put_((b, t), part, accumulate=True)
        return d_x.to(dtype), d_y.to(dtype)


@pair_sums_gradient.register_fake
def _(x, y, product, upstream):
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(
        y, memory_format=torch.contiguous_format
    )


def _relative(x: Tensor) -> tuple[Tensor, Tensor]:
    """In the real dtype and less the largest of each row, and that, (B, S, 1); 0 where it is no number."""
    x = x.to(real_dtype(x.dtype))
    top = x.amax(2, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0.0)
    return x - top, top


def _smallest(dtype: torch.dtype, columns: int) -> float:
    """The product from which on nothing is lost."""
    return columns * torch.finfo(dtype).tiny / torch.finfo(dtype).eps


def _far(product: Tensor, columns: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices of the pairs with a smaller one, some at a time."""
    pairs = (product < _smallest(product.dtype, columns)).nonzero()
    for part in pairs.split(max(1, AT_ONCE // columns)):
        yield part[:, 0], part[:, 1], part[:, 2]


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, upstream, _):
    first_derivative()
    return pair_sums_gradient(*ctx.saved_tensors, upstream)


pair_sums.register_autograd(_backward, setup_context=_setup)
