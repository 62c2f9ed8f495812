/* Layers that carry a state from token to token: linear attention by the gated delta rule (arXiv 2412.06464) and
   Mamba 2 (arXiv 2405.21060). Of each head, with its state S (keys, values), token after token:

       u = beta (v - decay S^T k)   the delta rule; u = v without it
       S = decay S + k u^T
       out = S^T q

   Columns of S do not depend on one another, so a block of them at a time, in the core's first cache, goes through all
   tokens. Tensors are contiguous: q, k (rows, tokens, groups, keys), v, out (rows, tokens, heads, values), decay, beta
   (rows, tokens, heads), state (rows, heads, keys, values); heads of a group have one q and k. For one thread. */

#include "vectors.h"
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define WIDTH 4             /* vectors of a block */
#define BLOCK (WIDTH * LANES)
#define SPAN  16            /* tokens whose states are held at once in the backward pass */

/* Vectors of the next block of so many columns, and a function for that width, known to the compiler. */
INLINE int width_of(int64_t columns) { return columns >= BLOCK ? WIDTH : columns >= 2 * LANES ? 2 : 1; }
#define CHOSEN(function, width, delta, ...)                                                                            \
    do {                                                                                                               \
        if (width == WIDTH && delta)                                                                                   \
            function(WIDTH, 1, __VA_ARGS__);                                                                           \
        else if (width == WIDTH)                                                                                       \
            function(WIDTH, 0, __VA_ARGS__);                                                                           \
        else if (width == 2 && delta)                                                                                  \
            function(2, 1, __VA_ARGS__);                                                                               \
        else if (width == 2)                                                                                           \
            function(2, 0, __VA_ARGS__);                                                                               \
        else if (delta)                                                                                                \
            function(1, 1, __VA_ARGS__);                                                                               \
        else                                                                                                           \
            function(1, 0, __VA_ARGS__);                                                                               \
    } while (0)

typedef struct {
    int64_t rows, tokens, groups, heads, keys, values; /* heads: of all groups */
} States;

