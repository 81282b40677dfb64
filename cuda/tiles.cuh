// Weight rows times many tokens. A thread block computes a tile of 64 rows and up to 64 tokens: it unpacks a stretch of the
// rows into bytes in shared memory, copies the tokens' stretch beside it, and multiplies by a matrix unit or by
// dot4. Integer sums are exact, terms of blocks are added in order: the bits are those of few_tokens.cuh.
#pragma once

#include "activations.cuh"
#include "mma.cuh"
#include "quant.cuh"

namespace ds4::gpu {

constexpr int kTileRows = 64, kTileTokens = 64, kTileThreads = 128;
constexpr int kTileStretch = 256;             // columns, 8 times 32
constexpr int kTileWords = 64 + 4;            // of a row in shared memory: 4 more, so that rows begin at different banks
constexpr int kMinWords = 8 + 4;              // the same for minimums

// A warp has 32 rows and as many tokens as it has lanes. A lane has kRows * kCols = 32 products, in rows row(i) and
// columns col(j) of the warp's part. Columns are multiplied in steps of kStep.
struct PlainUnit {
    static constexpr int kRows = 8, kCols = 4, kStep = kWarp / 4;
    static __device__ __forceinline__ int row(int i) { return lane() % 4 + 4 * i; }
    static __device__ __forceinline__ int col(int j) { return lane() / 4 + kStep * j; }

