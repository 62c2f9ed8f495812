/* What lies between the matrix products of a small decoder, in float32, for one thread: normalisation, gate, rotation and
   attention of prompts and of decoding. Compiled on the user's machine (library.py); GNU vector extensions, so that GCC and
   Clang make the best of any processor.

   A prompt's keys lie by number, (kv_heads, size, padded), its values (kv_heads, padded, size), where padded is its length
   rounded up to 16; what a row draws likewise, with `slots` in the place of padded. */

#include <math.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define TALL 8
#elif defined(__AVX__)
#define LANES 8
#define TALL 6
#else
#define LANES 4
#define TALL 8
#endif
#define PAD 16   /* a multiple of LANES */
#define CHUNK 16 /* rows of one prompt, or tokens of a prompt, that attend at once */
#define HIDDEN (-1e30f)
#define LOWEST (-87.0f) /* e to this is the least positive number there is room for */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* heads, kv_heads, and numbers of a head; slots for the tokens of a row. q_norm, k_norm: NULL where the model has none. */
typedef struct {
    int64_t heads, kv_heads, size, slots;
    float eps;
} Shape;

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
INLINE int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }
INLINE vec larger(vec a, vec b) {
    ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}
INLINE float sum(vec x) {
    float total = 0.0f;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* e^x for x in [-87, 0], to 2e-7 of it; below that 0 or nearly. */
INLINE vec exponential(vec x) {
    x = larger(x, (vec){0} + LOWEST);
    ints whole = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    vec n = __builtin_convertvector(whole, vec);
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)((whole + 127) << 23);
}

/* c (rows, wide * LANES) = or += a (rows, depth) b (depth, wide * LANES) */
INLINE void tile(int rows, int wide, int64_t depth, const float *a, int64_t a_row, const float *b, int64_t b_row,
                 float *c, int64_t c_row, int add) {
    vec total[TALL][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < wide; w++) total[r][w] = add ? load(c + r * c_row + w * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        vec first = load(b + k * b_row), second = wide > 1 ? load(b + k * b_row + LANES) : first;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float x = a[r * a_row + k];
            total[r][0] += x * first;
            if (wide > 1) total[r][1] += x * second;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < wide; w++) store(c + r * c_row + w * LANES, total[r][w]);
}

/* The same for any number of rows; columns: a multiple of LANES. */
static void product(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, const float *b,
                    int64_t b_row, float *c, int64_t c_row, int add) {
    for (int64_t j = 0; j < columns; j += 2 * LANES)
        for (int64_t i = 0; i < rows; i += TALL) {
            const float *from = a + i * a_row, *by = b + j;
            float *to = c + i * c_row + j;
#define CASE(n)                                                                                                  \
    case n:                                                                                                      \
        if (columns - j > LANES) tile(n, 2, depth, from, a_row, by, b_row, to, c_row, add);                      \
        else tile(n, 1, depth, from, a_row, by, b_row, to, c_row, add);                                          \
        break;
            switch (rows - i < TALL ? rows - i : TALL) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TALL == 8
                CASE(7) CASE(8)
#endif
            }
#undef CASE
        }
}

/* Of x (count,); count: a multiple of PAD. */
INLINE float largest(const float *x, int64_t count) {
    vec top = load(x);
    for (int64_t i = LANES; i < count; i += LANES) top = larger(top, load(x + i));
    float highest = top[0];
    for (int i = 1; i < LANES; i++) highest = top[i] > highest ? top[i] : highest;
    return highest;
}

/* x (count,) becomes e^(x - its largest); returns 1 / their sum. count: a multiple of PAD. */
static float soften(float *x, int64_t count) {
    float highest = largest(x, count);
    vec total = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec e = exponential(load(x + i) - highest);
        store(x + i, e);
        total += e;
    }
    return 1.0f / sum(total);
}

INLINE void hide(float *x, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) x[i] = HIDDEN;
}

