/* Attention of prompts and of rows that continue them a token at a time; for one thread.

   A prompt's keys are stored transposed, (kv_heads, size, padded), its values as (kv_heads, padded, size), where padded
   is its length rounded up to 16; the tokens that a row samples likewise, with `slots` in the place of padded. */

#include "vectors.h"

/* Rotates a token's key and stores it and the value of one head: keys (size, row), values (.., size). */
INLINE void store_key_value(const Shape *s, const float *key, const float *k_norm, const float *value, const float *cos,
                            const float *sin, float *keys, int64_t row, float *values) {
    float rotated[1024];
    rotate(s, key, k_norm, cos, sin, 1.0f, rotated);
    for (int64_t i = 0; i < s->size; i++) keys[i * row] = rotated[i];
    for (int64_t i = 0; i < s->size; i++) values[i] = value[i];
}

/* Prompts: qkv (tokens, (heads + 2 kv_heads) * size) of all, those of one behind those of another, at positions from 0
   -> keys, values, and attention's output, out (tokens, heads * size). cos, sin (positions, size). starts, lengths,
   begins (prompts,): first token, tokens, and where its keys and values begin. last_only: attention of each prompt's
   last token only. q_norm, k_norm: NULL where the model has none. scratch: CHUNK * heads / kv_heads * (longest padded +
   2 * size). */
void sapo_prefill_attention(const Shape *s, int64_t prompts, const int64_t *starts, const int64_t *lengths,
                            const int64_t *begins, const float *qkv, const float *q_norm, const float *k_norm,
                            const float *cos, const float *sin, float *keys, float *values, int64_t last_only,
                            float *out, float *scratch) {
    int64_t size = s->size, group = s->heads / s->kv_heads, row = (s->heads + 2 * s->kv_heads) * size;
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t p = 0; p < prompts; p++) {
        int64_t length = lengths[p], padded_length = padded(length);
        const float *first = qkv + starts[p] * row;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            float *k = keys + begins[p] + h * size * padded_length, *v = values + begins[p] + h * size * padded_length;
            const float *key = first + (s->heads + h) * size, *value = key + s->kv_heads * size;
            for (int64_t t = 0; t < length; t++)
                store_key_value(s, key + t * row, k_norm, value + t * row, cos + t * size, sin + t * size, k + t,
                                padded_length, v + t * size);
            for (int64_t t = last_only ? length - 1 : 0; t < length; t += CHUNK) {
                int64_t end = t + CHUNK < length ? t + CHUNK : length, visible = padded(end), count = (end - t) * group;
                float *q = scratch, *attended = q + CHUNK * group * size, *weights = attended + CHUNK * group * size;
                for (int64_t i = t; i < end; i++)
                    for (int64_t g = 0; g < group; g++)
                        rotate(s, first + i * row + (h * group + g) * size, q_norm, cos + i * size, sin + i * size,
                               scale, q + ((i - t) * group + g) * size);
                sapo_matmul(count, visible, size, q, size, k, padded_length, weights, visible, 0);
                float inverse[CHUNK * group];
                for (int64_t i = 0; i < count; i++) {
                    mask(weights + i * visible, t + i / group + 1, visible);
                    inverse[i] = softmax_numerators(weights + i * visible, visible);
                }
                sapo_matmul(count, size, end, weights, visible, v, size, attended, size, 0);
                for (int64_t i = 0; i < count; i++) {
                    float *to = out + (starts[p] + t + i / group) * s->heads * size + (h * group + i % group) * size;
                    for (int64_t j = 0; j < size; j += LANES) store(to + j, load(attended + i * size + j) * inverse[i]);
                }
            }
        }
    }
}

/* Decoding: qkv (rows, ..) of one new token each, the used-th (from 0) that its row sampled -> its key and value in
   place, and out (rows, heads * size). row, owner (rows,): which of completion_keys, completion_values a row has, and
   whose prompt; rows of one prompt lie together. scratch: CHUNK * heads / kv_heads * (longest padded + slots + 2 *
   size). */
void sapo_decode_attention(const Shape *s, int64_t rows, const int64_t *row, const int64_t *owner, int64_t used,
                           const int64_t *lengths, const int64_t *begins, const float *qkv, const float *q_norm,
                           const float *k_norm, const float *cos, const float *sin, const float *keys,
                           const float *values, float *completion_keys, float *completion_values, float *out,
                           float *scratch) {
    int64_t size = s->size, group = s->heads / s->kv_heads, width = (s->heads + 2 * s->kv_heads) * size;
    int64_t own = padded(used + 1);
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t r = 0, end; r < rows; r = end) {
        for (end = r + 1; end < rows && end < r + CHUNK && owner[end] == owner[r];) end++;
        int64_t length = lengths[owner[r]], padded_length = padded(length), visible = padded_length + own,
                count = (end - r) * group;
        const float *c = cos + (length + used) * size, *n = sin + (length + used) * size;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            const float *k = keys + begins[owner[r]] + h * size * padded_length,
                        *v = values + begins[owner[r]] + h * size * padded_length;
            float *q = scratch, *attended = q + CHUNK * group * size, *weights = attended + CHUNK * group * size;
            for (int64_t i = r; i < end; i++) {
                const float *key = qkv + i * width + (s->heads + h) * size;
                float *completion_k = completion_keys + (row[i] * s->kv_heads + h) * size * s->slots;
                float *completion_v = completion_values + (row[i] * s->kv_heads + h) * size * s->slots;
                store_key_value(s, key, k_norm, key + s->kv_heads * size, c, n, completion_k + used, s->slots,
                                completion_v + used * size);
                float *mine = q + (i - r) * group * size;
                for (int64_t g = 0; g < group; g++)
                    rotate(s, qkv + i * width + (h * group + g) * size, q_norm, c, n, scale, mine + g * size);
                sapo_matmul(group, own, size, mine, size, completion_k, s->slots,
                            weights + (i - r) * group * visible + padded_length, visible, 0);
            }
            sapo_matmul(count, padded_length, size, q, size, k, padded_length, weights, visible, 0);
            float inverse[CHUNK * group];
            for (int64_t i = 0; i < count; i++) {
                mask(weights + i * visible, length, padded_length);
                mask(weights + i * visible, padded_length + used + 1, visible);
                inverse[i] = softmax_numerators(weights + i * visible, visible);
            }
            sapo_matmul(count, size, length, weights, visible, v, size, attended, size, 0);
            for (int64_t i = r; i < end; i++) {
                const float *completion_v = completion_values + (row[i] * s->kv_heads + h) * size * s->slots;
                float *mine = attended + (i - r) * group * size;
                sapo_matmul(group, size, used + 1, weights + (i - r) * group * visible + padded_length, visible,
                            completion_v, size, mine, size, 1);
                for (int64_t g = 0; g < group; g++)
                    for (int64_t j = 0; j < size; j += LANES)
                        store(out + (i * s->heads + h * group + g) * size + j,
                              load(mine + g * size + j) * inverse[(i - r) * group + g]);
            }
        }
    }
}
