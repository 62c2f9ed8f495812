/* Attention over whole sequences and its gradient: prompts, and completions that each continue one of them; for one thread.

   Sequence i has lengths[i] tokens from starts[i] on; sees[i] is the sequence that it continues, or -1 for a prompt, whose
   completions lie right behind it. A token is a row of heads + 2 kv_heads times `size` numbers: queries, keys, values. Weights
   are not kept: the backward pass makes them again from the logarithms of their sums, as FlashAttention does
   (arXiv 2205.14135). */

#include "vectors.h"

#define BLOCK 32 /* tokens that attend at once */

/* One head's keys and values of a sequence: as they lie, rows `row` apart, and by number, (size, room). */
typedef struct {
    const float *k, *v;
    float *k_turned, *v_turned;
    int64_t length, room;
} Side;

/* Room for blocks: queries, the slopes of their results, a block's result, two times their weights, logarithms. */
typedef struct {
    float *q, *slope, *mixed, *weights, *into_weights;
} Room;

INLINE int64_t row_of(const Shape *s) { return (s->heads + 2 * s->kv_heads) * s->size; }

static void by_number(const float *x, int64_t row, int64_t length, int64_t room, int64_t size, float *out) {
    for (int64_t i = 0; i < size; i++) {
        for (int64_t t = 0; t < length; t++) out[i * room + t] = x[t * row + i];
        for (int64_t t = length; t < room; t++) out[i * room + t] = 0.0f;
    }
}

static Side side_of(const Shape *s, const float *turned, int64_t start, int64_t length, int64_t head, float *room, int both) {
    const float *k = turned + start * row_of(s) + (s->heads + head) * s->size, *v = k + s->kv_heads * s->size;
    Side side = {k, v, room, room + padded(length) * s->size, length, padded(length)};
    by_number(k, row_of(s), length, side.room, s->size, side.k_turned);
    if (both) by_number(v, row_of(s), length, side.room, s->size, side.v_turned);
    return side;
}

/* What `count` queries see of the prompt, if there is one, and of their own sequence up to `end`: a (count, size) times the
   sides by number -> (count, seen), what they do not see hidden. */
static void against(const Shape *s, const float *a, int64_t count, const Side *prompt, const Side *own, int64_t end, int values,
                    float *out, int64_t seen) {
    int64_t shared = prompt ? prompt->room : 0;
    if (prompt)
        sapo_product(count, shared, s->size, a, s->size, values ? prompt->v_turned : prompt->k_turned, shared, out, seen, 0);
    const float *by = values ? own->v_turned : own->k_turned;
    sapo_product(count, padded(end), s->size, a, s->size, by, own->room, out + shared, seen, 0);
}

static void blind(const Side *prompt, int64_t first, int64_t count, int64_t group, float *weights, int64_t seen) {
    for (int64_t i = 0; i < count; i++) {
        if (prompt) hide(weights + i * seen, prompt->length, prompt->room);
        hide(weights + i * seen, (prompt ? prompt->room : 0) + first + i / group + 1, seen);
    }
}

/* The queries of tokens first..end of a sequence and one head of keys, or what lies like them, as (count, size). */
static void gather(const float *x, int64_t row, int64_t first, int64_t end, int64_t group, int64_t size, float *out) {
    for (int64_t t = first; t < end; t++)
        for (int64_t i = 0; i < group * size; i++) out[(t - first) * group * size + i] = x[t * row + i];
}

