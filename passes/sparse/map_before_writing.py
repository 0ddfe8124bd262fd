"""Map a window before it is written into zeros, not the zeros with it.

Before::

    d = dynamic_update_slice z v 0 i      # z is zeros of 32 by 4000
    t = transpose[permutation=(1, 0)] d
    a = add_any c t

After::

    u = transpose[permutation=(1, 0)] v
    t = dynamic_update_slice y u i 0      # y is zeros of 4000 by 32
    a = add_any c t

The transpose of a read is a window in zeros. What transposes the ops that made the table then maps
all of it: a table that is transposed, reshaped, converted, negated, or a function of another, as in
``tanh(table)[i]``, in the step; or they put it into larger zeros, as in ``tables[k][i]``. Sound
when

1. the array is zeros but for what is written, and only sums read what is made of it;
2. the op moves data, and what it makes of a window is one: of a reshape, a run of rows; of larger
   zeros, along axes that no place of a scatter is for, and the dtype of places holds those there;
   of zeros that are turned round, one turned round; of those without their edges, the part of it
   that is left, of a scatter all or nothing of an element. Or it is elementwise and makes zeros of
   zeros, up to their sign;
3. a product or a quotient is one of a cotangent, in a loop of cotangents: its zeros are symbolic,
   and stay zeros under any product, as JAX itself has it where it knows the zero;
4. no two windows are added up in one place, as what is made of a sum is rounded once; data may move
   and a sign may change before, also of each of two arrays that are added up. Two windows at one
   place, in zeros each, are added up before.

Cost: the window instead of the array, if it is a small part of it. Only in loops, as XLA fuses the
array with the sum that reads it: once, that takes as long.
Source: XLA's algebraic simplifier moves no ops before a `dynamic-update-slice`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.sparse.mapped_windows import LAWS
from jaxpr_opt.analysis.values.algebra import Laws
from jaxpr_opt.passes.laws.simplify import Simplify


@dataclass(frozen=True)
class MapBeforeWriting(Simplify):
    """What is made of a window in zeros is made of the window."""

    name: ClassVar[str] = "map-before-writing"
    whole_arrays: ClassVar[bool] = True
    laws: ClassVar[Laws] = LAWS
    primitives: ClassVar[frozenset[str]] = frozenset(LAWS)
