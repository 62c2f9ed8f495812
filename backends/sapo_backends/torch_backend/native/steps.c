/* A decode step: all layers for one new token of each row; for one thread. */

#include "vectors.h"

/* Matrices in panels (sapo_panel_matmul), a bias NULL where there is none; keys to completion_values as
 * sapo_decode_attention takes them. */
typedef struct {
    const float *norm1, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias, *norm2, *gate_up, *gate_up_bias, *down,
        *down_bias;
    const float *keys, *values;
    float *completion_keys, *completion_values;
} Layer;

static void linear(int64_t rows, int64_t columns, int64_t depth, const float *x, const float *weight, const float *bias,
                   float *y, int add) {
    if (bias)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < columns; i += LANES) {
                vec start = load(bias + i);
                store(y + r * columns + i, add ? start + load(y + r * columns + i) : start + 0.0f);
            }
    sapo_panel_matmul(rows, columns, depth, x, weight, y, add || bias);
}

/* x (rows, hidden): embedded tokens, becomes what the last layer gives. workspace: rows * (hidden + width of qkv +
   heads * size + 3 * intermediate). The others as sapo_decode_attention takes them. */
void sapo_decode_step(const Shape *s, int64_t layers, const Layer *layer, int64_t hidden, int64_t intermediate,
                      int64_t rows, float *x, const int64_t *row, const int64_t *owner, int64_t used,
                      const int64_t *lengths, const int64_t *begins, const float *cos, const float *sin,
                      float *workspace, float *scratch) {
    int64_t heads = s->heads * s->size, width = heads + 2 * s->kv_heads * s->size;
    float *normal = workspace, *qkv = normal + rows * hidden, *attended = qkv + rows * width,
          *gate_up = attended + rows * heads;
    float *activated = gate_up + rows * 2 * intermediate;
    for (; layers > 0; layers--, layer++) {
        sapo_rms_norm(rows, hidden, x, layer->norm1, s->eps, normal);
        linear(rows, width, hidden, normal, layer->qkv, layer->qkv_bias, qkv, 0);
        sapo_decode_attention(s, rows, row, owner, used, lengths, begins, qkv, layer->q_norm, layer->k_norm, cos, sin,
                              layer->keys, layer->values, layer->completion_keys, layer->completion_values, attended,
                              scratch);
        linear(rows, hidden, heads, attended, layer->out, layer->out_bias, x, 1);
        sapo_rms_norm(rows, hidden, x, layer->norm2, s->eps, normal);
        linear(rows, 2 * intermediate, hidden, normal, layer->gate_up, layer->gate_up_bias, gate_up, 0);
        sapo_swiglu(rows, intermediate, gate_up, activated);
        linear(rows, hidden, intermediate, activated, layer->down, layer->down_bias, x, 1);
    }
}
