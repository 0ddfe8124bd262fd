"""Devices, in figures: what moving a byte, computing a number and starting an op take.

Every figure is a price: seconds, or a number of bytes or scalars that the device handles at once.
No pass has figures of its own; it asks the `CostModel` that is made of these.

The figures of a CPU are measured: two cores of a server, JAX 0.10.2 and 0.12.0, interleaved minima.
Those of a GPU are measured on an H200 with JAX 0.11.2, but for its peak rates, which are published
(NVIDIA, "H200 Tensor Core GPU datasheet", 2024); those of a TPU are published ones (Google, "TPU
v5e", cloud.google.com/tpu/docs/v5e, 2024), and not measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxpr_opt.bridge import compat_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device takes for what programs do.

    Figures with a default were measured on a CPU, and stand for a device of which nobody has said
    better.
    """

    name: str
    cache: int
    """Bytes that are written and read again without going to main memory."""
    cached: float
    """Seconds to write a byte and read it once, in the cache."""
    memory: float
    """Seconds to write a byte and read it once, beyond the cache, in pages that are new."""
    fresh: float = 0.0
    """Seconds more for a byte of temporary memory that the system hands out anew in each run, as it
    does where a program takes more than the cache; 0 where a pool keeps it."""
    worth: float = 0.0
    """Seconds that a byte less of stacks is worth where nobody has said what memory there is; 0
    where that is not known."""
    trips: int = 1
    """How often a row of a stack beyond the cache is written and read until it is used: once where
    the op that makes it writes it there, three times where it is copied there, and from there."""
    flop: float
    """Seconds of one floating point operation of a product of matrices."""
    arithmetic: float
    """Seconds of one number of an elementwise op, fused with what makes its operands."""
    transcendental: float
    """Seconds of one number of `exp`, `tanh` and their like, in a loop over an array."""
    kernel: float
    """Seconds to start an op, in a loop of which XLA calls each op by itself."""
    step: float
    """Seconds of a step of such a loop, whatever it does."""
    fused_step: float
    """Seconds of a step of a loop that XLA compiles as one function."""
    fused_bytes: int
    """Bytes of the arrays up to which XLA compiles a loop as one function."""
    product: float = 0.0
    """Seconds more of a product of matrices, however small."""
    library: float = 0.0
    """Seconds to start the library that multiplies matrices, and that is not asked for vectors."""
    truncates: bool = False
    """Whether products of matrices of float32 are computed with fewer bits than those of numbers,
    unless all bits are asked for."""
    line: int
    """Bytes that are moved at least: moving fewer takes as long."""
    lanes: int = 4
    """Numbers that one instruction computes."""
    registers: int = 24
    """Scalars that a loop of one function keeps out of memory."""
    vector: float = 2.0
    """How many scalars one op is computed on in the time of one short vector, which has to be put
    together and stored."""
    bulk: float = 4.0
    """How many times as fast bytes are moved that lie beside each other as window by window."""
    compared: float = 0.0
    """Seconds of a comparison of a sort, where a selection takes far fewer; 0 where it does not."""
    sorts_for_values: bool = False
    """Whether a selection of which only the numbers are read, not their places, is a sort."""
    predicate: float
    """Seconds to compute one element of a predicate and to reduce it."""
    question: float
    """Seconds that a loop or a branch waits until it is known whether a number is true."""
    unsure: float = 25.0
    """How many times its price something must be able to save if only the data decide whether it
    does."""
    spared: int = 1 << 20
    """Bytes of a loop's stacks from which on it may take a little more time to take less memory."""
    slack: float = 1 / 8
    """The part of the time of its steps that is, a third of what the gradient takes."""
    spares: float = 0.8
    """The part of its memory that a program may take then."""
    noticed: float = 3.0
    """How many times as much a loop may read as it is going to read less, for that to be seen in
    its time."""
    visible: float = 8.0
    """The same where what is read less is computed again."""
    copies_operands: bool = False
    """Whether a convolution reads features last, and kernels by place, and a product batches, rows
    and columns: operands that are laid out otherwise are copied first."""
    sums_by_library: bool = False
    """Whether a library reduces arrays of floats, so that what it does not know is in memory; and
    random numbers, cumulative sums and scatters take memory while they run."""
    slow_function: float = 0.0
    """Seconds longer that a number of `sin` takes than of `exp`."""
    product_row: float = 0.0
    """Seconds of a row of a product of matrices in a loop, however short."""
    turned: float = 0.0
    """Seconds of one floating point operation of a convolution that is laid out otherwise, in a
    loop; 0 if it is that of a product."""
    breadth_first: bool = False
    """Whether ops run in the order in which what they read is there, not in that of the program."""
    jumps: bool = False
    """Whether a loop that makes an array, and writes a window of it, takes a jump for each element:
    then it computes no elements together."""
    peels_ends: bool = False
    """Whether such a loop computes the first and the last element apart, so that it takes no jump
    for one beside them."""
    jumped: float = 0.0
    """Seconds longer that each number takes in a loop that takes a jump for it."""
    across: float = 0.0
    """Seconds longer that a number of a matrix takes which is transposed where a vector is
    multiplied by it; 0 where it is read in its own order."""
    shifts: bool = False
    """Whether places in arrays whose axes are merged are found by shifts, which hide that they lie
    beside each other."""
    place: float = 0.0
    """Seconds to find the places of an element in arrays that are read in several orders, in short
    rows; 0 if that shows nowhere."""
    row: int = 16
    """Numbers of a row from which on a loop computes several together, if it can."""
    unrolled: int = 0
    """Numbers of a row up to which a loop over it is unrolled, if it is."""
    starts_each: bool = False
    """Whether ops of a loop over small arrays are started one by one, unless they touch few bytes
    in all."""
    makes_functions: bool = False
    """Whether XLA makes one function of such a loop where it is asked to."""
    few_bytes: int = 1024
    """How many bytes are few."""
    surely_few_bytes: int = 128
    """The same for a loop with products or loops inside: XLA counts their copies, too, and the
    arrays that they hand on."""
    hashed_bytes: int = 600
    """How many more XLA counts for an op of JAX's generator of random numbers: it is a loop."""
    hashed_kernels: int = 0
    """How many kernels XLA starts for such an op, at least."""
    noticed_starts: float = 1 / 8
    """The part of a step's time that starting its ops takes where it is worth to avoid that."""
    window_apart: float = 0.0
    """Seconds longer that a window of a scatter, or of a gather at several numbers, takes in one
    function of a loop."""
    row_apart: float = 0.0
    """The same for a window of a gather at one number in each row of a batch."""
    number_apart: float = 0.0
    """Seconds longer that a number of such a gather takes than one that a loop has stacked."""
    one_by_one: float = 0.0
    """Seconds longer that a `tanh` of a number takes in such a function."""
    multiplied_inside: float = 0.0
    """Seconds longer that a floating point operation of a product takes in such a function."""
    few_kernels: int = 0
    """How many kernels of a region are started in a row; of more, each waits for a thread."""
    loop_kernels: int = 3
    """Kernels of a loop itself: it counts, asks whether it goes on, reads and writes its rows."""
    kernel_in_a_row: float = 0.0
    """Seconds to start one of so few."""
    write_inside: float = 0.0
    """Seconds longer that a number takes in an op which asks of it whether it is in a window that
    is written; 0 if that shows nowhere."""
    own_function: float = 0.0
    """Seconds longer that a function of its own takes to start where a region has many kernels."""
    near: int = 0
    """Bytes that stay in a cache of each core, if that is known."""
    nearby: float = 0.0
    """Seconds to write a byte and read it once, in there."""
    first_level: int = 32768
    """Bytes of the cache of first level of a core."""
    alike: int = 4096
    """Bytes after which the next line takes the place of the first in that cache, or one of a few
    such places."""
    replaced: float = 0.6e-9
    """Seconds longer that it then takes to read a number."""
    reread: int = 16384
    """Bytes of a window that XLA reads again for each reduction, instead of copying it first."""
    mixes_by_places: bool = False
    """Whether it looks up where each number comes from in an op that combines several arrays, each
    put together of parts (a field and its neighbours), or one that is read in another order."""
    reduces_one_by_one: bool = False
    """Whether it takes longer to reduce truth values than to combine arrays of them."""
    tested: float = 0.0
    """Seconds to ask in a step whether any number of an array is true, for each of them."""
    fuses_functions: bool = False
    """Whether `exp`, `tanh` and their like are computed where their results are read, by each op
    that reads them."""
    fuses_all_or_none: bool = False
    """Whether an op of several arrays is computed in all ops that read it, or once, by itself."""
    rounds_once: bool = False
    """Whether an op on numbers of `bfloat16` is computed once, however many ops read it."""
    asks_the_host: bool = False
    """Whether the host decides whether a loop goes on, so that few questions are to be asked."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of XLA that programs are to be compiled with."""
    reduced_together: int = 32
    """Truth values that such a device reduces in no time, and parts of an array that XLA combines
    in one op."""


