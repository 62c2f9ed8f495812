/* Attention over whole sequences and its gradient: prompts, and completions that each continue one of them; for one
   thread.

   Sequence i has lengths[i] tokens from starts[i] on; sees[i] is the sequence that it continues, or -1 for a prompt,
   whose completions lie right behind it. A token is a row of heads + 2 kv_heads times `size` numbers: queries, keys,
   values. Attention weights are not stored: the backward pass recomputes them from the log-sum-exp, as FlashAttention
   does (arXiv 2205.14135). */

#include "vectors.h"

#define BLOCK 32 /* query tokens computed at once */

/* One head of a sequence's keys and values: in place, a token every `row` floats, and transposed, (size,
 * padded_length). */
typedef struct {
    const float *k, *v;
    float *k_transposed, *v_transposed;
    int64_t length, padded_length;
} KeyValues;

/* Scratch of one block of queries: queries, the gradient of their output and the output, (BLOCK * group, size) each;
   attention weights and the gradient of the scores, (BLOCK * group, visible). The forward pass keeps 1 / sum of each
   row's softmax in grad_out. */
typedef struct {
    float *q, *grad_out, *attended, *weights, *grad_scores;
} Workspace;

INLINE int64_t row_of(const Shape *s) { return (s->heads + 2 * s->kv_heads) * s->size; }

static void transpose(const float *x, int64_t row, int64_t length, int64_t padded_length, int64_t size, float *out) {
    for (int64_t i = 0; i < size; i++) {
        for (int64_t t = 0; t < length; t++) out[i * padded_length + t] = x[t * row + i];
        for (int64_t t = length; t < padded_length; t++) out[i * padded_length + t] = 0.0f;
    }
}

static KeyValues key_values_of(const Shape *s, const float *rotated, int64_t start, int64_t length, int64_t head,
                               float *scratch, int both) {
    const float *k = rotated + start * row_of(s) + (s->heads + head) * s->size, *v = k + s->kv_heads * s->size;
    KeyValues kv = {k, v, scratch, scratch + padded(length) * s->size, length, padded(length)};
    transpose(k, row_of(s), length, kv.padded_length, s->size, kv.k_transposed);
    if (both) transpose(v, row_of(s), length, kv.padded_length, s->size, kv.v_transposed);
    return kv;
}

/* a (count, size), queries or gradients of their output, times the transposed keys or values of the prompt, if there is
   one, and of their own sequence up to `end` -> (count, visible). */
static void scores_of(const Shape *s, const float *a, int64_t count, const KeyValues *prompt, const KeyValues *own,
                      int64_t end, int values, float *out, int64_t visible) {
    int64_t shared = prompt ? prompt->padded_length : 0;
    if (prompt)
        sapo_matmul(count, shared, s->size, a, s->size, values ? prompt->v_transposed : prompt->k_transposed, shared,
                    out, visible, 0);
    const float *by = values ? own->v_transposed : own->k_transposed;
    sapo_matmul(count, padded(end), s->size, a, s->size, by, own->padded_length, out + shared, visible, 0);
}

static void mask_scores(const KeyValues *prompt, int64_t first, int64_t count, int64_t group, float *weights,
                        int64_t visible) {
    for (int64_t i = 0; i < count; i++) {
        if (prompt) mask(weights + i * visible, prompt->length, prompt->padded_length);
        mask(weights + i * visible, (prompt ? prompt->padded_length : 0) + first + i / group + 1, visible);
    }
}

/* Tokens first..end of x, `row` floats apart: the `group` query heads of one key head as (count, size). */
static void gather(const float *x, int64_t row, int64_t first, int64_t end, int64_t group, int64_t size, float *out) {
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < group * size; i++) out[(t - first) * group * size + i] = x[t * row + i];
}

