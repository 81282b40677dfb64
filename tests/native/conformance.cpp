// Whether a machine computes what every other one does: no Python is needed, so that the program also runs under an
// emulator of another architecture. Lines that begin with "digest" must be the same on all machines and variants.
//
// usage: conformance kernels
//            each CPU variant that the machine can run against the scalar definitions, bit for bit
//        conformance logits MODEL.gguf PROMPTS float|quantized [VARIANT]
//            logits of prompts. float: within 1e-4 of the stored ones. PROMPTS holds for each prompt
//            u32 tokens n, rows k, vocabulary v; i32 tokens[n], positions[k]; f32 logits[k][v], as tests/support/
//            conformance.py writes them
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/panel.h"
#include "base/half.h"
#include "ds4/ds4.h"
#include "quant/quant.h"

namespace {

using namespace ds4;
using namespace ds4::cpu;

int failures = 0;

void differ(const std::string &what) {
    if (++failures <= 20) printf("DIFFERENT: %s\n", what.c_str());
}

constexpr const char *kVariants[] = {"base", "avx2", "avx512", "avx512vnni", "dotprod", "i8mm"};

bool use(const char *variant) {
    auto err = std::make_unique<ds4_error>();
    return limit_isa(variant, err.get()) == DS4_OK;
}

// FNV-1a over the bits of floats; every NaN counts as the same.
struct Digest {
    uint64_t value = 0xcbf29ce484222325u;
    void add(const float *x, size_t n) {
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            std::memcpy(&bits, x + i, 4);
            if (std::isnan(x[i])) bits = 0x7FC00000u;
            for (int b = 0; b < 4; b++) value = (value ^ (bits >> (8 * b) & 255)) * 0x100000001b3u;
        }
    }
};

struct Random {
    uint64_t state;
    uint32_t next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<uint32_t>(state >> 33) ^ static_cast<uint32_t>(state >> 60);
    }
    // In -1..1, exactly.
    float real() { return static_cast<float>(static_cast<int32_t>(next() & 0xFFFFFF) - 0x800000) * 0x1p-23f; }
};

bool same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || !std::memcmp(&a, &b, 4); }

// ---------------------------------------------------------------------------------------------------------- panels

constexpr uint32_t kTypes[] = {DS4_TYPE_Q8_0, DS4_TYPE_MXFP4, DS4_TYPE_Q2_K, DS4_TYPE_Q4_K, DS4_TYPE_IQ2_XXS};

enum Fill { kRandom, kHigh, kLow, kAnyScale, kFills };  // kHigh, kLow: the largest sums of products

std::vector<uint8_t> weight_row(uint32_t type, size_t n, Fill fill, Random &random) {
    const TypeInfo *info = type_info(type);
    std::vector<uint8_t> row(n / info->block * info->bytes);
    for (uint8_t &b : row)
        b = fill == kHigh ? (type == DS4_TYPE_Q8_0 ? 0x7F : 0xFF) : fill == kLow ? 0x80 : static_cast<uint8_t>(random.next());
    if (fill == kAnyScale) return row;
    const size_t at = type == DS4_TYPE_Q2_K ? 80 : 0;
    const bool two = type == DS4_TYPE_Q2_K || type == DS4_TYPE_Q4_K;
    for (size_t b = 0; b < row.size(); b += info->bytes) {
        if (type == DS4_TYPE_MXFP4) {
            row[b] = static_cast<uint8_t>(115 + random.next() % 20);
            continue;
        }
        for (size_t i = 0; i < (two ? 2u : 1u); i++) {
            const uint16_t d = f32_to_f16(random.real());
            std::memcpy(&row[b + at + 2 * i], &d, 2);
        }
    }
    return row;
}

std::vector<uint8_t> activation_row(uint32_t type, size_t n, Fill fill, Random &random) {
    std::vector<float> x(n);
    const float size = std::ldexp(1.0f, static_cast<int>(random.next() % 60) - 30);
    for (size_t i = 0; i < n; i++) x[i] = fill == kHigh || fill == kLow ? 1.5f : random.real() * size;
    if (fill == kRandom && random.next() % 4 == 0)  // a block of zeros, one of denormals, one of huge values
        for (size_t i = 0; i < n; i++) x[i] = i < 32 ? 0.0f : i < 64 ? 1e-41f * random.real() : 3e38f * random.real();
    if (fill == kAnyScale && random.next() % 4 == 0) x[random.next() % n] = NAN;
    const uint32_t kind = activation_kind(type);
    std::vector<uint8_t> out(activation_bytes(kind, n));
    if (kind == kActivationQ8K)
        quantize_q8_k(x.data(), reinterpret_cast<BlockQ8K *>(out.data()), n);
    else
        quantize_q8_a(x.data(), reinterpret_cast<BlockQ8A *>(out.data()), n);
    return out;
}

