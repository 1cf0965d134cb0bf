"""Random numbers of an image that depend on its place in the set alone.

A counter is hashed, in int32, whose products wrap around on every backend. So
the numbers are the same on all of them, need no state, and can start at any
image: the way in which a set is cut into batches does not matter.
"""

import math
import zlib

import numpy as np
from keras import ops

# Of MurmurHash3's kind, with the constants of Ettinger's lowbias32; the first
# one is 2^32 over the golden ratio.
GOLDEN = 0x9E3779B9
FACTORS = (0x7FEB352D, 0x846CA68B)
SHIFTS = (16, 15, 16)


class Draws:
    """The random numbers of a batch, a new set of them for each call.

    Args:
        seed: int, or an int32 tensor.
        name: the numbers of another name are independent of these.
        index: int32 tensor `(n,)`, the place of each image in the set.
    """

    def __init__(self, seed, name, index):
        self.seed = mix(as_int32(seed))
        self.name = name
        self.index = index
        self.count = 0

    def bits(self, *shape):
        """Random int32, `(n, *shape)`."""
        code = zlib.crc32(f"{self.name} {self.count}".encode())
        self.count += 1
        key = mix(ops.bitwise_xor(self.seed, as_int32(code)))
        found = hash_bits(key, self.index, math.prod(shape))
        return ops.reshape(found, (-1, *shape))

    def uniform(self, low, high, *shape):
        """Uniform on `(low, high)`, `(n, *shape)`.

        23 bits and a half are a float32 exactly; neither end is drawn.
        """
        top = ops.cast(shift_right(self.bits(*shape), 9), "float32")
        return low + (high - low) * ((top + 0.5) * 2.0**-23)

    def below(self, number, *shape):
        """Uniform integers from 0 to `number - 1`, int32, `(n, *shape)`."""
        found = ops.floor(self.uniform(0.0, number, *shape))
        # A product may round up to `number`.
        return ops.cast(ops.minimum(found, number - 1), "int32")

    def normal(self, *shape):
        """Standard normal (Box and Muller, 1958), `(n, *shape)`."""
        radius = ops.sqrt(-2.0 * ops.log(self.uniform(0.0, 1.0, *shape)))
        return radius * ops.cos(self.uniform(0.0, 2 * math.pi, *shape))


def hash_bits(key, index, num):
    """`num` random int32 for each image, `(n, num)`.

    Args:
        key: int, or an int32 tensor.
        index: int32 tensor, `(n,)`.
        num: int.
    """
    image = mix(ops.add(index, as_int32(GOLDEN)))
    image = mix(ops.bitwise_xor(image, as_int32(key)))[:, None]
    place = np.arange(num, dtype="uint64") * GOLDEN
    place = ops.convert_to_tensor(wrapped(place)[None])
    return mix(ops.bitwise_xor(mix(ops.add(image, place)), image))


def mix(x):
    """A bijection of int32 in which each bit depends on every bit of `x`."""
    for shift, factor in zip(SHIFTS, (*FACTORS, None), strict=True):
        x = ops.bitwise_xor(x, shift_right(x, shift))
        if factor is not None:
            x = ops.multiply(x, as_int32(factor))
    return x


def shift_right(x, number):
    """Shift in zeros; the shift of int32 alone repeats the sign."""
    mask = ops.convert_to_tensor(np.int32((1 << (32 - number)) - 1))
    return ops.bitwise_and(ops.right_shift(x, np.int32(number)), mask)


def as_int32(value):
    """An integer as a tensor, wrapped around; tensors are cast."""
    if isinstance(value, int | np.integer):
        value = wrapped(np.uint64(int(value) % 2**32))
    return ops.cast(ops.convert_to_tensor(value), "int32")


def wrapped(values):
    """The last 32 bits of uint64, as int32."""
    return (values & 0xFFFFFFFF).astype("uint32").view("int32")