CPU = Device(
    name="cpu",
    cache=32 << 20,
    cached=0.0733e-9,
    memory=0.45e-9,
    fresh=0.38e-9,
    worth=0.3e-9,
    flop=1 / 280e9,
    arithmetic=0.036e-9,
    transcendental=0.25e-9,
    kernel=76e-9,
    library=0.75e-6,
    slow_function=5.4e-9,
    step=0.3e-6,
    fused_step=37.5e-9,
    fused_bytes=1 << 18,
    line=64,
    compared=12e-9,
    sorts_for_values=not compat_devices.SELECTS_VALUES,
    predicate=0.75e-9,
    question=0.012e-6,
    copies_operands=True,
    sums_by_library=True,
    product_row=8e-9,
    turned=1 / 2.5e9,
    breadth_first=True,
    fuses_all_or_none=True,
    rounds_once=True,
    jumps=True,
    jumped=0.75e-9,
    across=0.75e-9,
    peels_ends=compat_devices.COMPILES_LOOPS_WHOLE,
    shifts=compat_devices.COMPILES_LOOPS_WHOLE,
    place=1e-9,
    mixes_by_places=not compat_devices.KEEPS_BARRIERS,
    unrolled=40,
    starts_each=not compat_devices.COMPILES_LOOPS_WHOLE,
    makes_functions=compat_devices.SAYS_WHAT_IS_MAIN,
    window_apart=4e-9,
    row_apart=1e-9,
    hashed_kernels=0 if compat_devices.COMPILES_LOOPS_WHOLE else 15,
    number_apart=1e-9 if compat_devices.COMPILES_LOOPS_WHOLE else 5e-9,
    one_by_one=0.5e-9,
    multiplied_inside=0.08e-9,
    few_kernels=8,
    kernel_in_a_row=12e-9,
    write_inside=0.25e-9,
    own_function=0 if compat_devices.KEEPS_BARRIERS else 0.4e-6,
    near=4 << 20,
    nearby=0.028e-9,
    reduces_one_by_one=True,
    tested=0.15e-9,
)
"""XLA:CPU.

- A row that a loop stacks, and another reads: 0.08 to 0.14 ns a byte while all stacks together stay
  below 32 MB, 0.43 to 0.53 ns beyond; 0.023 to 0.038 ns up to 4 MB.
- Products of matrices: 280 to 310 GFLOP/s.  `exp`: 0.15 to 0.37 ns.  A sum of arrays of which all
  but one are zeros with a window in them: an eighth of the time that moving them takes.
- A sort: 10 to 14 ns for each of ``n log n`` comparisons; a selection of a few of 2,000 to 32,000
  numbers: 3 to 13 ns a number, in all (JAX 0.10.2 and 0.12.0).
- A row of a product of matrices in a loop: 3 ns if it has 2, 4 or 8 numbers, 9 to 20 of 3, 15 to 20
  of 10 to 16, on both versions; of matrices of 4 x 4 or 6 x 6 in a batch 100 to 200.
- Convolutions: 60 to 160 GFLOP/s; in a loop only with features last, else 1.5 to 6 (64 channels: 48
  ms instead of 0.7).
- Gradients of a transformer, a mixer and two towers, 20 to 50 MB smaller at the same operations,
  from 56 to 106 MB: 0.4 to 0.9 ns less for each byte less.  Below 32 MB memory is not handed out
  anew.
- Steps that keep less for at most an eighth of their own predicted time, in gradients whose stacks
  take 1 MB or more: 0.54 to 1.07 times the time, 0.18 to 0.75 of the memory (28 uses).  In rows
  of less than 1 kB, or with inner loops computed again, up to 1.56 times.
- A loop step of XLA's thunks: 0.3 us.  Small loops are one function: an eighth of that.  A window
  of a scatter takes 1.5 to 4.6 ns longer there, of a gather at rows and columns 1.5 to 1.9,
  of one in each row of a batch 0.2 to 1.  A product of 8 to 32 rows of 32 to 256 numbers with a
  vector: 0.02 to 0.1 ns longer for each of its operations.
- Gradients of loops with products, or loops, inside that touch 160 to 1000 bytes in a step (JAX
  0.10): XLA makes no function by itself; one takes 0.22 to 0.6 times as long.
- A number of a row that each of a batch reads of its own table: 0.4 to 2.2 ns longer than one that
  a loop has stacked, on JAX 0.10 1.6 to 16 (8 to 32 rows of 4 to 64).
- Up to eight ops of a step start in 12 ns each, on JAX 0.12 all of a loop over few bytes: to write
  80 windows one by one took 1.25 to 1.5 times as long (0.6 where there are more, on JAX 0.10), 8 of
  64 numbers each 1.1 to 1.3 times.
- Loops over arrays of 128 bytes gain by not copying them, loops over 64 do not.
- A dozen scalars are faster in registers than as vectors, 24 are slower.  16 stacks of scalars are
  as fast as one of rows, if they are short, and a third as fast if they are long.
- Rolled fields that are computed again, several in one sum (JAX 0.10): 0.8 to 1.6 ns a number of
  each.  One by itself is a copy.
- Rows that are reversed, transposed or read with strides, combined with others (JAX 0.10): 1.3 to
  2.8 ns a number of the largest; 0 to 0.6 on JAX 0.12.
- Differences of all pairs of rows of 3 to 12 numbers that are computed again: 0.6 to 5 ns a number.
- A sum of which one term is a number of each row, padded, takes up to 6 times as long as with a
  choice for each element, in rows of 16 numbers or more; in rows of 4 to 8, 0.5 to 1 times.
- Rows along the second axis are read and written in place in 0.7 to 1.15 times the time of
  transposing the array before and after the loop, if a row has at most 256 cache lines, and in 0.8
  to 5 times the time if it has 1024. Columns of floats: 0.5 to 0.9 times, but 1.15 to 1.9 of 128 or
  256 rows of 256.
- Outer products that are added up, in 256 rows of 24 to 40 numbers: 0.1 to 0.3 ns a number if the
  row is computed there, 0.5 to 0.9 if it is in memory; in rows of 8, 16, or 48 and more, no less.
  In 16 to 64 rows 0.54 to 0.75 times as long on JAX 0.12, 1 to 1.5 times on 0.10.
- An outer product whose factor along the last axis is computed there: 0.05 to 0.15 ns a number, as
  with one in memory. If the factor is joined of parts, or filled up behind: 0.6 to 1.7 (JAX 0.12:
  not in rows of 16 or fewer, nor if the parts are of one array); so, in rows of more than 40
  numbers, if its axes are merged, and are not in order, or on JAX 0.12 one has 2, 4, 8, 16, ...
  numbers.  A factor along another axis is computed once a row in any case.
- A vector times a transpose, in a loop: 0.3 ns a number longer than times the matrix where that has
  64 x 64 numbers, 1.3 of 128 x 128, 2 to 3 of 128 x 512, 4.6 of 512 x 512; 0 of 16 x 16, and in
  batches. 2 to 64 columns, from the right times the transpose of 128 x 512 to 512 x 512 numbers: 2
  to 4 ns longer than from the left times the matrix, of 64 x 64 0.1 to 0.4.
- A window of 16 kB that is reduced is copied first, if it is written, too; a smaller one is not.
- Asking in each step whether any of 1024 truth values is true takes 0.17 to 0.23 us, and 0.01 to
  0.05 us if halves of them are combined first; of 8192, 1.0 to 1.5 us and at most 0.2.  With what
  it takes to make them once more: 0.06 to 0.15 ns each.
- A `dynamic_update_slice` of an array of 100 to 10,000 elements that was computed just before takes
  1 to 14 times as long as computing the array, and then writing the window.
"""