static void forward(const Shape *s, const Side *prompt, const Side *own, const float *queries, int64_t head, int64_t start,
                    float *spread, float *out, Room *room) {
    int64_t size = s->size, group = s->heads / s->kv_heads;
    for (int64_t first = 0; first < own->length; first += BLOCK) {
        int64_t end = first + BLOCK < own->length ? first + BLOCK : own->length, count = (end - first) * group;
        int64_t shared = prompt ? prompt->room : 0, seen = shared + padded(end);
        gather(queries, row_of(s), first, end, group, size, room->q);
        against(s, room->q, count, prompt, own, end, 0, room->weights, seen);
        blind(prompt, first, count, group, room->weights, seen);
        for (int64_t i = 0; i < count; i++) {
            int64_t place = (start + first + i / group) * s->heads + head * group + i % group;
            float highest = largest(room->weights + i * seen, seen);
            room->slope[i] = soften(room->weights + i * seen, seen);
            spread[place] = highest - logf(room->slope[i]);
        }
        if (prompt) sapo_product(count, size, prompt->length, room->weights, seen, prompt->v, row_of(s), room->mixed, size, 0);
        sapo_product(count, size, end, room->weights + shared, seen, own->v, row_of(s), room->mixed, size, prompt != 0);
        for (int64_t i = 0; i < count; i++) {
            float *to = out + ((start + first + i / group) * s->heads + head * group + i % group) * size;
            for (int64_t j = 0; j < size; j += LANES) store(to + j, load(room->mixed + i * size + j) * room->slope[i]);
        }
    }
}

static void backward(const Shape *s, const Side *prompt, const Side *own, const float *queries, int64_t head, int64_t start,
                     const float *spread, const float *out, const float *slope, float *into_prompt, float *into_own,
                     float *into_queries, Room *room) {
    int64_t size = s->size, group = s->heads / s->kv_heads, row = row_of(s), to_values = s->kv_heads * size;
    for (int64_t first = 0; first < own->length; first += BLOCK) {
        int64_t end = first + BLOCK < own->length ? first + BLOCK : own->length, count = (end - first) * group;
        int64_t shared = prompt ? prompt->room : 0, seen = shared + padded(end);
        float *weights = room->weights, *scores = room->into_weights;
        gather(queries, row, first, end, group, size, room->q);
        gather(slope + (start * s->heads + head * group) * size, s->heads * size, first, end, group, size, room->slope);
        against(s, room->q, count, prompt, own, end, 0, weights, seen);
        blind(prompt, first, count, group, weights, seen);
        against(s, room->slope, count, prompt, own, end, 1, scores, seen);
        for (int64_t i = 0; i < count; i++) {
            int64_t place = (start + first + i / group) * s->heads + head * group + i % group;
            vec dot = {0};
            for (int64_t j = 0; j < size; j += LANES) dot += load(out + place * size + j) * load(room->slope + i * size + j);
            float mean = sum(dot);
            for (int64_t j = 0; j < seen; j += LANES) {
                vec weight = exponential(load(weights + i * seen + j) - spread[place]);
                store(weights + i * seen + j, weight);
                store(scores + i * seen + j, weight * (load(scores + i * seen + j) - mean));
            }
        }
        if (prompt) {
            sapo_product(count, size, prompt->length, scores, seen, prompt->k, row, room->mixed, size, 0);
            sapo_add_turned(prompt->length, size, count, scores, seen, room->q, size, into_prompt, row);
            sapo_add_turned(prompt->length, size, count, weights, seen, room->slope, size, into_prompt + to_values, row);
        }
        sapo_product(count, size, end, scores + shared, seen, own->k, row, room->mixed, size, prompt != 0);
        sapo_add_turned(end, size, count, scores + shared, seen, room->q, size, into_own, row);
        sapo_add_turned(end, size, count, weights + shared, seen, room->slope, size, into_own + to_values, row);
        for (int64_t t = first; t < end; t++)
            for (int64_t i = 0; i < group * size; i++)
                into_queries[t * row + i] = room->mixed[(t - first) * group * size + i];
    }
}

/* Rotates a token's queries and keys: from -> to, which may be the same. back: the other way, as gradients go. */
static void turn_all(const Shape *s, const float *from, const float *cos, const float *sin, int back, float *to) {
    float scale = 1.0f / sqrtf((float)s->size), other[1024];
    for (int64_t i = 0; i < s->size; i++) other[i] = back ? -sin[i] : sin[i];
    for (int64_t h = 0; h < s->heads + s->kv_heads; h++) {
        float head[1024];
        turn(s, from + h * s->size, 0, cos, other, h < s->heads ? scale : 1.0f, head);
        for (int64_t i = 0; i < s->size; i++) to[h * s->size + i] = head[i];
    }
}