// Sums [tokens][16].
std::vector<float> multiply(const PanelFormat &format, PanelType t, uint32_t type, const uint8_t *const *rows,
                            const uint8_t *const *tokens, size_t n_tokens, size_t n) {
    const TypeInfo *info = type_info(type);
    std::vector<uint8_t> packed(packed_bytes(t, n) * n_tokens);
    pack_activations(t, format, tokens, n_tokens, n, packed.data());
    std::vector<float> sums(n_tokens * kPanelRows);
    auto panel = std::make_unique<Panel>();
    const size_t step_bytes = packed_bytes(t, kStep) * n_tokens;
    for (size_t s = 0; s * kStep < n; s++) {
        const size_t columns = n - s * kStep < kStep ? n - s * kStep : kStep, n_blocks = columns / info->block;
        format.unpack(rows, s * (kStep / info->block) * info->bytes, n_blocks, panel.get());
        format.multiply[n_tokens - 1](panel.get(), n_blocks, packed.data() + s * step_bytes, sums.data());
    }
    return sums;
}

void check_panels(const PanelKernels *kernels, Digest *digest) {
    for (uint32_t type : kTypes) {
        const PanelType t = panel_type(type);
        const uint32_t block = type_info(type)->block;
        Random random{type};
        for (size_t n : {1, 2, 5, 8, 9, 16, 33})
            for (int fill = kRandom; fill < kFills; fill++) {
                const size_t columns = (block == 256 && n > 5 ? 3 : n) * block;
                std::vector<std::vector<uint8_t>> rows, tokens;
                const uint8_t *row_at[kPanelRows], *token_at[kMostTokens];
                for (size_t r = 0; r < kPanelRows; r++) {
                    rows.push_back(weight_row(type, columns, static_cast<Fill>(fill), random));
                    const size_t shift = random.next() % 4;
                    rows[r].insert(rows[r].begin(), shift, 0);
                    row_at[r] = rows[r].data() + shift;
                }
                row_at[15] = row_at[14];  // as a row that does not exist
                for (size_t i = 0; i < kMostTokens; i++) {
                    tokens.push_back(activation_row(type, columns, static_cast<Fill>(fill), random));
                    token_at[i] = tokens[i].data();
                }
                for (size_t T = 1; T <= kernels->block; T++) {
                    const std::vector<float> sums = multiply(kernels->formats[t], t, type, row_at, token_at, T, columns);
                    for (size_t i = 0; i < T; i++)
                        for (size_t r = 0; r < kPanelRows; r++) {
                            const float expected = vec_dot(type, row_at[r], token_at[i], columns);
                            if (!same(sums[i * kPanelRows + r], expected))
                                differ(std::string(kernels->name) + " panel of " + type_info(type)->name + ", " +
                                       std::to_string(columns) + " columns, token " + std::to_string(i) + " of " +
                                       std::to_string(T) + ", row " + std::to_string(r) + ": " +
                                       std::to_string(sums[i * kPanelRows + r]) + ", not " + std::to_string(expected));
                        }
                    // Variants have different blocks: what all have goes into the digest.
                    if (T == 1) digest->add(sums.data(), sums.size());
                }
            }
    }
}

// ----------------------------------------------------------------------------------------------------- float kernels

// The definition of a dot product: 32 partial sums.
float plain_dot(const float *a, const float *b, size_t n) {
    float sums[32] = {};
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (size_t k = 0; k < 32; k++) sums[k] += a[i + k] * b[i + k];
    for (size_t width = 16; width; width /= 2)
        for (size_t k = 0; k < width; k++) sums[k] += sums[k + width];
    for (; i < n; i++) sums[0] += a[i] * b[i];
    return sums[0];
}

