"""Dense matmul of a few rows: y[r, n] = sum_k x[r, k] * weight[n, k], fp32 sums, one rounding.

`splits` lists the row counts of the matrices that `weight` [n, k] stacks (q, k, v and so on).
A variant may compute the stack at once or one by one, the same way for every row count.
"""

from kernels.matmul.reference import matmul as reference
from kernels.matmul.tile import matmul as tile

__all__ = ["reference", "tile"]
