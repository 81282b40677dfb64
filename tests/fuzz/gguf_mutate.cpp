// Attack the GGUF loader with every small damage of a file: each truncation, and each change of one byte of its
// header, must end in an error with a message, or in a directory that is safe to walk. Build it with sanitizers.
//
// usage: gguf_mutate [--step N] FILE...
//   Without FILE a small valid file is made in memory. --step N tries every N-th position only.
//   The header is what lies before the tensor data; of the data at most about 512 truncations are tried.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ds4/ds4.h"

namespace {

using Bytes = std::vector<uint8_t>;

struct Tally {
    unsigned long long tried = 0, refused = 0;
};

void put(Bytes *out, const void *data, size_t n) {
    const uint8_t *p = static_cast<const uint8_t *>(data);
    out->insert(out->end(), p, p + n);
}
template <class T> void put(Bytes *out, T value) { put(out, &value, sizeof value); }
void put_text(Bytes *out, const char *text) {
    put<uint64_t>(out, strlen(text));
    put(out, text, strlen(text));
}

// One record of every value type, two levels of arrays, and tensors of five types.
Bytes small_file() {
    Bytes f;
    put(&f, "GGUF", 4);
    put<uint32_t>(&f, 3);
    put<uint64_t>(&f, 5);
    put<uint64_t>(&f, 22);
    const auto key = [&](const char *name, uint32_t type) {
        put_text(&f, name);
        put<uint32_t>(&f, type);
    };
    key("general.architecture", DS4_KV_STRING);
    put_text(&f, "deepseek4");
    key("general.alignment", DS4_KV_U32);
    put<uint32_t>(&f, 64);
    key("u8", DS4_KV_U8);
    put<uint8_t>(&f, 1);
    key("i8", DS4_KV_I8);
    put<int8_t>(&f, -1);
    key("u16", DS4_KV_U16);
    put<uint16_t>(&f, 2);
    key("i16", DS4_KV_I16);
    put<int16_t>(&f, -2);
    key("i32", DS4_KV_I32);
    put<int32_t>(&f, -3);
    key("f32", DS4_KV_F32);
    put<float>(&f, 1.5f);
    key("bool", DS4_KV_BOOL);
    put<uint8_t>(&f, 1);
    key("u64", DS4_KV_U64);
    put<uint64_t>(&f, 5);
    key("i64", DS4_KV_I64);
    put<int64_t>(&f, -5);
    key("f64", DS4_KV_F64);
    put<double>(&f, 2.5);
    key("deepseek4.block_count", DS4_KV_U32);
    put<uint32_t>(&f, 3);
    key("deepseek4.attention.compress_ratios", DS4_KV_ARRAY);
    put<uint32_t>(&f, DS4_KV_U32);
    put<uint64_t>(&f, 3);
    for (uint32_t ratio : {0u, 4u, 128u}) put(&f, ratio);
    key("tokenizer.ggml.tokens", DS4_KV_ARRAY);
    put<uint32_t>(&f, DS4_KV_STRING);
    put<uint64_t>(&f, 3);
    for (const char *token : {"a", "", "\xc3\xa9"}) put_text(&f, token);
    key("nested", DS4_KV_ARRAY);
    put<uint32_t>(&f, DS4_KV_ARRAY);
    put<uint64_t>(&f, 2);
    for (int i = 0; i < 2; ++i) {
        put<uint32_t>(&f, DS4_KV_BOOL);
        put<uint64_t>(&f, 2);
        put<uint16_t>(&f, 0x0100);
    }
    // Adjacent experts, in the number of layers of the shape that a file with so few keys is compared with.
    key("deepseek4.expert_layout", DS4_KV_STRING);
    put_text(&f, "adjacent");
    key("deepseek4.expert_layout.standard_alignment", DS4_KV_U32);
    put<uint32_t>(&f, 32);
    const auto numbers = [&](const char *name, uint64_t n, uint32_t first, uint32_t step) {
        key(name, DS4_KV_ARRAY);
        put<uint32_t>(&f, DS4_KV_U32);
        put(&f, n);
        for (uint32_t i = 0; i < n; ++i) put(&f, first + i * step);
    };
    numbers("deepseek4.expert_layout.gate_type", 43, DS4_TYPE_IQ2_XXS, 0);
    numbers("deepseek4.expert_layout.up_type", 43, DS4_TYPE_IQ2_XXS, 0);
    numbers("deepseek4.expert_layout.down_type", 43, DS4_TYPE_Q2_K, 0);
    numbers("deepseek4.expert_layout.standard_order", 129, 0, 1);
    uint64_t offset = 0;
    const auto tensor = [&](const char *name, std::vector<uint64_t> ne, uint32_t type, uint64_t bytes) {
        put_text(&f, name);
        put<uint32_t>(&f, static_cast<uint32_t>(ne.size()));
        for (uint64_t n : ne) put(&f, n);
        put(&f, type);
        put(&f, offset);
        offset += (bytes + 63) / 64 * 64;
    };
    tensor("output_norm.weight", {8}, DS4_TYPE_F32, 32);
    tensor("token_embd.weight", {32, 3}, DS4_TYPE_Q8_0, 102);
    tensor("blk.0.ffn_gate_exps.weight", {256, 1, 2}, DS4_TYPE_IQ2_XXS, 132);
    tensor("blk.0.ffn_gate_tid2eid.weight", {2, 3}, DS4_TYPE_I32, 24);
    tensor("blk.1.ffn_exps.weight", {64, 2}, 24, 128);
    f.resize((f.size() + 63) / 64 * 64);
    f.resize(f.size() + offset, 1);
    return f;
}

// Read everything a caller may read from an accepted file, as a program would.
uint64_t walk(const ds4_gguf *g) {
    uint64_t sum = 0;
    ds4_gguf_info info{};
    ds4_gguf_get_info(g, &info);
    for (uint64_t i = 0; i < info.n_kv; ++i) {
        ds4_gguf_kv kv{};
        if (ds4_gguf_get_kv(g, i, &kv, nullptr) != DS4_OK) abort();
        for (size_t k = 0; k < kv.key_len; ++k) sum += static_cast<uint8_t>(kv.key[k]);
        for (uint64_t k = 0; k < kv.n_bytes; ++k) sum += kv.data[k];
    }
    for (uint64_t i = 0; i < info.n_tensors; ++i) {
        ds4_gguf_tensor t{};
        if (ds4_gguf_get_tensor(g, i, &t, nullptr) != DS4_OK) abort();
        for (size_t k = 0; k < t.name_len; ++k) sum += static_cast<uint8_t>(t.name[k]);
        sum += t.data[0] + t.data[t.n_bytes - 1];
        const uint64_t rows = t.ne[1] * t.ne[2] * t.ne[3];
        std::vector<float> row(t.n_bytes < (1u << 14) ? t.ne[0] : 0);  // a sample is enough here
        if (row.empty()) continue;
        const uint64_t row_bytes = t.n_bytes / rows;
        for (uint64_t r = 0; r < rows; ++r)
            if (ds4_dequantize(t.type, t.data + r * row_bytes, row_bytes, t.ne[0], 1, row.data(), nullptr) != DS4_OK)
                break;
    }
    return sum;
}

// The one file that every damaged version is written into. It stays open, and only what differs is written: file
// systems flush a file that is truncated and closed again, which would take far longer than the loader.
struct Target {
    std::string path;
    int fd = -1;

