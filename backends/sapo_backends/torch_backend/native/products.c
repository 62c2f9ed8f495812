/* Matrix products that are small, and of ever-changing shapes. */

#include "vectors.h"

/* c (rows, wide * LANES) = or += a (rows, depth) b (depth, wide * LANES); a[r][k] lies at r * a_row + k * a_step. */
INLINE void tile(int rows, int wide, int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b,
                 int64_t b_row, float *c, int64_t c_row, int add) {
    vec total[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < wide; w++) total[r][w] = add ? load(c + r * c_row + w * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        vec first = load(b + k * b_row), second = wide > 1 ? load(b + k * b_row + LANES) : first;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            float x = a[r * a_row + k * a_step];
            total[r][0] += x * first;
            if (wide > 1) total[r][1] += x * second;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < wide; w++) store(c + r * c_row + w * LANES, total[r][w]);
}

/* The same for up to TILE_ROWS rows and one or two vectors of columns. */
INLINE void tile_of(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                    const float *b, int64_t b_row, float *c, int64_t c_row, int add) {
#define CASE(n)                                                                            \
    case n:                                                                                \
        if (columns > LANES) tile(n, 2, depth, a, a_row, a_step, b, b_row, c, c_row, add); \
        else tile(n, 1, depth, a, a_row, a_step, b, b_row, c, c_row, add);                 \
        break;
    switch (rows < TILE_ROWS ? rows : TILE_ROWS) {
        CASE(1)
        CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_ROWS == 8
            CASE(7) CASE(8)
#endif
    }
#undef CASE
}

void sapo_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row, const float *b,
                 int64_t b_row, float *c, int64_t c_row, int add) {
    for (int64_t j = 0; j < columns; j += 2 * LANES)
        for (int64_t i = 0; i < rows; i += TILE_ROWS)
            tile_of(rows - i, columns - j, depth, a + i * a_row, a_row, 1, b + j, b_row, c + i * c_row + j, c_row, add);
}

void sapo_add_transposed_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t a_row,
                                const float *b, int64_t b_row, float *c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += 2 * LANES)
        for (int64_t i = 0; i < rows; i += TILE_ROWS)
            tile_of(rows - i, columns - j, depth, a + i, 1, a_row, b + j, b_row, c + i * c_row + j, c_row, 1);
}

void sapo_panel_matmul(int64_t rows, int64_t columns, int64_t depth, const float *a, const float *b, float *c,
                       int add) {
    for (int64_t j = 0; j < columns; j += 2 * LANES)
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const float *panel = b + j / PANEL * PANEL * depth + j % PANEL;
            tile_of(rows - i, columns - j, depth, a + i * depth, depth, 1, panel, PANEL, c + i * columns + j, columns,
                    add);
        }
}
