/* Normalisation and gate with their gradients, and drawing a token; for one thread. */

#include "vectors.h"

/* x (rows, width) -> out. */
void sapo_normalise(int64_t rows, int64_t width, const float *x, const float *weight, float eps, float *out) {
    for (int64_t r = 0; r < rows; r++) normalise(width, x + r * width, weight, eps, out + r * width);
}

/* Of sapo_normalise: slope (rows, width) by its result -> into (rows, width) by x, and added to into_weight (width,) if there
   is one. */
void sapo_normalise_back(int64_t rows, int64_t width, const float *x, const float *weight, float eps, const float *slope,
                         float *into, float *into_weight) {
    for (int64_t r = 0; r < rows; r++, x += width, slope += width, into += width) {
        vec squares = {0}, along = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load(x + i);
            squares += v * v;
            along += v * load(slope + i) * load(weight + i);
        }
        float scale = 1.0f / sqrtf(sum(squares) / (float)width + eps);
        float radial = sum(along) / (float)width * scale * scale * scale; /* what only changes x's length has no effect */
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load(x + i), s = load(slope + i);
            store(into + i, s * load(weight + i) * scale - v * radial);
            if (into_weight) store(into_weight + i, load(into_weight + i) + s * v * scale);
        }
    }
}

/* 1 / (1 + e^-x), without overflow. */
INLINE vec logistic(vec x) {
    vec zero = {0}, e = exponential(zero - larger(x, zero - x));
    ints positive = x > 0.0f;
    vec above = (vec)(((ints)(zero + 1.0f) & positive) | ((ints)e & ~positive));
    return above / (1.0f + e);
}

/* gate_up (rows, 2 * width) -> out (rows, width): silu(gate) * up. */
void sapo_gate(int64_t rows, int64_t width, const float *gate_up, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = gate_up + 2 * r * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i);
            store(out + r * width + i, x * logistic(x) * load(up + i));
        }
    }
}

/* Of sapo_gate: slope (rows, width) by its result -> into (rows, 2 * width) by gate_up. */
void sapo_gate_back(int64_t rows, int64_t width, const float *gate_up, const float *slope, float *into) {
    for (int64_t r = 0; r < rows; r++, gate_up += 2 * width, into += 2 * width, slope += width)
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate_up + i), up = load(gate_up + width + i), s = load(slope + i), share = logistic(x);
            store(into + i, s * up * share * (1.0f + x * (1.0f - share)));
            store(into + width + i, s * x * share);
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
            vec e = exponential((load(x + i) - highest) / temperature);
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