    void write(const uint8_t *bytes, size_t n, size_t at) const {
        if (pwrite(fd, bytes, n, static_cast<off_t>(at)) != static_cast<ssize_t>(n)) give_up();
    }
    void resize(size_t n) const {
        if (ftruncate(fd, static_cast<off_t>(n)) != 0) give_up();
    }
    void restore(const Bytes &good) const {
        resize(0);
        write(good.data(), good.size(), 0);
    }
    void give_up() const {
        perror(path.c_str());
        exit(2);
    }
};

// One damaged file through the loader and the model diagnosis; a refusal must say something.
bool refused(const Target &target, ds4_error *err, uint64_t *sum) {
    ds4_gguf *g = nullptr;
    err->message[0] = '\0';
    if (ds4_gguf_open(target.path.c_str(), &g, err) != DS4_OK) {
        if (err->message[0] == '\0' || g) {
            fprintf(stderr, "a refusal without a message, or with a handle\n");
            exit(1);
        }
        return true;
    }
    *sum += walk(g);
    auto shape = std::make_unique<ds4_shape>();
    std::vector<char> report(4096);
    ds4_model_diagnose(g, shape.get(), report.data(), report.size(), err);
    ds4_gguf_close(g);
    ds4_model *model = nullptr;
    ds4_model_options options;
    ds4_model_options_init(&options);
    if (ds4_model_open(target.path.c_str(), &options, &model, err) == DS4_OK) ds4_model_close(model);
    return false;
}

void attack(const Bytes &good, const Target &target, size_t step, const char *label) {
    auto err = std::make_unique<ds4_error>();
    uint64_t sum = 0;
    target.restore(good);
    ds4_gguf *g = nullptr;
    if (ds4_gguf_open(target.path.c_str(), &g, err.get()) != DS4_OK) {
        fprintf(stderr, "%s: the undamaged file is refused: %s\n", label, err->message);
        exit(1);
    }
    ds4_gguf_info info{};
    ds4_gguf_get_info(g, &info);
    ds4_gguf_close(g);
    if (refused(target, err.get(), &sum)) exit(1);

    Tally cuts, flips;
    const size_t header = static_cast<size_t>(info.data_offset);
    const size_t stride = std::max(step, (good.size() - header) / 512);
    std::vector<size_t> sizes;
    for (size_t n = 0; n < header; n += step) sizes.push_back(n);
    for (size_t n = header; n < good.size(); n += stride) sizes.push_back(n);
    while (!sizes.empty()) {  // from the longest to the shortest, so that each is a cut of the one before
        target.resize(sizes.back());
        sizes.pop_back();
        ++cuts.tried;
        cuts.refused += refused(target, err.get(), &sum);
    }
    target.restore(good);
    for (size_t i = 0; i < header; i += step) {
        // Values that reach other branches: bit flips, extremes, a small change.
        const uint8_t old = good[i];
        const uint8_t values[] = {static_cast<uint8_t>(old ^ 1), static_cast<uint8_t>(old ^ 0x80), 0, 0xFF,
                                  static_cast<uint8_t>(old + 1), static_cast<uint8_t>(old - 1)};
        for (uint8_t value : values) {
            if (value == old) continue;
            target.write(&value, 1, i);
            ++flips.tried;
            flips.refused += refused(target, err.get(), &sum);
        }
        target.write(&old, 1, i);
    }
    printf("%s: %zu bytes, header %llu; truncations %llu (%llu refused), changed bytes %llu (%llu refused), sum %llu\n",
           label, good.size(), static_cast<unsigned long long>(info.data_offset), cuts.tried, cuts.refused,
           flips.tried, flips.refused, static_cast<unsigned long long>(sum));
}

}  // namespace

int main(int argc, char **argv) {
    size_t step = 1;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--step") == 0) {
        step = static_cast<size_t>(atol(argv[2]));
        first = 3;
    }
    if (step == 0) {
        fprintf(stderr, "usage: gguf_mutate [--step N] FILE...\n");
        return 2;
    }
    // Memory where the system offers it: thousands of small writes take half a minute on some disks.
    const char *folder = getenv("TMPDIR");
    if (!folder) folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    Target target{std::string(folder) + "/gguf_mutate.XXXXXX"};
    target.fd = mkstemp(target.path.data());
    if (target.fd < 0) {
        perror(target.path.c_str());
        return 2;
    }
    if (first >= argc) attack(small_file(), target, step, "built-in file");
    for (int i = first; i < argc; ++i) {
        Bytes bytes;
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            return 2;
        }
        uint8_t block[65536];
        for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) put(&bytes, block, n);
        fclose(file);
        attack(bytes, target, step, argv[i]);
    }
    close(target.fd);
    unlink(target.path.c_str());
    return 0;
}
