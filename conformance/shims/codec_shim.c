/* Example of a codec command in C: cc -O2 -o codec_shim codec_shim.c
 *
 * It knows the 16-bit form alone and refuses the rest, which is all that a shim has to
 * do: replace encode16 and decode16 by calls of the build under test, and add names.
 * Messages: a big-endian u32 length, then that many bytes. Request: u8 operation
 * (0 describe, 1 encode, 2 decode), 15 bytes name padded with NUL, u32 count, u32 rows,
 * data. Answer: u8 status (0 done, 1 not supported, 2 refused), data or a text. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 24, LIMIT = 64 << 20 };

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void say(uint8_t status, const void *data, size_t size)
{
    uint32_t n = (uint32_t)size + 1;
    uint8_t head[5] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8),
                       (uint8_t)n, status};
    fwrite(head, 1, sizeof head, stdout);
    fwrite(data, 1, size, stdout);
    fflush(stdout);
}

/* binary32 to binary16, to nearest, ties to even; a NaN keeps its sign alone. */
static uint16_t encode16(uint32_t bits)
{
    uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (rest >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x33000001u)
        return (uint16_t)sign;
    if (rest < 0x38800000u) {
        uint32_t shift = 126u - (rest >> 23);
        uint32_t whole = (rest & 0x7fffffu) | 0x800000u;
        uint32_t half = 1u << (shift - 1u), cut = whole & ((1u << shift) - 1u);
        uint32_t found = whole >> shift;
        if (cut > half || (cut == half && (found & 1u)))
            found++;
        return (uint16_t)(sign | found);
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | (rest - 0x38000000u) >> 13);
}

static uint32_t decode16(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000u) << 16, field = code >> 10 & 31u;
    uint32_t part = code & 0x3ffu;
    if (field == 31u)
        return sign | 0x7f800000u | part << 13;
    if (field == 0u) {
        if (!part)
            return sign;
        uint32_t power = 113u;
        while (!(part & 0x400u)) {
            part <<= 1;
            power--;
        }
        return sign | power << 23 | (part & 0x3ffu) << 13;
    }
    return sign | (field + 112u) << 23 | part << 13;
}

static void work(uint8_t operation, const uint8_t *data, size_t size, uint32_t count)
{
    size_t wide = operation == 1 ? 4 : 2, narrow = operation == 1 ? 2 : 4;
    if (count > LIMIT / 4 || size != wide * count) {
        say(2, "sizes do not fit", 16);
        return;
    }
    uint8_t *out = malloc(narrow * count + 1);
    if (!out) {
        say(2, "no memory", 9);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (operation == 1) {
            const uint8_t *p = data + 4u * i;
            uint32_t bits = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16
                            | (uint32_t)p[3] << 24;
            uint16_t code = encode16(bits);
            out[2u * i] = (uint8_t)code;
            out[2u * i + 1] = (uint8_t)(code >> 8);
        } else {
            uint32_t bits = decode16((uint16_t)(data[2u * i] | data[2u * i + 1] << 8));
            for (int b = 0; b < 4; b++)
                out[4u * i + (uint32_t)b] = (uint8_t)(bits >> 8 * b);
        }
    }
    say(0, out, narrow * count);
    free(out);
}

int main(void)
{
    uint8_t prefix[4];
    while (fread(prefix, 1, 4, stdin) == 4) {
        uint32_t size = be32(prefix);
        if (size < HEAD || size > LIMIT)
            return 2;
        uint8_t *body = malloc(size);
        if (!body || fread(body, 1, size, stdin) != size)
            return 2;
        if (body[0] == 0)
            say(0, "example shim, 16 bit", 20);
        else if (strncmp((char *)body + 1, "f16", 15) != 0)
            say(1, "this shim knows f16 alone", 25);
        else
            work(body[0], body + HEAD, size - HEAD, be32(body + 16));
        free(body);
    }
    return 0;
}
