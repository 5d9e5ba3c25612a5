"""The random stream by the book: AES-128 of FIPS 197, byte by byte, and what is made of it."""

import numpy as np


def _times(a, b):
    """Product in the field of 256 elements."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


def _box():
    """Inverse, then the affine map."""
    box = []
    for a in range(256):
        inverse = next((b for b in range(256) if _times(a, b) == 1), 0)
        value = 0x63
        for turn in range(5):
            value ^= (inverse << turn | inverse >> (8 - turn)) & 0xFF
        box.append(value)
    return box


BOX = _box()


def round_keys(key):
    words = [list(key[4 * i : 4 * i + 4]) for i in range(4)]
    constant = 1
    for i in range(4, 44):
        word = list(words[-1])
        if i % 4 == 0:
            word = [BOX[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times(constant, 2)
        words.append([a ^ b for a, b in zip(words[i - 4], word, strict=True)])
    return [[b for word in words[4 * r : 4 * r + 4] for b in word] for r in range(11)]


def encrypt(keys, block):
    """16 bytes; byte 4·column + row of the state."""
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for number in range(1, 11):
        state = [BOX[state[4 * ((c + r) % 4) + r]] for c in range(4) for r in range(4)]
        if number < 10:
            state = [
                _times(2, state[4 * c + r])
                ^ _times(3, state[4 * c + (r + 1) % 4])
                ^ state[4 * c + (r + 2) % 4]
                ^ state[4 * c + (r + 3) % 4]
                for c in range(4)
                for r in range(4)
            ]
        state = [a ^ b for a, b in zip(state, keys[number], strict=True)]
    return bytes(state)


def stream(seed, n, start=0):
    """Values start … start + n - 1 of a seed's stream, uint32."""
    keys = round_keys(2 * int(seed).to_bytes(8, "little"))
    first, last = start // 4, (start + n + 3) // 4
    blocks = b"".join(encrypt(keys, b.to_bytes(16, "big")) for b in range(first, last))
    return np.frombuffer(blocks, "<u4")[start - 4 * first :][:n].astype(np.uint32)


def uniform(values, low, high):
    """float32 as the C interface gives it: one rounding of u, one of the product and sum."""
    u = values.astype(np.float32).astype(np.float64) / 2.0**32
    low, high = np.float32(low), np.float32(high)
    return (u * np.float64(high - low) + np.float64(low)).astype(np.float32)


def normal(values, mean, std):
    """Pairs of float64 by Box and Muller."""
    u, t = (values[0::2] + 0.5) / 2.0**32, values[1::2] / 2.0**32
    radius = np.sqrt(-2 * np.log(u))
    pairs = np.stack([radius * np.cos(2 * np.pi * t), radius * np.sin(2 * np.pi * t)], axis=1)
    return mean + std * pairs.reshape(-1)


def integers(values, low, high):
    scaled = values.astype(np.uint64) * np.uint64(high - low) >> np.uint64(32)
    return low + scaled.astype(np.int64)


def categories(values, probabilities):
    shares = np.cumsum(np.asarray(probabilities, np.float64))
    return np.searchsorted(shares, values / 2.0**32 * shares[-1], side="right")