GPU = Device(
    name="gpu",
    cache=50 << 20,
    cached=2 / 10e12,
    memory=2 / 4.8e12,
    trips=3,
    flop=1 / 250e12,
    arithmetic=1 / 33e12,
    transcendental=1 / 3.7e12,
    kernel=1e-6,
    product=3e-6,
    truncates=True,
    step=6e-6,
    fused_step=6e-6,
    fused_bytes=0,
    line=32,
    predicate=1 / 10e12,
    question=13e-6,
    fuses_functions=True,
    asks_the_host=True,
    options=(("xla_gpu_graph_min_graph_size", 2),),
)
"""An H200: 4.8 TB/s, 50 MB of L2 cache.

The special function units of 132 multiprocessors give 16 results each at 1.76 GHz.

- XLA launches five or more kernels of a step together: a step of 4, 6 or 12 and a counter takes
  4.7, 6.5 or 10.4 us.  Fewer it launches one by one: 8.9 us for one kernel, 13.8 for two.  With the
  option it launches two together, too: a step of one to three takes 4.1, 3.7 and 4.5 us.
- A loop that goes on while a number is true, and a branch, take 13 us more: the device hands the
  number to the host, which waits for it.
- Reading and writing a byte: 0.5 to 0.6 ps; `exp`, `tanh`: 0.6 and 0.9 ps a number.
- A row that a loop stacks, and another reads: 1.2 to 1.3 ps a byte (gradients of transformers with
  and without `jax.checkpoint`, 7 to 34 GB of stacks); of 0.1 MB, in stacks of 1 GB, 1 us.
- Products, computed again in them: 250 TFLOP/s (float32 as TF32, how JAX multiplies by default) and
  365 (bfloat16), with what is elementwise; small ones 3 to 5 us (0.1 to 0.3 GFLOP).
"""

TPU = Device(
    name="tpu",
    cache=128 << 20,
    cached=2 / 8e12,
    memory=2 / 0.82e12,
    flop=1 / 197e12,
    arithmetic=1 / 6e12,
    transcendental=1 / 1e12,
    truncates=True,
    kernel=0.5e-6,
    step=1e-6,
    fused_step=1e-6,
    fused_bytes=0,
    line=512,
    lanes=8,
    registers=64,
    predicate=1 / 2e12,
    question=0.04e-6,
)
"""A v5e: 819 GB/s, 197 TFLOP/s (bfloat16, how JAX multiplies float32 by default), 128 MB of VMEM.

A program, its loops included, runs on the device: nobody asks the host.
"""

DEVICES = {device.name: device for device in (CPU, GPU, TPU)}