static void forward(const Shape *s, const KeyValues *prompt, const KeyValues *own, const float *queries, int64_t head,
                    int64_t start, float *logsumexp, float *out, Workspace *workspace) {
    int64_t size = s->size, group = s->heads / s->kv_heads;
    for (int64_t first = 0; first < own->length; first += BLOCK) {
        int64_t end = first + BLOCK < own->length ? first + BLOCK : own->length, count = (end - first) * group;
        int64_t shared = prompt ? prompt->padded_length : 0, visible = shared + padded(end);
        gather(queries, row_of(s), first, end, group, size, workspace->q);
        scores_of(s, workspace->q, count, prompt, own, end, 0, workspace->weights, visible);
        mask_scores(prompt, first, count, group, workspace->weights, visible);
        for (int64_t i = 0; i < count; i++) {
            int64_t place = (start + first + i / group) * s->heads + head * group + i % group;
            float highest = max_of(workspace->weights + i * visible, visible);
            workspace->grad_out[i] = softmax_numerators(workspace->weights + i * visible, visible);
            logsumexp[place] = highest - logf(workspace->grad_out[i]);
        }
        if (prompt)
            sapo_matmul(count, size, prompt->length, workspace->weights, visible, prompt->v, row_of(s),
                        workspace->attended, size, 0);
        sapo_matmul(count, size, end, workspace->weights + shared, visible, own->v, row_of(s), workspace->attended,
                    size, prompt != 0);
        for (int64_t i = 0; i < count; i++) {
            float *to = out + ((start + first + i / group) * s->heads + head * group + i % group) * size;
            for (int64_t j = 0; j < size; j += LANES)
                store(to + j, load(workspace->attended + i * size + j) * workspace->grad_out[i]);
        }
    }
}

static void backward(const Shape *s, const KeyValues *prompt, const KeyValues *own, const float *queries, int64_t head,
                     int64_t start, const float *logsumexp, const float *out, const float *grad_out, float *grad_prompt,
                     float *grad_own, float *grad_queries, Workspace *workspace) {
    int64_t size = s->size, group = s->heads / s->kv_heads, row = row_of(s), to_values = s->kv_heads * size;
    for (int64_t first = 0; first < own->length; first += BLOCK) {
        int64_t end = first + BLOCK < own->length ? first + BLOCK : own->length, count = (end - first) * group;
        int64_t shared = prompt ? prompt->padded_length : 0, visible = shared + padded(end);
        float *weights = workspace->weights, *scores = workspace->grad_scores;
        gather(queries, row, first, end, group, size, workspace->q);
        gather(grad_out + (start * s->heads + head * group) * size, s->heads * size, first, end, group, size,
               workspace->grad_out);
        scores_of(s, workspace->q, count, prompt, own, end, 0, weights, visible);
        mask_scores(prompt, first, count, group, weights, visible);
        scores_of(s, workspace->grad_out, count, prompt, own, end, 1, scores, visible);
        for (int64_t i = 0; i < count; i++) {
            int64_t place = (start + first + i / group) * s->heads + head * group + i % group;
            vec dot = {0};
            for (int64_t j = 0; j < size; j += LANES)
                dot += load(out + place * size + j) * load(workspace->grad_out + i * size + j);
            float mean = sum(dot);
            for (int64_t j = 0; j < visible; j += LANES) {
                vec weight = exp_vec(load(weights + i * visible + j) - logsumexp[place]);
                store(weights + i * visible + j, weight);
                store(scores + i * visible + j, weight * (load(scores + i * visible + j) - mean));
            }
        }
        if (prompt) {
            sapo_matmul(count, size, prompt->length, scores, visible, prompt->k, row, workspace->attended, size, 0);
            sapo_add_transposed_matmul(prompt->length, size, count, scores, visible, workspace->q, size, grad_prompt,
                                       row);
            sapo_add_transposed_matmul(prompt->length, size, count, weights, visible, workspace->grad_out, size,
                                       grad_prompt + to_values, row);
        }
        sapo_matmul(count, size, end, scores + shared, visible, own->k, row, workspace->attended, size, prompt != 0);
        sapo_add_transposed_matmul(end, size, count, scores + shared, visible, workspace->q, size, grad_own, row);
        sapo_add_transposed_matmul(end, size, count, weights + shared, visible, workspace->grad_out, size,
                                   grad_own + to_values, row);
        for (int64_t t = first; t < end; t++)
            for (int64_t i = 0; i < group * size; i++)
                grad_queries[t * row + i] = workspace->attended[(t - first) * group * size + i];
    }
}

/* Rotates a token's queries and keys: from -> to, which may be the same. back: the inverse rotation, for gradients. */
static void rotate_token(const Shape *s, const float *from, const float *cos, const float *sin, int back, float *to) {
    float scale = 1.0f / sqrtf((float)s->size), other[1024];
    for (int64_t i = 0; i < s->size; i++) other[i] = back ? -sin[i] : sin[i];
    for (int64_t h = 0; h < s->heads + s->kv_heads; h++) {
        float head[1024];
        rotate(s, from + h * s->size, 0, cos, other, h < s->heads ? scale : 1.0f, head);
        for (int64_t i = 0; i < s->size; i++) to[h * s->size + i] = head[i];
    }
}

