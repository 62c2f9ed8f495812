/* Log-probabilities of given tokens, from logits over a whole vocabulary in float32 or bfloat16, and their gradients, and
   sampling a token; for one thread. A row stays in the core's cache over its passes. */

#include "vectors.h"

typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t bits __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Numbers from `at` on of a row in float32 (wide) or bfloat16; those from count on are MASKED. */
INLINE vec load_logits(const void *row, int64_t at, int64_t count, int wide) {
    if (at + LANES <= count) {
        if (wide) return load((const float *)row + at);
        return (vec)(__builtin_convertvector(*(const halves *)((const uint16_t *)row + at), bits) << 16);
    }
    vec x = {0};
    for (int64_t i = 0; i < LANES; i++) {
        union {
            uint32_t bits;
            float number;
        } wanted = {0};
        if (at + i >= count)
            wanted.number = MASKED;
        else if (wide)
            wanted.number = ((const float *)row)[at + i];
        else
            wanted.bits = (uint32_t)((const uint16_t *)row)[at + i] << 16;
        x[i] = wanted.number;
    }
    return x;
}

/* Back to where they came from; to the nearest bfloat16, of two the even one. */
INLINE void store_logits(void *row, int64_t at, int64_t count, int wide, vec x) {
    int64_t end = count - at < LANES ? count - at : LANES;
    bits all = (bits)x;
    halves rounded = __builtin_convertvector((all + 0x7fff + ((all >> 16) & 1)) >> 16, halves);
    if (end == LANES && wide)
        store((float *)row + at, x);
    else if (end == LANES)
        *(halves *)((uint16_t *)row + at) = rounded;
    else
        for (int64_t i = 0; i < end; i++)
            if (wide)
                ((float *)row)[at + i] = x[i];
            else
                ((uint16_t *)row)[at + i] = rounded[i];
}

INLINE void chosen_logprobs(int64_t rows, int64_t count, void *logits, float scale, const int64_t *targets,
                            const float *weights, float *chosen, float *entropy, int wide) {
    for (int64_t r = 0; r < rows; r++) {
        char *row = (char *)logits + r * count * (wide ? 4 : 2);
        vec top = {0}, total = {0}, weighted = {0};
        top += MASKED;
        for (int64_t i = 0; i < count; i += LANES) top = max_vec(top, load_logits(row, i, count, wide));
        float highest = top[0];
        for (int i = 1; i < LANES; i++) highest = top[i] > highest ? top[i] : highest;
        highest *= scale;
        for (int64_t i = 0; i < count; i += LANES) {
            vec x = load_logits(row, i, count, wide) * scale - highest, e = exp_vec(x);
            total += e;
            weighted += e * x;
        }
        float all = sum(total), mean = sum(weighted) / all;
        float target = load_logits(row, targets[r], targets[r] + 1, wide)[0] * scale - highest;
        chosen[r] = target - logf(all) + 0.0f * mean; /* not a number where a logit is none */
        entropy[r] = logf(all) - mean;
        if (!weights) continue;
        float share = -weights[r] / all;
        for (int64_t i = 0; i < count; i += LANES) {
            vec p = exp_vec(load_logits(row, i, count, wide) * scale - highest) * share;
            if (targets[r] >= i && targets[r] < i + LANES) p[targets[r] - i] += weights[r];
            store_logits(row, i, count, wide, p);
        }
    }
}

/* logits (rows, count) times scale, in float32 or bfloat16 -> chosen (rows,): log-probabilities of targets (rows,), and
   entropy (rows,). Where weights (rows,) is not NULL the logits become weights times the gradient of each row's chosen by
   its scaled logits. */
void sapo_chosen_logprobs(int64_t rows, int64_t count, void *logits, int64_t wide, float scale, const int64_t *targets,
                          const float *weights, float *chosen, float *entropy) {
    if (wide)
        chosen_logprobs(rows, count, logits, scale, targets, weights, chosen, entropy, 1);
    else
        chosen_logprobs(rows, count, logits, scale, targets, weights, chosen, entropy, 0);
}

INLINE void sample(int64_t rows, int64_t count, const void *logits, float temperature, const double *uniform,
                   int64_t *tokens, float *logprobs, float *weights, int wide) {
    float scale = temperature > 0.0f ? 1.0f / temperature : 1.0f;
    for (int64_t r = 0; r < rows; r++) {
        const char *row = (const char *)logits + r * count * (wide ? 4 : 2);
        vec top = {0};
        ints broken = {0};
        top += MASKED;
        for (int64_t i = 0; i < count; i += LANES) {
            vec x = load_logits(row, i, count, wide);
            broken |= x != x;
            top = max_vec(top, x);
        }
        float highest = top[0];
        for (int i = 1; i < LANES; i++) highest = top[i] > highest ? top[i] : highest;
        double total = 0.0, passed = 0.0, next = 0.0;
        for (int64_t i = 0; i < count; i += LANES) {
            vec e = exp_vec((load_logits(row, i, count, wide) - highest) * scale);
            store(weights + i, e);
            total += sum(e);
        }
        int64_t i = 0, last = (count - 1) / LANES * LANES;
        if (temperature > 0.0f) {
            double target = uniform[r] * total;
            for (; i < last && (next = passed + sum(load(weights + i))) <= target; i += LANES) passed = next;
            int64_t end = i + LANES - 1;
            for (; i < end && (next = passed + weights[i]) <= target; i++) passed = next;
            while (weights[i] == 0.0f && i > 0) i--; /* rounding may leave the target a hair beyond its block */
        } else {
            while (i < last && max_of(weights + i, LANES) < 1.0f) i += LANES;
            while (i < count - 1 && weights[i] < 1.0f) i++;
        }
        tokens[r] = i;
        logprobs[r] = (float)((load_logits(row, i, i + 1, wide)[0] - highest) * scale - log(total));
        for (int lane = 0; lane < LANES; lane++)
            if (broken[lane]) logprobs[r] = NAN;
    }
}

/* Tokens (rows,) sampled from softmax(logits / temperature), logits (rows, count) in float32 or bfloat16, by uniform
   (rows,) in [0, 1), and their log-probabilities, not a number where a logit is none; at temperature 0 the most probable
   ones, with their log-probabilities at temperature 1. weights (padded count,): scratch. */
void sapo_sample(int64_t rows, int64_t count, const void *logits, int64_t wide, float temperature, const double *uniform,
                 int64_t *tokens, float *logprobs, float *weights) {
    if (wide)
        sample(rows, count, logits, temperature, uniform, tokens, logprobs, weights, 1);
    else
        sample(rows, count, logits, temperature, uniform, tokens, logprobs, weights, 0);
}