/* Numbers of float that sapo_attend and sapo_attend_back need; longest: of a sequence. */
int64_t sapo_attend_room(const Shape *s, int64_t longest) {
    int64_t queries = BLOCK * (s->heads / s->kv_heads);
    return 4 * s->size * padded(longest) + queries * (3 * s->size + 4 * padded(longest));
}

static Room room_of(const Shape *s, int64_t longest, float *scratch) {
    int64_t queries = BLOCK * (s->heads / s->kv_heads);
    float *q = scratch + 4 * s->size * padded(longest);
    float *weights = q + 3 * queries * s->size;
    Room room = {q, q + queries * s->size, q + 2 * queries * s->size, weights, weights + 2 * queries * padded(longest)};
    return room;
}

/* rows: tokens, not rotated -> turned: rotated, queries times size^-1/2; out (tokens, heads * size); spread (tokens, heads):
   the logarithm of what each query's weights were divided by. cos, sin (tokens, size). longest: of the sequences. */
void sapo_attend(const Shape *s, int64_t sequences, const int64_t *starts, const int64_t *lengths, const int64_t *sees,
                 int64_t longest, const float *rows, const float *cos, const float *sin, float *turned, float *spread,
                 float *out, float *scratch) {
    int64_t row = row_of(s), group = s->heads / s->kv_heads, keys = 2 * s->size * padded(longest);
    Room room = room_of(s, longest, scratch);
    for (int64_t i = 0; i < sequences; i++)
        for (int64_t t = starts[i]; t < starts[i] + lengths[i]; t++) {
            turn_all(s, rows + t * row, cos + t * s->size, sin + t * s->size, 0, turned + t * row);
            for (int64_t j = (s->heads + s->kv_heads) * s->size; j < row; j++) turned[t * row + j] = rows[t * row + j];
        }
    for (int64_t p = 0, next; p < sequences; p = next) {
        for (next = p + 1; next < sequences && sees[next] == p;) next++;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            Side prompt = side_of(s, turned, starts[p], lengths[p], h, scratch, 0);
            forward(s, 0, &prompt, turned + starts[p] * row + h * group * s->size, h, starts[p], spread, out, &room);
            for (int64_t i = p + 1; i < next; i++) {
                Side own = side_of(s, turned, starts[i], lengths[i], h, scratch + keys, 0);
                forward(s, &prompt, &own, turned + starts[i] * row + h * group * s->size, h, starts[i], spread, out, &room);
            }
        }
    }
}

/* slope (tokens, heads * size) by out -> into by rows; into: zeros. The others as sapo_attend took and gave them. */
void sapo_attend_back(const Shape *s, int64_t sequences, const int64_t *starts, const int64_t *lengths, const int64_t *sees,
                      int64_t longest, const float *turned, const float *cos, const float *sin, const float *spread,
                      const float *out, const float *slope, float *into, float *scratch) {
    int64_t row = row_of(s), group = s->heads / s->kv_heads, keys = 2 * s->size * padded(longest);
    Room room = room_of(s, longest, scratch);
    for (int64_t p = 0, next; p < sequences; p = next) {
        for (next = p + 1; next < sequences && sees[next] == p;) next++;
        for (int64_t h = 0; h < s->kv_heads; h++) {
            Side prompt = side_of(s, turned, starts[p], lengths[p], h, scratch, 1);
            int64_t first = starts[p] * row, q = h * group * s->size, k = (s->heads + h) * s->size;
            backward(s, 0, &prompt, turned + first + q, h, starts[p], spread, out, slope, 0, into + first + k, into + first + q,
                     &room);
            for (int64_t i = p + 1; i < next; i++) {
                int64_t own_first = starts[i] * row;
                Side own = side_of(s, turned, starts[i], lengths[i], h, scratch + keys, 1);
                backward(s, &prompt, &own, turned + own_first + q, h, starts[i], spread, out, slope, into + first + k,
                         into + own_first + k, into + own_first + q, &room);
            }
        }
    }
    for (int64_t i = 0; i < sequences; i++)
        for (int64_t t = starts[i]; t < starts[i] + lengths[i]; t++)
            turn_all(s, into + t * row, cos + t * s->size, sin + t * s->size, 1, into + t * row);
}