/* What decays gets subnormal, and products with such numbers take a hundred times as long. */
INLINE unsigned flush_subnormal(void) {
#if defined(__SSE__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}
INLINE void as_before(unsigned before) {
#if defined(__SSE__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* One token of a block of columns, whose rows are `row` apart. m: S^T k, for the delta rule; where there is a next k
   it becomes S^T of that. q may be NULL: then nothing is read. kept_u: a place for u, or NULL. */
INLINE void forward_token(int64_t keys, int64_t row, int width, const float *q, const float *k, const float *next_k,
                          const float *v, float decay, const float *beta, const float *before, float *state, vec *m,
                          float *out, float *kept_u) {
    vec u[WIDTH], o[WIDTH], n[WIDTH];
    for (int j = 0; j < width; j++) {
        u[j] = load(v + j * LANES);
        if (beta) u[j] = (u[j] - m[j] * decay) * *beta;
        if (kept_u) store(kept_u + j * LANES, u[j]);
        o[j] = n[j] = (vec){0};
    }
    for (int64_t i = 0; i < keys; i++) {
        float key = k[i], query = q ? q[i] : 0.0f, next = next_k ? next_k[i] : 0.0f;
        for (int j = 0; j < width; j++) {
            vec s = load(before + i * row + j * LANES) * decay + u[j] * key;
            store(state + i * row + j * LANES, s);
            if (q) o[j] += s * query;
            if (next_k) n[j] += s * next;
        }
    }
    for (int j = 0; j < width; j++) {
        if (q) store(out + j * LANES, o[j]);
        m[j] = n[j];
    }
}

/* m = S^T k */
INLINE void read_state(int64_t keys, int64_t row, int width, const float *k, const float *state, vec *m) {
    for (int j = 0; j < width; j++) m[j] = (vec){0};
    for (int64_t i = 0; i < keys; i++)
        for (int j = 0; j < width; j++) m[j] += load(state + i * row + j * LANES) * k[i];
}

typedef struct {
    const float *q, *k, *v, *decay, *beta;
    int64_t key_step, value_step, head_step; /* from a token to the next */
} Head;

INLINE Head head_of(const States *s, int64_t row, int64_t head, const float *q, const float *k, const float *v,
                    const float *decay, const float *beta) {
    int64_t group = head / (s->heads / s->groups), token = row * s->tokens;
    int64_t at = (token * s->groups + group) * s->keys, one = token * s->heads + head;
    Head h = {q + at,        k + at, v + one * s->values, decay + one, beta ? beta + one : 0,
              s->groups * s->keys, s->heads * s->values, s->heads};
    return h;
}

INLINE void forward_block(int width, int delta, const States *s, const Head *h, float *state, float *out) {
    vec m[WIDTH];
    if (delta) read_state(s->keys, s->values, width, h->k, state, m);
    for (int64_t t = 0; t < s->tokens; t++) {
        const float *k = h->k + t * h->key_step, *next = delta && t + 1 < s->tokens ? k + h->key_step : 0;
        const float *beta = delta ? h->beta + t * h->head_step : 0;
        if (next)
            forward_token(s->keys, s->values, width, h->q + t * h->key_step, k, next, h->v + t * h->value_step,
                          h->decay[t * h->head_step], beta, state, state, m, out + t * h->value_step, 0);
        else
            forward_token(s->keys, s->values, width, h->q + t * h->key_step, k, 0, h->v + t * h->value_step,
                          h->decay[t * h->head_step], beta, state, state, m, out + t * h->value_step, 0);
    }
}

/* state: before, and afterwards. */
void sapo_states(const States *s, const float *q, const float *k, const float *v, const float *decay, const float *beta,
                 float *state, float *out) {
    unsigned before = flush_subnormal();
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t head = 0; head < s->heads; head++) {
            Head h = head_of(s, row, head, q, k, v, decay, beta);
            float *own = state + (row * s->heads + head) * s->keys * s->values;
            float *to = out + (row * s->tokens * s->heads + head) * s->values;
            for (int64_t at = 0, width; at < s->values; at += width * LANES) {
                Head part = h;
                part.v += at;
                width = width_of(s->values - at);
                CHOSEN(forward_block, width, beta, s, &part, own + at, to + at);
            }
        }
    as_before(before);
}

/* One token of Mamba 2 with states (rows, heads, values, keys), as transformers keeps them. */
void sapo_state_step(const States *s, const float *q, const float *k, const float *v, const float *decay, float *state,
                     float *out) {
    unsigned before = flush_subnormal();
    for (int64_t lane = 0; lane < s->rows * s->heads; lane++) {
        int64_t head = lane % s->heads, group = lane / s->heads * s->groups + head / (s->heads / s->groups);
        const float *key = k + group * s->keys, *query = q + group * s->keys;
        for (int64_t j = 0; j < s->values; j++) {
            float *row = state + (lane * s->values + j) * s->keys, u = v[lane * s->values + j];
            vec total = {0};
            for (int64_t i = 0; i < s->keys; i += LANES) {
                vec x = load(row + i) * decay[lane] + load(key + i) * u;
                store(row + i, x);
                total += x * load(query + i);
            }
            out[lane * s->values + j] = sum(total);
        }
    }
    as_before(before);
}

/* Floats of the workspace of sapo_states_backward. */
int64_t sapo_states_workspace(const States *s) {
    int64_t spans = (s->tokens + SPAN - 1) / SPAN;
    return (spans + SPAN + 2) * s->keys * BLOCK + 2 * SPAN * BLOCK;
}

typedef struct {
    float *q, *k, *v, *decay, *beta;
} Gradients;

/* The gradients of one token of a block: after holds S behind it, before S in front of it, g the gradient of after, and
   then of before. */
INLINE void backward_token(int64_t keys, int width, int delta, const float *q, const float *k, const float *v,
                           float decay, float beta, const float *m, const float *u, const float *before,
                           const float *after, const float *d_out, float *g, Gradients d) {
    vec grad_out[WIDTH], new[WIDTH], grad_m[WIDTH], grad_u[WIDTH], of_decay = {0}, of_beta = {0};
    for (int j = 0; j < width; j++) {
        grad_out[j] = load(d_out + j * LANES), new[j] = load(u + j * LANES);
        grad_u[j] = grad_m[j] = (vec){0};
    }
    for (int64_t i = 0; i < keys; i++) {
        float query = q[i], key = k[i];
        vec of_query = {0};
        for (int j = 0; j < width; j++) {
            vec x = load(g + i * BLOCK + j * LANES) + grad_out[j] * query;
            store(g + i * BLOCK + j * LANES, x);
            grad_u[j] += x * key;
            of_query += load(after + i * BLOCK + j * LANES) * grad_out[j];
        }
        d.q[i] += sum(of_query);
    }
    for (int j = 0; j < width; j++) {
        vec of_value = grad_u[j];
        if (delta) {
            vec read = load(m + j * LANES);
            of_value *= beta;
            grad_m[j] = of_value * -decay;
            of_decay -= of_value * read;
            of_beta += grad_u[j] * (load(v + j * LANES) - read * decay);
        }
        store(d.v + j * LANES, of_value);
    }
    for (int64_t i = 0; i < keys; i++) {
        float key = k[i];
        vec of_key = {0};
        for (int j = 0; j < width; j++) {
            vec x = load(g + i * BLOCK + j * LANES), s = load(before + i * BLOCK + j * LANES);
            of_key += x * new[j];
            of_decay += x * s;
            if (delta) of_key += s * grad_m[j];
            store(g + i * BLOCK + j * LANES, delta ? x * decay + grad_m[j] * key : x * decay);
        }
        d.k[i] += sum(of_key);
    }
    *d.decay += sum(of_decay);
    if (delta) *d.beta += sum(of_beta);
}

/* d: at the head's first token. state: before that token; grad_state: of the state behind the last, becomes that of
   state; rows of both are `values` apart. */
INLINE void backward_block(int width, int delta, const States *s, const Head *h, const float *state,
                           const float *d_out, float *grad_state, Gradients d, float *workspace) {
    int64_t size = s->keys * BLOCK, spans = (s->tokens + SPAN - 1) / SPAN;
    float *starts = workspace, *within = starts + spans * size, *g = within + (SPAN + 1) * size;
    float *us = g + size, *ms = us + SPAN * BLOCK;
    vec m[WIDTH];
    for (int64_t i = 0; i < s->keys; i++)
        for (int j = 0; j < width; j++) {
            store(starts + i * BLOCK + j * LANES, load(state + i * s->values + j * LANES));
            store(g + i * BLOCK + j * LANES, load(grad_state + i * s->values + j * LANES));
        }
    for (int64_t span = 0; span + 1 < spans; span++) {
        float *from = starts + span * size, *to = from + size;
        if (delta) read_state(s->keys, BLOCK, width, h->k + span * SPAN * h->key_step, from, m);
        for (int64_t t = span * SPAN; t < (span + 1) * SPAN; t++) {
            const float *k = h->k + t * h->key_step, *beta = delta ? h->beta + t * h->head_step : 0;
            forward_token(s->keys, BLOCK, width, 0, k, delta ? k + h->key_step : 0, h->v + t * h->value_step,
                          h->decay[t * h->head_step], beta, t % SPAN ? to : from, to, m, 0, 0);
        }
    }
    for (int64_t span = spans - 1; span >= 0; span--) {
        int64_t first = span * SPAN, last = first + SPAN < s->tokens ? first + SPAN : s->tokens;
        const float *from = starts + span * size;
        if (delta) read_state(s->keys, BLOCK, width, h->k + first * h->key_step, from, m);
        for (int64_t t = first; t < last; t++) {
            int64_t i = t - first;
            const float *k = h->k + t * h->key_step, *beta = delta ? h->beta + t * h->head_step : 0;
            if (delta)
                for (int j = 0; j < width; j++) store(ms + i * BLOCK + j * LANES, m[j]);
            forward_token(s->keys, BLOCK, width, 0, k, delta && t + 1 < last ? k + h->key_step : 0,
                          h->v + t * h->value_step, h->decay[t * h->head_step], beta,
                          i ? within + (i - 1) * size : from, within + i * size, m, 0, us + i * BLOCK);
        }
        for (int64_t t = last - 1; t >= first; t--) {
            int64_t i = t - first, one = t * h->head_step;
            Gradients of = {d.q + t * h->key_step, d.k + t * h->key_step, d.v + t * h->value_step, d.decay + one,
                            delta ? d.beta + one : 0};
            backward_token(s->keys, width, delta, h->q + t * h->key_step, h->k + t * h->key_step,
                           h->v + t * h->value_step, h->decay[one], delta ? h->beta[one] : 1.0f, ms + i * BLOCK,
                           us + i * BLOCK, i ? within + (i - 1) * size : from, within + i * size,
                           d_out + t * h->value_step, g, of);
        }
    }
    for (int64_t i = 0; i < s->keys; i++)
        for (int j = 0; j < width; j++)
            store(grad_state + i * s->values + j * LANES, load(g + i * BLOCK + j * LANES));
}

/* state: before the first token. grad_state: of the state behind the last, becomes that of state. The other gradients
   are added to what is there, those of v are written. */
void sapo_states_backward(const States *s, const float *q, const float *k, const float *v, const float *decay,
                          const float *beta, const float *state, const float *d_out, float *grad_q, float *grad_k,
                          float *grad_v, float *grad_decay, float *grad_beta, float *grad_state, float *workspace) {
    unsigned before = flush_subnormal();
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t head = 0; head < s->heads; head++) {
            Head h = head_of(s, row, head, q, k, v, decay, beta);
            int64_t own = (row * s->heads + head) * s->keys * s->values, of_keys = h.k - k, of_values = h.v - v;
            int64_t one = h.decay - decay;
            for (int64_t at = 0, width; at < s->values; at += width * LANES) {
                Head part = h;
                part.v += at;
                Gradients d = {grad_q + of_keys, grad_k + of_keys, grad_v + of_values + at, grad_decay + one,
                               beta ? grad_beta + one : 0};
                width = width_of(s->values - at);
                CHOSEN(backward_block, width, beta, s, &part, state + own + at, d_out + of_values + at,
                       grad_state + own + at, d, workspace);
            }
        }
    as_before(before);
}
