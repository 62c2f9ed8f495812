/* Vectors of float32 in whatever width this processor has, small matrix products, and the parts of attention that
   decoding and training share. GNU vector extensions, so that GCC and Clang make the best of any processor. */

#ifndef SAPO_VECTORS_H
#define SAPO_VECTORS_H

#include <math.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES     16
#define TILE_ROWS 8
#elif defined(__AVX__)
#define LANES     8
#define TILE_ROWS 6
#else
#define LANES     4
#define TILE_ROWS 8
#endif
#define PAD    16 /* a multiple of LANES */
#define CHUNK  16 /* rows of one prompt, or tokens of a prompt, whose attention is computed at once */
#define PANEL  32 /* columns of a weight that lie together, a multiple of 2 LANES */
#define MASKED (-1e30f)
#define LOWEST (-80.0f) /* e to less is taken for 0: products with it would be subnormal, which is slow */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
#define SHARED static __attribute__((unused, noinline))

/* Heads of queries, heads of keys, numbers of a head; slots: tokens that a row may sample, for decoding; eps of the
 * norms. */
typedef struct {
    int64_t heads, kv_heads, size, slots;
    float eps;
} Shape;

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec x) { *(vec *)p = x; }
INLINE int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }
INLINE vec max_vec(vec a, vec b) {
    ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}
INLINE float sum(vec x) {
    float total = 0.0f;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* e^x for x <= 0, to 2e-7 of it; 0 for those up to LOWEST. By the polynomial of Cephes' expf on x less a multiple of
 * log 2. */
INLINE vec exp_vec(vec x) {
    ints counts = x > LOWEST;
    x = max_vec(x, (vec){0} + LOWEST);
    ints whole = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    vec n = __builtin_convertvector(whole, vec);
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vec)((ints)(p * (vec)((whole + 127) << 23)) & counts);
}

/* layers.c */
void sapo_rms_norm(int64_t rows, int64_t width, const float *x, const float *weight, float eps, float *out);
void sapo_swiglu(int64_t rows, int64_t width, const float *gate_up, float *out);

/* decoding.c */
void sapo_decode_attention(const Shape *s, int64_t rows, const int64_t *row, const int64_t *owner, int64_t used,
                           const int64_t *lengths, const int64_t *begins, const float *qkv, const float *q_norm,
                           const float *k_norm, const float *cos, const float *sin, const float *keys,
                           const float *values, float *completion_keys, float *completion_values, float *out,
                           float *scratch);

/* products.c */
/* c (rows, columns) = or += a (rows, depth) b (depth, columns), rows of each so far apart; columns: a multiple of
 * LANES. */
void sapo_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, const float *b,
                 int64_t b_row, float *c, int64_t c_row, int add);

/* c (rows, columns) += the transpose of a (depth, rows) times b (depth, columns). */
void sapo_add_transposed_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row,
                                const float *b, int64_t b_row, float *c, int64_t c_row);

/* c (rows, columns) = or += a (rows, depth) b; b lies in panels of PANEL columns, (panels, depth, PANEL), the last
 * filled up. */
void sapo_panel_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, float *c, int add);

/* Of x (count,); count: a multiple of PAD. */
INLINE float max_of(const float *x, int64_t count) {
    vec top = load(x);
    for (int64_t i = LANES; i < count; i += LANES) top = max_vec(top, load(x + i));
    float highest = top[0];
    for (int i = 1; i < LANES; i++) highest = top[i] > highest ? top[i] : highest;
    return highest;
}

/* x (count,) becomes e^(x - its max_of); returns 1 / their sum. count: a multiple of PAD. */
SHARED float softmax_numerators(float *x, int64_t count) {
    float highest = max_of(x, count);
    vec total = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        vec e = exp_vec(load(x + i) - highest);
        store(x + i, e);
        total += e;
    }
    return 1.0f / sum(total);
}

INLINE void mask(float *x, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) x[i] = MASKED;
}

/* x (width,) times its inverse root mean square and weight; width: a multiple of PAD. */
INLINE void rms_norm(int64_t width, const float *x, const float *weight, float eps, float *out) {
    vec squares = {0};
    for (int64_t i = 0; i < width; i += LANES) squares += load(x + i) * load(x + i);
    float scale = 1.0f / sqrtf(sum(squares) / (float)width + eps);
    for (int64_t i = 0; i < width; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
}

/* Rotary embedding of one head x (size,), RMS-normalised first where there is a weight: by cos, sin (size,), times
   scale. The first half of sin is negated. */
INLINE void rotate(const Shape *s, const float *x, const float *weight, const float *cos, const float *sin, float scale,
                   float *out) {
    float normalised[1024];
    int64_t half = s->size / 2;
    if (weight) {
        rms_norm(s->size, x, weight, s->eps, normalised);
        x = normalised;
    }
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        out[i] = (a * cos[i] + b * sin[i]) * scale;
        out[i + half] = (b * cos[i + half] + a * sin[i + half]) * scale;
    }
}

#endif