void check_kernels(const char *variant, const Kernels *k, Digest *digest) {
    Random random{5};
    for (size_t n : {1, 2, 15, 16, 31, 32, 33, 64, 100, 511, 512, 1000, 4096}) {
        std::vector<float> w(n), x(7 * n), out(7);
        for (float &v : w) v = random.real();
        for (float &v : x) v = random.real();
        k->dot_many(w.data(), x.data(), n, 7, n, out.data(), 1);
        for (size_t i = 0; i < 7; i++) {
            const float expected = plain_dot(w.data(), x.data() + i * n, n);
            if (!same(out[i], expected) || !same(k->dot(w.data(), x.data() + i * n, n), expected))
                differ(std::string(variant) + " dot of " + std::to_string(n) + " values");
        }
        digest->add(out.data(), out.size());
    }
    std::vector<uint16_t> codes(65536);
    for (size_t i = 0; i < codes.size(); i++) codes[i] = static_cast<uint16_t>(i);
    std::vector<float> ours(codes.size()), expected(codes.size());
    k->f16_row(codes.data(), ours.data(), codes.size());
    for (size_t i = 0; i < codes.size(); i++)
        if (!same(ours[i], f16_to_f32(codes[i]))) differ(std::string(variant) + " F16 code " + std::to_string(i));
    k->bf16_row(codes.data(), ours.data(), codes.size());
    for (size_t i = 0; i < codes.size(); i++)
        if (!same(ours[i], bf16_to_f32(codes[i]))) differ(std::string(variant) + " BF16 code " + std::to_string(i));
    const std::vector<uint8_t> q8 = weight_row(DS4_TYPE_Q8_0, 4096, kRandom, random);
    k->q8_0_row(q8.data(), ours.data(), 4096);
    dequantize_row(DS4_TYPE_Q8_0, q8.data(), expected.data(), 4096);
    for (size_t i = 0; i < 4096; i++)
        if (!same(ours[i], expected[i])) differ(std::string(variant) + " Q8_0 value " + std::to_string(i));
    digest->add(ours.data(), 4096);
}

// The choice of a level, from what any processor may say.
void check_levels() {
    CpuFeatures arm;
    if (best_level(arm) != kIsaBase) differ("a processor without features has a level above the base");
    arm.i8mm = true;  // alone: no known processor
    if (best_level(arm) != kIsaBase) differ("matrix products without dot products are a level");
    arm.dotprod = true;
    if (best_level(arm) != kIsaI8mm) differ("matrix products are not chosen");
    arm.i8mm = false;
    if (best_level(arm) != kIsaDotprod) differ("dot products are not chosen");
    auto err = std::make_unique<ds4_error>();
    if (use(nullptr)) differ("no name is accepted");
    if (limit_isa("mmx", err.get()) != DS4_E_ARGUMENT) differ("an unknown variant is not an argument error");
    const int best = best_level(detect_features());
    for (int level = kIsaBase; level <= kIsaI8mm; level++) {
        const ds4_status status = limit_isa(kVariants[level], err.get());
        if (status != DS4_OK && status != DS4_E_UNAVAILABLE) differ(std::string(kVariants[level]) + " is unknown");
        if ((level == kIsaBase || level == best) && status != DS4_OK) differ(std::string(kVariants[level]) + " is refused");
        if (level > best && status == DS4_OK) differ(std::string(kVariants[level]) + " is accepted");
        if (best >= kIsaDotprod && level > kIsaBase && level < kIsaDotprod && status == DS4_OK)
            differ(std::string(kVariants[level]) + " is accepted on arm64");
    }
    use("auto");
}

int kernels() {
    check_levels();
    uint64_t first = 0;
    Digest digest;
    check_panels(panels_base(), &digest);
    printf("digest panels %016llx\n", static_cast<unsigned long long>(digest.value));
    std::string ran = "plain";
    first = digest.value;
    bool printed = false;
    for (const char *variant : kVariants) {
        if (!use(variant)) continue;
        Digest panels, floats;
        check_panels(active_panels(), &panels);
        if (panels.value != first) differ(std::string(variant) + " panels have another digest");
        check_kernels(variant, active_kernels(), &floats);
        if (!printed) printf("digest kernels %016llx\n", static_cast<unsigned long long>(floats.value));
        printed = true;
        ran += std::string(", ") + variant + " (panels " + active_panels()->name + ", kernels " + active_kernels()->name + ")";
    }
    printf("variants that ran: %s\n", ran.c_str());
    return failures ? 1 : 0;
}

