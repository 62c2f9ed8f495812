/* RMSNorm and SwiGLU with their gradients; for one thread. */

#include "vectors.h"

/* RMSNorm (arXiv 1910.07467): x (rows, width) -> out (rows, width). */
void sapo_rms_norm(int64_t rows, int64_t width, const float *x, const float *weight, float eps, float *out) {
    for (int64_t r = 0; r < rows; r++) rms_norm(width, x + r * width, weight, eps, out + r * width);
}

/* Gradient of sapo_rms_norm: grad_out (rows, width) -> grad_x (rows, width), and added to grad_weight (width,) if that
   is not NULL. */
void sapo_rms_norm_backward(int64_t rows, int64_t width, const float *x, const float *weight, float eps,
                            const float *grad_out, float *grad_x, float *grad_weight) {
    for (int64_t r = 0; r < rows; r++, x += width, grad_out += width, grad_x += width) {
        vec squares = {0}, radial_sum = {0};
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load(x + i);
            squares += v * v;
            radial_sum += v * load(grad_out + i) * load(weight + i);
        }
        float scale = 1.0f / sqrtf(sum(squares) / (float)width + eps);
        float radial =
            sum(radial_sum) / (float)width * scale * scale * scale; /* what only changes x's length has no effect */
        for (int64_t i = 0; i < width; i += LANES) {
            vec v = load(x + i), s = load(grad_out + i);
            store(grad_x + i, s * load(weight + i) * scale - v * radial);
            if (grad_weight) store(grad_weight + i, load(grad_weight + i) + s * v * scale);
        }
    }
}

/* 1 / (1 + e^-x), without overflow. */
INLINE vec sigmoid(vec x) {
    vec zero = {0}, e = exp_vec(zero - max_vec(x, zero - x));
    ints positive = x > 0.0f;
    vec above = (vec)(((ints)(zero + 1.0f) & positive) | ((ints)e & ~positive));
    return above / (1.0f + e);
}

/* gate_up (rows, 2 * width) -> out (rows, width): silu(gate) * up. */
void sapo_swiglu(int64_t rows, int64_t width, const float *gate_up, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = gate_up + 2 * r * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i);
            store(out + r * width + i, x * sigmoid(x) * load(up + i));
        }
    }
}

/* Gradient of sapo_swiglu: grad_out (rows, width) -> grad_x (rows, 2 * width), that of gate_up. */
void sapo_swiglu_backward(int64_t rows, int64_t width, const float *gate_up, const float *grad_out, float *grad_x) {
    for (int64_t r = 0; r < rows; r++, gate_up += 2 * width, grad_x += 2 * width, grad_out += width)
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate_up + i), up = load(gate_up + width + i), s = load(grad_out + i), share = sigmoid(x);
            store(grad_x + i, s * up * share * (1.0f + x * (1.0f - share)));
            store(grad_x + width + i, s * x * share);
        }
}