/* How many floats of scratch sapo_attention and sapo_attention_backward need; longest: tokens of the longest sequence.
 */
int64_t sapo_attention_workspace(const Shape *s, int64_t longest) {
    int64_t queries = BLOCK * (s->heads / s->kv_heads);
    return 4 * s->size * padded(longest) + queries * (3 * s->size + 4 * padded(longest));
}

static Workspace workspace_of(const Shape *s, int64_t longest, float *scratch) {
    int64_t queries = BLOCK * (s->heads / s->kv_heads);
    float *q = scratch + 4 * s->size * padded(longest);
    float *weights = q + 3 * queries * s->size;
    Workspace workspace = {q, q + queries * s->size, q + 2 * queries * s->size, weights,
                           weights + 2 * queries * padded(longest)};
    return workspace;
}

/* rows: tokens, not rotated -> rotated: rotated, queries times size^-1/2; out (tokens, heads * size); logsumexp
   (tokens, heads): the log-sum-exp of each query's scores. cos, sin (tokens, size). longest: of the sequences. */
void sapo_attention(const Shape *s, int64_t sequences, const int64_t *starts, const int64_t *lengths,
                    const int64_t *sees, int64_t longest, const float *rows, const float *cos, const float *sin,
                    float *rotated, float *logsumexp, float *out, float *scratch) {
    int64_t row = row_of(s), group = s->heads / s->kv_heads, keys = 2 * s->size * padded(longest);
    Workspace workspace = workspace_of(s, longest, scratch);
    for (int64_t i = 0; i < sequences; i++)
        for (int64_t t = starts[i]; t < starts[i] + lengths[i]; t++) {
            rotate_token(s, rows + t * row, cos + t * s->size, sin + t * s->size, 0, rotated + t * row);
            for (int64_t j = (s->heads + s->kv_heads) * s->size; j < row; j++) rotated[t * row + j] = rows[t * row + j];
        }
    for (int64_t p = 0, next; p < sequences; p = next) {
        for (next = p + 1; next < sequences && sees[next] == p;) next++;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            KeyValues prompt = key_values_of(s, rotated, starts[p], lengths[p], h, scratch, 0);
            forward(s, 0, &prompt, rotated + starts[p] * row + h * group * s->size, h, starts[p], logsumexp, out,
                    &workspace);
            for (int64_t i = p + 1; i < next; i++) {
                KeyValues own = key_values_of(s, rotated, starts[i], lengths[i], h, scratch + keys, 0);
                forward(s, &prompt, &own, rotated + starts[i] * row + h * group * s->size, h, starts[i], logsumexp, out,
                        &workspace);
            }
        }
    }
}

/* grad_out (tokens, heads * size), the gradient of out -> grad_x, that of rows; grad_x begins as zeros. The others as
 * sapo_attention took and gave them. */
void sapo_attention_backward(const Shape *s, int64_t sequences, const int64_t *starts, const int64_t *lengths,
                             const int64_t *sees, int64_t longest, const float *rotated, const float *cos,
                             const float *sin, const float *logsumexp, const float *out, const float *grad_out,
                             float *grad_x, float *scratch) {
    int64_t row = row_of(s), group = s->heads / s->kv_heads, keys = 2 * s->size * padded(longest);
    Workspace workspace = workspace_of(s, longest, scratch);
    for (int64_t p = 0, next; p < sequences; p = next) {
        for (next = p + 1; next < sequences && sees[next] == p;) next++;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            KeyValues prompt = key_values_of(s, rotated, starts[p], lengths[p], h, scratch, 1);
            int64_t first = starts[p] * row, q = h * group * s->size, k = (s->heads + h) * s->size;
            backward(s, 0, &prompt, rotated + first + q, h, starts[p], logsumexp, out, grad_out, 0, grad_x + first + k,
                     grad_x + first + q, &workspace);
            for (int64_t i = p + 1; i < next; i++) {
                int64_t own_first = starts[i] * row;
                KeyValues own = key_values_of(s, rotated, starts[i], lengths[i], h, scratch + keys, 1);
                backward(s, &prompt, &own, rotated + own_first + q, h, starts[i], logsumexp, out, grad_out,
                         grad_x + first + k, grad_x + own_first + k, grad_x + own_first + q, &workspace);
            }
        }
    }
    for (int64_t i = 0; i < sequences; i++)
        for (int64_t t = starts[i]; t < starts[i] + lengths[i]; t++)
            rotate_token(s, grad_x + t * row, cos + t * s->size, sin + t * s->size, 1, grad_x + t * row);
}