// ----------------------------------------------------------------------------------------------------------- logits

void need(ds4_status status, const ds4_error &err, const char *what) {
    if (status == DS4_OK) return;
    fprintf(stderr, "%s: %s\n", what, err.message);
    exit(1);
}

struct Prompt {
    std::vector<int32_t> tokens, positions;
    std::vector<float> logits;
};

std::vector<Prompt> read_prompts(const char *path) {
    std::vector<Prompt> prompts;
    FILE *file = fopen(path, "rb");
    uint32_t head[3];
    while (file && fread(head, 4, 3, file) == 3) {
        Prompt p;
        p.tokens.resize(head[0]);
        p.positions.resize(head[1]);
        p.logits.resize(size_t{head[1]} * head[2]);
        if (fread(p.tokens.data(), 4, head[0], file) != head[0] ||
            fread(p.positions.data(), 4, head[1], file) != head[1] ||
            fread(p.logits.data(), 4, p.logits.size(), file) != p.logits.size())
            break;
        prompts.push_back(p);
    }
    if (prompts.empty()) {
        fprintf(stderr, "%s: no prompts\n", path);
        exit(1);
    }
    fclose(file);
    return prompts;
}

int logits(const char *model_path, const char *prompts_path, bool quantized) {
    auto err = std::make_unique<ds4_error>();
    ds4_model_options model_options;
    ds4_model_options_init(&model_options);
    ds4_model *model = nullptr;
    need(ds4_model_open(model_path, &model_options, &model, err.get()), *err, "model");
    auto shape = std::make_unique<ds4_shape>();
    ds4_model_get_shape(model, shape.get());
    const size_t vocab = shape->n_vocab;
    for (const Prompt &prompt : read_prompts(prompts_path)) {
        ds4_session_options options;
        ds4_session_options_init(&options);
        options.n_ctx = 512;
        options.n_threads = quantized ? 1 : 2;  // an emulator runs faster without waits between threads
        options.qat = options.rows_f16 = 0;
        options.activations = quantized ? DS4_ACT_QUANTIZED : DS4_ACT_FLOAT;
        ds4_session *session = nullptr;
        need(ds4_session_create(model, &options, &session, err.get()), *err, "session");
        const size_t n = prompt.tokens.size();
        std::vector<float> ours(n * vocab);
        need(ds4_session_eval(session, prompt.tokens.data(), n, ours.data(), err.get()), *err, "eval");
        ds4_session_free(session);
        double largest = 0;
        for (size_t r = 0; r < prompt.positions.size(); r++)
            for (size_t i = 0; i < vocab; i++) {
                const double distance =
                    std::fabs(double{ours[static_cast<size_t>(prompt.positions[r]) * vocab + i]} - prompt.logits[r * vocab + i]);
                if (!(distance <= largest)) largest = distance;  // also NaN
            }
        Digest digest;
        digest.add(ours.data(), ours.size());
        const char *name = strrchr(model_path, '/');
        printf("digest logits %s %s %zu tokens %016llx\n", name ? name + 1 : model_path,
               quantized ? "quantized" : "float", n, static_cast<unsigned long long>(digest.value));
        printf("variant %s: largest distance from the stored logits %.2g\n", isa_name(active_isa()), largest);
        if (!quantized && !(largest <= 1e-4)) differ("logits are off by " + std::to_string(largest));
        if (!std::isfinite(largest)) differ("logits that are not finite");
    }
    ds4_model_close(model);
    return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "kernels")) return kernels();
    if ((argc == 5 || argc == 6) && !strcmp(argv[1], "logits") &&
        (!strcmp(argv[4], "float") || !strcmp(argv[4], "quantized"))) {
        if (argc == 6 && !use(argv[5])) {
            fprintf(stderr, "this machine cannot run %s\n", argv[5]);
            return 2;
        }
        return logits(argv[2], argv[3], !strcmp(argv[4], "quantized"));
    }
    fprintf(stderr, "usage: conformance kernels\n       conformance logits MODEL.gguf PROMPTS float|quantized [VARIANT]\n");
    return 2;
}
