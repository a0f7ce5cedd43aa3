"""Inner products of a panel of nodes, written as LLVM vectors: their sums stay in registers from the first feature to the last.

A panel is LANES nodes, one a lane; its joint encodings are z (D, LANES). What its nodes bring along, encodings or weights of
their own, lies in VECTORS blocks (D, WIDTH), so that a panel may begin at any block. A loop over features that numba vectorises
keeps such sums in memory, and is three to ten times slower. LLVM cuts the vectors to what the processor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH, VECTORS = 16, 2  # elements of a vector, and how many a panel has
LANES = WIDTH * VECTORS
ROWS = 4  # of a weight that are multiplied together: with two vectors a panel eight sums, which hide each other's latency
INDEX = ir.IntType(64)
LARGEST = 1e30  # of a product of exponentials: a reciprocal estimate of infinity would make NaN


class Panel:
    """A loop over `depth` features, `step` at a time, with vectors that it carries along."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder, self.depth = builder, arguments[-1]
        array = signature.args[-2]
        self.element = ir.FloatType() if array.dtype == types.float32 else ir.DoubleType()
        self.align = 4 if array.dtype == types.float32 else 8
        self.vector = ir.VectorType(self.element, WIDTH)
        pairs = zip(signature.args[:-1], arguments[:-1], strict=True)
        self.pointers = [cgutils.create_struct_proxy(kind)(context, builder, value=value).data for kind, value in pairs]

    def constant(self, value: float) -> Any:
        return ir.Constant(self.vector, [value] * WIDTH)

    def place(self, array: int, index: Any, offset: int = 0) -> Any:
        at = self.builder.gep(self.pointers[array], [self.builder.add(index, INDEX(offset))])
        return self.builder.bitcast(at, self.vector.as_pointer())

    def load(self, array: int, index: Any, offset: int = 0) -> Any:
        loaded = self.builder.load(self.place(array, index, offset))
        loaded.align = self.align
        return loaded

    def load_block(self, array: int, feature: Any, block: int) -> Any:
        """The vector of a feature in a block (D, WIDTH) of the panel's own."""
        first = self.builder.mul(self.depth, INDEX(block * WIDTH))
        return self.load(array, self.builder.add(first, self.builder.mul(feature, INDEX(WIDTH))))

    def store(self, vector: Any, array: int, index: Any, offset: int = 0) -> None:
        self.builder.store(vector, self.place(array, index, offset)).align = self.align

    def spread(self, array: int, index: Any, offset: int = 0) -> Any:
        """One element in all lanes."""
        scalar = self.builder.load(self.builder.gep(self.pointers[array], [self.builder.add(index, INDEX(offset))]))
        one = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        nowhere = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return self.builder.shuffle_vector(one, ir.Constant(self.vector, ir.Undefined), nowhere)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=("contract",)), flags=("contract",))

    def loop(self, carried: int, step: int, body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Run `body(feature, vectors)`, which returns the vectors of the next turn; at least once."""
        before = self.builder.block
        turn, after = self.builder.append_basic_block("panel"), self.builder.append_basic_block("after")
        self.builder.branch(turn)
        self.builder.position_at_end(turn)
        feature = self.builder.phi(INDEX)
        feature.add_incoming(INDEX(0), before)
        vectors = [self.builder.phi(self.vector) for _ in range(carried)]
        found = body(feature, vectors)
        following = self.builder.add(feature, INDEX(step))
        feature.add_incoming(following, turn)
        for vector, later in zip(vectors, found, strict=True):
            vector.add_incoming(self.constant(0.0), before)
            vector.add_incoming(later, turn)
        self.builder.cbranch(self.builder.icmp_signed("<", following, self.depth), turn, after)
        self.builder.position_at_end(after)
        return found


@intrinsic
def rows_times_panel(typingctx, z, weight, out, depth):
    """out (ROWS, LANES) = sum over d of weight[d, :, None] z[d], for weight (D, ROWS) and z (D, LANES)."""

    def code(context, builder, signature, arguments):
        panel = Panel(context, builder, signature, arguments)

        def body(d, sums):
            vectors = [panel.load(0, builder.mul(d, INDEX(LANES)), v * WIDTH) for v in range(VECTORS)]
            rows = [panel.spread(1, builder.mul(d, INDEX(ROWS)), row) for row in range(ROWS)]
            return [panel.multiply_add(rows[i // VECTORS], vectors[i % VECTORS], total) for i, total in enumerate(sums)]

        for i, total in enumerate(panel.loop(ROWS * VECTORS, 1, body)):
            panel.store(total, 2, INDEX(i * WIDTH))
        return context.get_dummy_value()

    return types.void(z, weight, out, types.int64), code


@intrinsic
def own_times_panel(typingctx, z, weight, out, depth):
    """out (LANES,) = sum over d of weight[:, d] z[d], for weight (VECTORS, D, WIDTH) and z (D, LANES): every node has its own
    row; ROWS divides D."""

    def code(context, builder, signature, arguments):
        panel = Panel(context, builder, signature, arguments)

        def body(d, sums):
            at = builder.mul(d, INDEX(LANES))
            found = []
            for i, total in enumerate(sums):
                row = panel.load_block(1, builder.add(d, INDEX(i // VECTORS)), i % VECTORS)
                found.append(panel.multiply_add(panel.load(0, at, i * WIDTH), row, total))
            return found

        sums = panel.loop(ROWS * VECTORS, ROWS, body)
        for v in range(VECTORS):
            total = sums[v]
            for part in sums[v + VECTORS :: VECTORS]:
                total = builder.fadd(total, part)
            panel.store(total, 2, INDEX(v * WIDTH))
        return context.get_dummy_value()

    return types.void(z, weight, out, types.int64), code


def _of_exponentials(finish: Callable[[Any, Panel, Any], Any]):
    """The kernel z[d] = finish(1 / (1 + row[d] panel[:, d])) for a row (D,) and a panel (VECTORS, D, WIDTH) of exponentials."""

    @intrinsic
    def act(typingctx, row, exponentials, z, depth):
        def code(context, builder, signature, arguments):
            panel = Panel(context, builder, signature, arguments)

            def body(d, _):
                e, at = panel.spread(0, d), builder.mul(d, INDEX(LANES))
                for v in range(VECTORS):
                    product = builder.fmul(e, panel.load_block(1, d, v))
                    too_large = builder.fcmp_ordered(">", product, panel.constant(LARGEST))
                    product = builder.select(too_large, panel.constant(LARGEST), product)
                    below = builder.fadd(product, panel.constant(1.0))
                    inverse = builder.fdiv(panel.constant(1.0), below, flags=("arcp", "contract"))
                    panel.store(finish(builder, panel, inverse), 2, at, v * WIDTH)
                return []

            panel.loop(0, 1, body)
            return context.get_dummy_value()

        return types.void(row, exponentials, z, types.int64), code

    return act


tanh_of_exponentials = _of_exponentials(
    lambda builder, panel, inverse: panel.multiply_add(panel.constant(-2.0), inverse, panel.constant(1.0))
)  # of exp(2x)
sigmoid_of_exponentials = _of_exponentials(lambda builder, panel, inverse: inverse)  # of exp(-x)
