"""AES-128, SipHash and the Internet checksum, written down from their specifications and nothing else.

Slow and plain on purpose: these are what the fast ones are held against. check() tries the specifications' own
examples.
"""


def _xtime(value):
    return (value << 1 ^ 0x11B) & 0xFF if value & 0x80 else value << 1


def _multiply(a, b):
    product = 0
    while b:
        if b & 1:
            product ^= a
        a, b = _xtime(a), b >> 1
    return product


def _sbox():
    """FIPS 197 section 5.1.1: the inverse in GF(2^8), then the affine transformation."""
    def rotate(value, by):
        return (value << by | value >> (8 - by)) & 0xFF

    def of(value):
        inverse = next((i for i in range(256) if _multiply(value, i) == 1), 0)
        return inverse ^ rotate(inverse, 1) ^ rotate(inverse, 2) ^ rotate(inverse, 3) ^ rotate(inverse, 4) ^ 0x63
    return [of(value) for value in range(256)]


SBOX = _sbox()


def _expand(key):
    words = [list(key[i:i + 4]) for i in range(0, 16, 4)]
    constant = 1
    for i in range(4, 44):
        word = list(words[-1])
        if i % 4 == 0:
            word = [SBOX[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _xtime(constant)
        words.append([a ^ b for a, b in zip(words[-4], word)])
    return [sum(words[i:i + 4], []) for i in range(0, 44, 4)]


def aes128(key, block):
    """FIPS 197 section 5.1. The state is kept as sixteen bytes, column by column."""
    keys = _expand(key)
    state = [a ^ b for a, b in zip(block, keys[0])]
    for round_number in range(1, 11):
        state = [SBOX[b] for b in state]
        state = [state[(i + 4 * (i % 4)) % 16] for i in range(16)]
        if round_number < 10:
            mixed = []
            for c in range(0, 16, 4):
                column = state[c:c + 4]
                mixed += [_multiply(column[i], 2) ^ _multiply(column[(i + 1) % 4], 3)
                          ^ column[(i + 2) % 4] ^ column[(i + 3) % 4] for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[round_number])]
    return bytes(state)


def aes128_inverse(key, block):
    """FIPS 197 section 5.3: the steps backwards, each undone."""
    keys = _expand(key)
    state = list(block)
    for round_number in range(10, 0, -1):
        state = [a ^ b for a, b in zip(state, keys[round_number])]
        if round_number < 10:
            mixed = []
            for c in range(0, 16, 4):
                column = state[c:c + 4]
                mixed += [_multiply(column[i], 14) ^ _multiply(column[(i + 1) % 4], 11)
                          ^ _multiply(column[(i + 2) % 4], 13) ^ _multiply(column[(i + 3) % 4], 9) for i in range(4)]
            state = mixed
        state = [state[(i - 4 * (i % 4)) % 16] for i in range(16)]
        state = [SBOX.index(b) for b in state]
    return bytes(a ^ b for a, b in zip(state, keys[0]))


MASK = (1 << 64) - 1


def siphash(k0, k1, data, compressions=2, finalizations=4):
    """Aumasson and Bernstein, "SipHash: a fast short-input PRF", section 2."""
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotate(value, by):
        return (value << by | value >> (64 - by)) & MASK

    def rounds(count):
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at:at + 8], "little")
        v[3] ^= word
        rounds(compressions)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(finalizations)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def internet_checksum(data):
    """RFC 1071: the one's complement of the one's complement sum of 16-bit words."""
    data += bytes(len(data) % 2)
    total = 0
    for at in range(0, len(data), 2):
        total += data[at] << 8 | data[at + 1]
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def check():
    key, plain = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    assert aes128(key, plain).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a", "FIPS 197 appendix C.1"
    assert aes128_inverse(key, aes128(key, plain)) == plain
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    assert siphash(low, high, bytes(range(15))) == 0xA129CA6149BE45E5, "SipHash paper, appendix A"
    assert internet_checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2 ^ 0xFFFF, "RFC 1071 section 3"
