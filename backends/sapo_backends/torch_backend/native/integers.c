/* Products of 8-bit integers, and a decode step that computes all layers with them; for one thread.

   GROUP weights of an output share a scale and a lowest value, so that 16 levels between two extremes (a block of a
   4-bit file) are met exactly; GROUP numbers of an input row share a scale, so that a large one costs only its
   neighbours' precision. */

#include "vectors.h"

#if defined(__AVX512BW__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

/* total + the products of each lane's four bytes w, from 0 to STEPS, and x, from -127 to 127; STEPS: a multiple of 15
   such that nothing saturates, 0 without such an instruction; SHIFT: what is taken off w to store it. */
#define SHIFT 0
#if defined(__AVX512VNNI__)
#define STEPS 240
INLINE ints dot_bytes(ints total, ints w, ints x) {
    return (ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)w, (__m512i)x);
}
#elif defined(__AVX512BW__)
#define STEPS 120
INLINE ints dot_bytes(ints total, ints w, ints x) {
    __m512i pairs = _mm512_maddubs_epi16((__m512i)w, (__m512i)x);
    return total + (ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
#define STEPS 240
INLINE ints dot_bytes(ints total, ints w, ints x) {
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)w, (__m256i)x);
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define STEPS 120
INLINE ints dot_bytes(ints total, ints w, ints x) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
    return total + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
#elif defined(__ARM_FEATURE_DOTPROD)
#define STEPS 240
#undef SHIFT
#define SHIFT 128
INLINE ints dot_bytes(ints total, ints w, ints x) {
    return (ints)vdotq_s32((int32x4_t)total, (int8x16_t)w, (int8x16_t)x);
}
#else
#define STEPS 0
INLINE ints dot_bytes(ints total, ints w, ints x) {
    (void)w, (void)x;
    return total;
}
#endif

#define GROUP 32          /* numbers that share a scale, a multiple of PAD */
#define STRIP (2 * LANES) /* outputs whose weights lie together, (depth / 4, STRIP, 4) */
#define FINER 254.0f      /* how much finer the second integer of an input is than the first */
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int32_t word __attribute__((aligned(1), may_alias));

int64_t sapo_integer_steps(void) { return STEPS; }

int64_t sapo_integer_strip(void) { return STRIP; }

/* A projection: codes in strips, the last filled up; scales and lows (strips, groups, STRIP); bias (outputs,) or NULL;
   terms: integers of an input number, 1 or 2. Its adapter: down (low columns, in panels as sapo_panel_matmul takes
   them, or NULL); of each part, its outputs and up (rank, outputs), the adapter's scale included. */
typedef struct {
    int64_t outputs, depth, terms;
    const uint8_t *codes;
    const float *scales, *lows, *bias;
    int64_t low, rank;
    const float *down;
    int64_t parts[3];
    const float *up[3];
} Projection;

INLINE int64_t groups_of(int64_t depth) { return (depth + GROUP - 1) / GROUP; }
INLINE int64_t end_of(int64_t group, int64_t depth) { return (group + 1) * GROUP < depth ? (group + 1) * GROUP : depth; }

INLINE float largest_of(vec x) {
    float largest = x[0];
    for (int i = 1; i < LANES; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

INLINE int32_t total_of(ints x) {
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* Numbers `at` to at + LANES of float32, if wide, or bfloat16. */
INLINE vec widened(const void *from, int64_t at, int64_t wide) {
    if (wide) return load((const float *)from + at);
    return (vec)(__builtin_convertvector(*(const halves *)((const uint16_t *)from + at), ints) << 16);
}

/* weight (outputs, depth), float32 if wide, otherwise bfloat16 -> codes, scales and lows of a Projection from a whole
   strip on. depth: a multiple of PAD. */
void sapo_integer_weights(int64_t outputs, int64_t depth, const void *weight, int64_t wide, uint8_t *codes,
                          float *scales, float *lows) {
    int64_t groups = groups_of(depth);
    for (int64_t o = 0; o < outputs; o++) {
        uint8_t *to = codes + o / STRIP * STRIP * depth + o % STRIP * 4;
        for (int64_t g = 0; g < groups; g++) {
            int64_t place = (o / STRIP * groups + g) * STRIP + o % STRIP;
            vec high = widened(weight, o * depth + g * GROUP, wide), negative = -high;
            for (int64_t i = g * GROUP + LANES; i < end_of(g, depth); i += LANES) {
                vec x = widened(weight, o * depth + i, wide);
                high = max_vec(high, x);
                negative = max_vec(negative, -x);
            }
            float low = -largest_of(negative), range = largest_of(high) - low;
            float inverse = range > 0.0f ? STEPS / range : 0.0f;
            for (int64_t i = g * GROUP; i < end_of(g, depth); i += LANES) {
                vec x = (widened(weight, o * depth + i, wide) - low) * inverse + 0.5f;
                union {
                    bytes all;
                    int32_t words[LANES / 4];
                } four = {__builtin_convertvector(__builtin_convertvector(x, ints) - SHIFT, bytes)};
                for (int j = 0; j < LANES / 4; j++) *(word *)(to + (i + 4 * j) * STRIP) = four.words[j];
            }
            scales[place] = STEPS ? range / STEPS : 0.0f;
            lows[place] = low + SHIFT * scales[place];
        }
    }
}

INLINE ints rounded(vec x) { return __builtin_convertvector(x + 128.5f, ints) - 128; }

/* x (depth,) -> codes (terms, depth); scales (terms, groups) and behind them the sums of the rounded groups. */
INLINE void round_row(int64_t depth, int64_t terms, const float *x, uint8_t *codes, float *scales) {
    int64_t groups = groups_of(depth);
    for (int64_t g = 0; g < groups; g++) {
        vec zero = {0}, largest = zero;
        for (int64_t i = g * GROUP; i < end_of(g, depth); i += LANES)
            largest = max_vec(largest, max_vec(load(x + i), zero - load(x + i)));
        float top = largest_of(largest), inverse = top > 0.0f ? 127.0f / top : 0.0f;
        ints first = {0}, second = {0};
        for (int64_t i = g * GROUP; i < end_of(g, depth); i += LANES) {
            vec exact = load(x + i) * inverse;
            ints whole = rounded(exact);
            *(bytes *)(codes + i) = __builtin_convertvector(whole, bytes);
            first += whole;
            if (terms > 1) {
                ints rest = rounded((exact - __builtin_convertvector(whole, vec)) * FINER);
                *(bytes *)(codes + depth + i) = __builtin_convertvector(rest, bytes);
                second += rest;
            }
        }
        float scale = top / 127.0f;
        scales[g] = scale;
        if (terms > 1) scales[groups + g] = scale / FINER;
        scales[terms * groups + g] = scale * ((float)total_of(first) + (float)total_of(second) / FINER);
    }
}

/* Outputs from `from` to from + STRIP of a few rows -> y (rows, STRIP). */
INLINE void strip(int rows, const Projection *p, int64_t from, const uint8_t *x, const float *x_scales,
                  float *y) {
    int64_t depth = p->depth, groups = groups_of(depth), terms = p->terms;
    const float *scales = p->scales + from * groups, *lows = p->lows + from * groups;
    vec sums[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (vec){0};
    for (int64_t g = 0; g < groups; g++, scales += STRIP, lows += STRIP, x_scales++) {
        vec first_scale = load(scales), second_scale = load(scales + LANES);
        for (int64_t t = 0; t < terms; t++) {
            const uint8_t *w = p->codes + from * depth + g * GROUP * STRIP, *of_term = x + t * depth;
            ints total[TILE_ROWS][2];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) total[r][0] = total[r][1] = (ints){0};
            for (int64_t k = g * GROUP; k < end_of(g, depth); k += 4, w += 4 * STRIP) {
                ints first = *(const ints *)w, second = *(const ints *)(w + 4 * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    ints four = (ints){0} + *(const word *)(of_term + r * terms * depth + k);
                    total[r][0] = dot_bytes(total[r][0], first, four);
                    total[r][1] = dot_bytes(total[r][1], second, four);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                float scale = x_scales[(r * (terms + 1) + t) * groups];
                sums[r][0] += __builtin_convertvector(total[r][0], vec) * (first_scale * scale);
                sums[r][1] += __builtin_convertvector(total[r][1], vec) * (second_scale * scale);
            }
        }
        vec first_low = load(lows), second_low = load(lows + LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float sum_of_group = x_scales[(r * (terms + 1) + terms) * groups];
            sums[r][0] += first_low * sum_of_group;
            sums[r][1] += second_low * sum_of_group;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        store(y + r * STRIP, sums[r][0]);
        store(y + r * STRIP + LANES, sums[r][1]);
    }
}

/* values (rows, STRIP) with the bias to their place in y, or added to it; the last strip may be narrower. */
SHARED void place(int64_t rows, const Projection *p, int64_t from, const float *values, float *y, int64_t add) {
    int64_t width = p->outputs - from < STRIP ? p->outputs - from : STRIP;
    for (int64_t r = 0; r < rows; r++, values += STRIP, y += p->outputs)
        for (int64_t i = 0; i < width; i++)
            y[i] = values[i] + (p->bias ? p->bias[from + i] : 0.0f) + (add ? y[i] : 0.0f);
}

/* x (rows, depth) -> y (rows, outputs), or added to it, with the adapter's part. workspace: rows * (terms * depth / 4 +
   (terms + 1) * groups + low). */
void sapo_integer_projection(const Projection *p, int64_t rows, const float *x, float *y, int64_t add,
                             float *workspace) {
    int64_t scales = (p->terms + 1) * groups_of(p->depth), width = p->terms * p->depth;
    float *x_scales = workspace, *low = x_scales + rows * scales;
    uint8_t *codes = (uint8_t *)(low + rows * p->low);
    for (int64_t r = 0; r < rows; r++)
        round_row(p->depth, p->terms, x + r * p->depth, codes + r * width, x_scales + r * scales);
    for (int64_t o = 0; o < p->outputs; o += STRIP)
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            int64_t some = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            float values[TILE_ROWS * STRIP];
            switch (some) {
#define CASE(n) \
    case n: strip(n, p, o, codes + r * width, x_scales + r * scales, values); break;
                CASE(1)
                CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_ROWS == 8
                    CASE(7) CASE(8)
#endif
#undef CASE
            }
            place(some, p, o, values, y + r * p->outputs + o, add);
        }
    if (!p->down) return;
    sapo_panel_matmul(rows, p->low, p->depth, x, p->down, low, 0);
    for (int64_t i = 0; i < 3 && p->up[i]; y += p->parts[i], i++)
        sapo_matmul(rows, p->parts[i], p->rank, low + i * p->rank, p->low, p->up[i], p->parts[i], y, p->outputs, 1);
}

/* keys to completion_values as sapo_decode_attention takes them. */
typedef struct {
    const float *norm1, *q_norm, *k_norm, *norm2;
    Projection qkv, out, gate_up, down;
    const float *keys, *values;
    float *completion_keys, *completion_values;
} IntegerLayer;

/* As sapo_decode_step. workspace: rows * (hidden + width of qkv + heads * size + 3 * intermediate), and what the
   projection that needs most needs. */
void sapo_integer_step(const Shape *s, int64_t layers, const IntegerLayer *layer, int64_t hidden, int64_t intermediate,
                       int64_t rows, float *x, const int64_t *row, const int64_t *owner, int64_t used,
                       const int64_t *lengths, const int64_t *begins, const float *cos, const float *sin,
                       float *workspace, float *scratch) {
    int64_t heads = s->heads * s->size, width = heads + 2 * s->kv_heads * s->size;
    float *normal = workspace, *qkv = normal + rows * hidden, *attended = qkv + rows * width,
          *gate_up = attended + rows * heads, *activated = gate_up + rows * 2 * intermediate,
          *rest = activated + rows * intermediate;
    for (; layers > 0; layers--, layer++) {
        sapo_rms_norm(rows, hidden, x, layer->norm1, s->eps, normal);
        sapo_integer_projection(&layer->qkv, rows, normal, qkv, 0, rest);
        sapo_decode_attention(s, rows, row, owner, used, lengths, begins, qkv, layer->q_norm, layer->k_norm, cos, sin,
                              layer->keys, layer->values, layer->completion_keys, layer->completion_values, attended,
                              scratch);
        sapo_integer_projection(&layer->out, rows, attended, x, 1, rest);
        sapo_rms_norm(rows, hidden, x, layer->norm2, s->eps, normal);
        sapo_integer_projection(&layer->gate_up, rows, normal, gate_up, 0, rest);
        sapo_swiglu(rows, intermediate, gate_up, activated);
        sapo_integer_projection(&layer->down, rows, activated, x, 1, rest);
    }
}