    // product(i, j, sum) of 8 words, from word `first` of rows of `words` words, for the first n_cols columns (those
    // beyond are multiplied up to the end of a step).
    template <class Product>
    static __device__ __forceinline__ void multiply(Shared<uint32_t> w, Shared<uint32_t> x, int words, int first, int n_cols, const Product &product) {
        uint32_t of_x[kCols][8];
#pragma unroll
        for (int j = 0; j < kCols; j++)
            if (j * kStep < n_cols)
#pragma unroll
                for (int k = 0; k < 8; k++) of_x[j][k] = x[col(j) * words + first + k];
#pragma unroll
        for (int i = 0; i < kRows; i++) {
            uint32_t of_w[8];
#pragma unroll
            for (int k = 0; k < 8; k++) of_w[k] = w[row(i) * words + first + k];
#pragma unroll
            for (int j = 0; j < kCols; j++)
                if (j * kStep < n_cols) {
                    int sum = 0;
#pragma unroll
                    for (int k = 0; k < 8; k++) sum = dot4(static_cast<int>(of_w[k]), static_cast<int>(of_x[j][k]), sum);
                    product(i, j, sum);
                }
        }
    }
};

// The same with a unit of mma.cuh: 2 of its tiles high, kWarp / U::kCols wide.
template <class U> struct MatrixUnit {
    static constexpr int kDown = 2, kAcross = kWarp / U::kCols, kStep = U::kCols;
    // Of the U::kOut sums of a lane some differ in the row, the others in the column.
    static constexpr int kOutCols = U::kCols == 8 ? 2 : 1, kOutRows = U::kOut / kOutCols;
    static constexpr int kRows = kDown * kOutRows, kCols = kAcross * kOutCols;
    static_assert(kRows * kCols == 32);
    static __device__ __forceinline__ int row(int i) { return 16 * (i / kOutRows) + U::out_row(lane(), i % kOutRows * kOutCols); }
    static __device__ __forceinline__ int col(int j) { return kStep * (j / kOutCols) + U::out_col(lane(), j % kOutCols); }

    template <class Product>
    static __device__ __forceinline__ void multiply(Shared<uint32_t> w, Shared<uint32_t> x, int words, int first, int n_cols, const Product &product) {
        constexpr int kDeep = 8 / U::kDepth;
        const int l = lane();
        uint32_t a[kDown][kDeep][U::kA];
#pragma unroll
        for (int m = 0; m < kDown; m++)
#pragma unroll
            for (int k = 0; k < kDeep; k++)
#pragma unroll
                for (int i = 0; i < U::kA; i++)
                    a[m][k][i] = w[(16 * m + U::a_row(l, i)) * words + first + U::kDepth * k + U::a_word(l, i)];
#pragma unroll
        for (int across = 0; across < kAcross; across++) {
            if (across * kStep >= n_cols) continue;  // of all lanes
            uint32_t b[kDeep][U::kB];
#pragma unroll
            for (int k = 0; k < kDeep; k++)
#pragma unroll
                for (int i = 0; i < U::kB; i++)
                    b[k][i] = x[(kStep * across + U::b_col(l)) * words + first + U::kDepth * k + U::b_word(l, i)];
#pragma unroll
            for (int m = 0; m < kDown; m++) {
                int c[U::kOut];
#pragma unroll
                for (int i = 0; i < U::kOut; i++) c[i] = 0;
#pragma unroll
                for (int k = 0; k < kDeep; k++) U::multiply_add(c, a[m][k], b[k]);
#pragma unroll
                for (int i = 0; i < U::kOut; i++) product(m * kOutRows + i / kOutCols, across * kOutCols + i % kOutCols, c[i]);
            }
        }
    }
};

// Whether column j is in a step that is multiplied.
template <class Unit> __device__ __forceinline__ constexpr bool in_use(int j, int n_cols) {
    return j / (Unit::kCols * Unit::kStep / kWarp) * Unit::kStep < n_cols;
}

// The products of a tile: out(row, token, sum) for row < n_rows <= 64 and token < n_tokens <= 64. rows(r) is where a row
// of n_in values begins, tokens(t) which row of `x` a token is.
template <class F, class Unit, class Rows, class Tokens, class Out>
__device__ __forceinline__ void tile_products(int n_rows, int n_tokens, uint32_t n_in, const Rounded &x, const Rows &rows,
                                              const Tokens &tokens, const Out &out) {
    constexpr bool kLong = F::kValues == 256;  // a block is a whole stretch
    constexpr int kFactors = kLong ? 1 : 8;
    DS4_SHARED(uint32_t, ws, kTileRows * kTileWords);
    DS4_SHARED(uint32_t, xs, kTileTokens * kTileWords);
    DS4_SHARED(float, row_d, (kLong ? 2 : 8) * kTileRows);     // [factor][row]; d and dmin of long blocks
    DS4_SHARED(float, token_d, kFactors * kTileTokens);
    DS4_SHARED(int, row_scale, F::kSubScales ? 8 * kTileRows : 1);
    DS4_SHARED(uint32_t, mins, F::kMins ? kTileRows * kMinWords : 1);       // 16 bytes, then 16 zeros
    DS4_SHARED(uint32_t, low_sums, F::kMins ? kTileTokens * kMinWords : 1);  // sums modulo 64, and what that leaves
    DS4_SHARED(uint32_t, high_sums, F::kMins ? kTileTokens * kMinWords : 1);
    DS4_SHARED(uint32_t, table, F::kTable ? kTableWords : 1);
    const int thread = static_cast<int>(threadIdx.x), n_blocks = static_cast<int>(n_in) / F::kValues;
    const int row0 = kWarp == 32 ? warp_index() / 2 * 32 : warp_index() * 32, token0 = kWarp == 32 ? warp_index() % 2 * 32 : 0;
    const int n_cols = n_tokens - token0;               // of this warp; may be none
    const int filled = (n_tokens + 15) / 16 * 16;       // whole steps of every unit
    fill_table<F>(table);
    if (F::kTable) sync_block();

    float sums[Unit::kRows][Unit::kCols];
#pragma unroll
    for (int i = 0; i < Unit::kRows; i++)
#pragma unroll
        for (int j = 0; j < Unit::kCols; j++) sums[i][j] = 0;

    constexpr int kBlocksOfStretch = kTileStretch / F::kValues, kPiecesOfRow = kBlocksOfStretch * F::kPieces;
    for (int b0 = 0; b0 < n_blocks; b0 += kBlocksOfStretch) {
        const int here = n_blocks - b0 < kBlocksOfStretch ? n_blocks - b0 : kBlocksOfStretch;
        // A row or token that does not exist repeats the last one.
#pragma unroll 2
        for (int u = thread; u < kTileRows * kPiecesOfRow; u += kTileThreads) {
            const int r = u / kPiecesOfRow, b = u % kPiecesOfRow / F::kPieces, part = u % F::kPieces;
            if (b >= here) continue;
            const uint8_t *block = rows(r < n_rows ? r : n_rows - 1) + static_cast<uint64_t>(b0 + b) * F::kBytes;
            const Piece<F::kWords> w = F::piece(block, part, table);
            const int at = r * kTileWords + b * (F::kValues / 4);
#pragma unroll
            for (int i = 0; i < F::kWords; i++) ws[at + F::place(part, i)] = w.w[i];
            if constexpr (F::kSubScales) row_scale[part * kTileRows + r] = F::scale_of(block, part);
            if constexpr (F::kMins) mins[r * kMinWords + part] = part < 4 ? F::mins_of(block, part) : 0;
            if (part == 0) {
                const Scales s = F::scales(block);
                row_d[b * kTileRows + r] = s.d;
                if constexpr (kLong) row_d[kTileRows + r] = s.dmin;
            }
        }
        for (int u = thread; u < filled * 8; u += kTileThreads) {  // 32 values each
            const int t = u / 8, part = u % 8;
            if (part >= here * F::kValues / 32) continue;
            const uint64_t at = static_cast<uint64_t>(tokens(t < n_tokens ? t : n_tokens - 1)) * n_blocks + b0;  // blocks
            uint32_t words[8];
            load_run<4>(x.q + at * (F::kValues / 4) + 8 * part, words);
            load_run<4>(x.q + at * (F::kValues / 4) + 8 * part + 4, words + 4);
#pragma unroll
            for (int i = 0; i < 8; i++) xs[t * kTileWords + 8 * part + i] = words[i];
            if (part < kFactors) token_d[part * kTileTokens + t] = x.d[at + part];
            if constexpr (F::kMins) {
                uint32_t low = 0, high = 0;
                if (part < 4)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int sum = static_cast<int16_t>(x.sums[at * 8 + 2 * part + i / 2] >> (16 * (i % 2)));
                        low |= static_cast<uint32_t>(sum & 63) << (8 * i);
                        high |= (static_cast<uint32_t>(sum >> 6) & 255) << (8 * i);
                    }
                low_sums[t * kMinWords + part] = low;
                high_sums[t * kMinWords + part] = high;
            }
        }
        sync_block();
        if (n_cols > 0) {
            const Shared<uint32_t> w = ws + row0 * kTileWords, v = xs + token0 * kTileWords;
            if constexpr (kLong) {
                int products[Unit::kRows][Unit::kCols], of_mins[Unit::kRows][Unit::kCols];
#pragma unroll
                for (int i = 0; i < Unit::kRows; i++)
#pragma unroll
                    for (int j = 0; j < Unit::kCols; j++) products[i][j] = of_mins[i][j] = 0;
#pragma unroll 1
                for (int s = 0; s < 8; s++) {
                    int scale[Unit::kRows];
#pragma unroll
                    for (int i = 0; i < Unit::kRows; i++) scale[i] = F::kSubScales ? int(row_scale[F::kSubScales ? s * kTileRows + row0 + Unit::row(i) : 0]) : 1;
                    Unit::multiply(w, v, kTileWords, 8 * s, n_cols, [&](int i, int j, int sum) { products[i][j] += scale[i] * sum; });
                }
                if constexpr (F::kMins) {
                    const Shared<uint32_t> m = mins + row0 * kMinWords;
                    Unit::multiply(m, high_sums + token0 * kMinWords, kMinWords, 0, n_cols, [&](int i, int j, int sum) { of_mins[i][j] = 64 * sum; });
                    Unit::multiply(m, low_sums + token0 * kMinWords, kMinWords, 0, n_cols, [&](int i, int j, int sum) { of_mins[i][j] += sum; });
                }
                float d[Unit::kCols] = {};
#pragma unroll
                for (int j = 0; j < Unit::kCols; j++)
                    if (in_use<Unit>(j, n_cols)) d[j] = token_d[token0 + Unit::col(j)];
#pragma unroll
                for (int i = 0; i < Unit::kRows; i++) {
                    const Scales scales{row_d[row0 + Unit::row(i)], row_d[kTileRows + row0 + Unit::row(i)]};
#pragma unroll
                    for (int j = 0; j < Unit::kCols; j++)
                        if (in_use<Unit>(j, n_cols))
                            sums[i][j] = add(sums[i][j], F::term(scales, d[j], products[i][j], of_mins[i][j]));
                }
            } else {
#pragma unroll 1
                for (int s = 0; s < here; s++) {
                    Scales scales[Unit::kRows];
                    float d[Unit::kCols] = {};
#pragma unroll
                    for (int i = 0; i < Unit::kRows; i++) scales[i] = {row_d[s * kTileRows + row0 + Unit::row(i)], 0.0f};
#pragma unroll
                    for (int j = 0; j < Unit::kCols; j++)
                        if (in_use<Unit>(j, n_cols)) d[j] = token_d[s * kTileTokens + token0 + Unit::col(j)];
                    Unit::multiply(w, v, kTileWords, 8 * s, n_cols,
                                   [&](int i, int j, int sum) { sums[i][j] = add(sums[i][j], F::term(scales[i], d[j], sum, 0)); });
                }
            }
        }
        sync_block();
    }
#pragma unroll
    for (int i = 0; i < Unit::kRows; i++)
#pragma unroll
        for (int j = 0; j < Unit::kCols; j++)
            if (row0 + Unit::row(i) < n_rows && Unit::col(j) < n_cols) out(row0 + Unit::row(i), token0 + Unit::col(j), sums[i][j]);
}

}  // namespace ds4::gpu