/* x (width,) times its inverse root mean square and weight; width: a multiple of PAD. */
INLINE void normalise(int64_t width, const float *x, const float *weight, float eps, float *out) {
    vec squares = {0};
    for (int64_t i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
    float scale = 1.0f / sqrtf(sum(squares) / (float)width + eps);
    for (int64_t i = 0; i < width; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
}

/* x (rows, width) -> out. */
void sapo_normalise(int64_t rows, int64_t width, const float *x, const float *weight, float eps, float *out) {
    for (int64_t r = 0; r < rows; r++) normalise(width, x + r * width, weight, eps, out + r * width);
}

/* gate_up (rows, 2 * width) -> out (rows, width): silu(gate) * up. */
void sapo_gate(int64_t rows, int64_t width, const float *gate_up, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = gate_up + 2 * r * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i), zero = {0};
            vec e = exponential(zero - larger(x, zero - x)); /* e^-|x|, which does not overflow */
            ints positive = x > 0.0f;
            vec above = (vec)(((ints)(zero + 1.0f) & positive) | ((ints)e & ~positive));
            store(out + r * width + i, x * above / (1.0f + e) * load(up + i));
        }
    }
}

/* One head x (size,), normalised where there is a weight, rotated by cos, sin (size,), times scale. The first half of sin is
   negated. */
INLINE void turn(const Shape *s, const float *x, const float *weight, const float *cos, const float *sin, float scale,
                 float *out) {
    float room[1024];
    int64_t half = s->size / 2;
    if (weight) {
        normalise(s->size, x, weight, s->eps, room);
        x = room;
    }
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        out[i] = (a * cos[i] + b * sin[i]) * scale;
        out[i + half] = (b * cos[i + half] + a * sin[i + half]) * scale;
    }
}

/* A token's key and value of one head to their place: keys (size, row), values (.., size). */
INLINE void place(const Shape *s, const float *key, const float *k_norm, const float *value, const float *cos,
                  const float *sin, float *keys, int64_t row, float *values) {
    float turned[1024];
    turn(s, key, k_norm, cos, sin, 1.0f, turned);
    for (int64_t i = 0; i < s->size; i++) keys[i * row] = turned[i];
    for (int64_t i = 0; i < s->size; i++) values[i] = value[i];
}

/* Prompts: qkv (tokens, (heads + 2 kv_heads) * size) of all, those of one behind those of another, at positions from 0 ->
   keys, values, and what attention gives, out (tokens, heads * size). cos, sin (positions, size). starts, lengths, begins
   (prompts,): first token, tokens, and where its keys and values begin. last_only: attention of each prompt's last token
   only. scratch: CHUNK * heads / kv_heads * (longest padded + 2 * size). */
void sapo_prompts(const Shape *s, int64_t prompts, const int64_t *starts, const int64_t *lengths, const int64_t *begins,
                  const float *qkv, const float *q_norm, const float *k_norm, const float *cos, const float *sin,
                  float *keys, float *values, int64_t last_only, float *out, float *scratch) {
    int64_t size = s->size, group = s->heads / s->kv_heads, row = (s->heads + 2 * s->kv_heads) * size;
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t p = 0; p < prompts; p++) {
        int64_t length = lengths[p], room = padded(length);
        const float *first = qkv + starts[p] * row;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            float *k = keys + begins[p] + h * size * room, *v = values + begins[p] + h * size * room;
            const float *key = first + (s->heads + h) * size, *value = key + s->kv_heads * size;
            for (int64_t t = 0; t < length; t++)
                place(s, key + t * row, k_norm, value + t * row, cos + t * size, sin + t * size, k + t, room, v + t * size);
            for (int64_t t = last_only ? length - 1 : 0; t < length; t += CHUNK) {
                int64_t end = t + CHUNK < length ? t + CHUNK : length, seen = padded(end), count = (end - t) * group;
                float *q = scratch, *mixed = q + CHUNK * group * size, *weights = mixed + CHUNK * group * size;
                for (int64_t i = t; i < end; i++)
                    for (int64_t g = 0; g < group; g++)
                        turn(s, first + i * row + (h * group + g) * size, q_norm, cos + i * size, sin + i * size, scale,
                             q + ((i - t) * group + g) * size);
                product(count, seen, size, q, size, k, room, weights, seen, 0);
                float inverse[CHUNK * group];
                for (int64_t i = 0; i < count; i++) {
                    hide(weights + i * seen, t + i / group + 1, seen);
                    inverse[i] = soften(weights + i * seen, seen);
                }
                product(count, size, end, weights, seen, v, size, mixed, size, 0);
                for (int64_t i = 0; i < count; i++) {
                    float *to = out + (starts[p] + t + i / group) * s->heads * size + (h * group + i % group) * size;
                    for (int64_t j = 0; j < size; j += LANES) store(to + j, load(mixed + i * size + j) * inverse[i]);
                }
            }
        }
    }
}

/* Decoding: qkv (rows, ..) of one new token each, the used-th (from 0) that its row drew -> its key and value in place, and
   out (rows, heads * size). row, owner (rows,): which of own_keys, own_values a row has, and whose prompt; rows of one
   prompt lie together. scratch: CHUNK * heads / kv_heads * (longest padded + slots + 2 * size). */
void sapo_rows(const Shape *s, int64_t rows, const int64_t *row, const int64_t *owner, int64_t used,
               const int64_t *lengths, const int64_t *begins, const float *qkv, const float *q_norm, const float *k_norm,
               const float *cos, const float *sin, const float *keys, const float *values, float *own_keys,
               float *own_values, float *out, float *scratch) {
    int64_t size = s->size, group = s->heads / s->kv_heads, width = (s->heads + 2 * s->kv_heads) * size;
    int64_t own = padded(used + 1);
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t r = 0, end; r < rows; r = end) {
        for (end = r + 1; end < rows && end < r + CHUNK && owner[end] == owner[r];) end++;
        int64_t length = lengths[owner[r]], room = padded(length), seen = room + own, count = (end - r) * group;
        const float *c = cos + (length + used) * size, *n = sin + (length + used) * size;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            const float *k = keys + begins[owner[r]] + h * size * room, *v = values + begins[owner[r]] + h * size * room;
            float *q = scratch, *mixed = q + CHUNK * group * size, *weights = mixed + CHUNK * group * size;
            for (int64_t i = r; i < end; i++) {
                const float *key = qkv + i * width + (s->heads + h) * size;
                float *k_own = own_keys + (row[i] * s->kv_heads + h) * size * s->slots;
                float *v_own = own_values + (row[i] * s->kv_heads + h) * size * s->slots;
                place(s, key, k_norm, key + s->kv_heads * size, c, n, k_own + used, s->slots, v_own + used * size);
                float *mine = q + (i - r) * group * size;
                for (int64_t g = 0; g < group; g++)
                    turn(s, qkv + i * width + (h * group + g) * size, q_norm, c, n, scale, mine + g * size);
                product(group, own, size, mine, size, k_own, s->slots, weights + (i - r) * group * seen + room, seen, 0);
            }
            product(count, room, size, q, size, k, room, weights, seen, 0);
            float inverse[CHUNK * group];
            for (int64_t i = 0; i < count; i++) {
                hide(weights + i * seen, length, room);
                hide(weights + i * seen, room + used + 1, seen);
                inverse[i] = soften(weights + i * seen, seen);
            }
            product(count, size, length, weights, seen, v, size, mixed, size, 0);
            for (int64_t i = r; i < end; i++) {
                const float *v_own = own_values + (row[i] * s->kv_heads + h) * size * s->slots;
                float *mine = mixed + (i - r) * group * size;
                product(group, size, used + 1, weights + (i - r) * group * seen + room, seen, v_own, size, mine, size, 1);
                for (int64_t g = 0; g < group; g++)
                    for (int64_t j = 0; j < size; j += LANES)
                        store(out + (i * s->heads + h * group + g) * size + j,
                              load(mine + g * size + j) * inverse[(i - r) * group + g]);
            }
        }
    }
}

/* Tokens (rows,) drawn from softmax(logits / temperature), logits (rows, count), by uniform (rows,) in [0, 1), and their
   log-probabilities. room: count. count: a multiple of PAD. */
void sapo_draw(int64_t rows, int64_t count, const float *logits, float temperature, const double *uniform, int64_t *tokens,
               float *logprobs, float *room) {
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * count;
        double total = 0.0, passed = 0.0;
        float highest = largest(x, count);
        for (int64_t i = 0; i < count; i += LANES) {
            vec under = (load(x + i) - highest) / temperature;
            vec e = (vec)((ints)exponential(under) & (under > LOWEST)); /* what cannot be drawn has no weight at all */
            store(room + i, e);
            total += sum(e);
        }
        double target = uniform[r] * total, next = 0.0;
        int64_t i = 0;
        for (; i < count - LANES && (next = passed + sum(load(room + i))) <= target; i += LANES) passed = next;
        int64_t end = i + LANES - 1;
        for (; i < end && (next = passed + room[i]) <= target; i++) passed = next;
        while (room[i] == 0.0f && i > 0) i--; /* rounding may leave the target a hair beyond its block */
        tokens[r] = i;
        logprobs[r] = (float)((x[i] - highest) / temperature - log(total));
    }
}
