// What both ways of reading share: the queue, pieces, results and figures.
#include "stream/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/pages.h"

namespace ds4::stream {

namespace {

using Clock = std::chrono::steady_clock;

// A guess may have this part of the depth: enough for most of the speed of a disk, and over before long.
constexpr unsigned kGuessPart = 4;

uint64_t ns_since(Clock::time_point then) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - then).count());
}

}  // namespace

ds4_status describe(const Read &r, const char *what, ds4_error *err) {
    const unsigned long long bytes = r.bytes, offset = r.offset;
    const char *const file = r.file->shown().c_str();
    ds4_status st = DS4_E_IO;
    if (r.changed)
        st = fail(err, DS4_E_IO,
                  "cannot read %s, %llu bytes at offset %llu of \"%s\": the file was cut, written to, replaced or removed "
                  "since it was opened",
                  what, bytes, offset, file);
    else if (r.os_errno)
        st = fail_errno(err, DS4_E_IO, r.os_errno, "cannot read %s, %llu bytes at offset %llu of \"%s\"", what, bytes, offset,
                        file);
    else
        st = fail(err, DS4_E_IO, "cannot read %s, %llu bytes at offset %llu of \"%s\": only %llu bytes came", what, bytes, offset,
                  file, static_cast<unsigned long long>(r.got));
    if (err) err->offset = r.offset;
    return st;
}

ds4_status Reader::create(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err) {
    if (o.depth < 1 || o.depth > 1024)
        return fail(err, DS4_E_ARGUMENT, "the depth of reads is %u, it must be in 1..1024", o.depth);
    if (o.piece_bytes < kAlignment || o.piece_bytes % kAlignment || o.piece_bytes > (uint64_t{1} << 30))
        return fail(err, DS4_E_ARGUMENT, "reads are cut into pieces of %llu bytes; that must be a multiple of %llu up to 1 GiB",
                    static_cast<unsigned long long>(o.piece_bytes), static_cast<unsigned long long>(kAlignment));
    if (o.io == Io::threads) return make_thread_reader(o, out, err);
    const ds4_status st = make_uring_reader(o, out, err);
    return st == DS4_E_UNAVAILABLE && o.io == Io::automatic ? make_thread_reader(o, out, err) : st;
}

void Reader::set_fault(std::function<Fault(const Read &)> fault) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fault_ = std::move(fault);
}

ReaderStats Reader::stats() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    ReaderStats s = stats_;
    if (under_way_) s.busy_ns += ns_since(busy_since_);
    return s;
}

void Reader::append(Read &r) {
    List &list = lists_[static_cast<int>(r.rank)];
    r.before = list.last;
    r.after = nullptr;
    (list.last ? list.last->after : list.first) = &r;
    list.last = &r;
}

void Reader::unlink(Read &r) {
    List &list = lists_[static_cast<int>(r.rank)];
    (r.before ? r.before->after : list.first) = r.after;
    (r.after ? r.after->before : list.last) = r.before;
    r.before = r.after = nullptr;
}

void Reader::submit(Read &r, Rank rank) {
    r.got = r.bytes;
    r.os_errno = 0;
    r.changed = r.withdrawn = false;
    r.pieces = 0;
    r.fault = {};
    r.begin = r.offset;
    r.end = r.offset + r.bytes;
    if (r.file->direct()) {
        r.begin = r.begin / kAlignment * kAlignment;
        r.end = (r.end + kAlignment - 1) / kAlignment * kAlignment;
    }
    r.next = r.begin;
    r.since = Clock::now();
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        r.rank = rank;
        r.state = Read::State::queued;
        append(r);
    }
    wake();
}

void Reader::hurry(Read &r) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (r.rank == Rank::urgent || r.state == Read::State::idle) return;
        const bool waits = r.next < r.end;
        if (waits) unlink(r);
        r.rank = Rank::urgent;
        if (!waits) return;
        append(r);
    }
    wake();  // as a guess it may have been held back
}

bool Reader::withdraw(Read &r) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (r.rank != Rank::guess || r.state == Read::State::idle || r.next == r.end) return false;
    unlink(r);
    r.end = r.next;
    r.withdrawn = true;
    if (r.pieces) return false;
    stats_.bytes += r.end - r.begin;
    r.state = Read::State::idle;
    return true;
}

bool Reader::take_locked(Piece *out) {
    if (ended_) return false;
    Read *r = lists_[0].first ? lists_[0].first : lists_[1].first;
    const bool guess = !r;
    if (guess && guesses_ < std::max(options_.depth / kGuessPart, 1u)) r = lists_[2].first;
    if (!r) return false;
    if (r->state == Read::State::queued) {
        r->state = Read::State::begun;
        if (fault_) r->fault = fault_(*r);
    }
    const uint64_t bytes = std::min(options_.piece_bytes, r->end - r->next);
    *out = {r, r->next, bytes, r->into - (r->offset - r->begin) + (r->next - r->begin), guess};
    guesses_ += guess;
    r->next += bytes;
    r->pieces++;
    if (r->next == r->end) unlink(*r);
    if (under_way_++ == 0) busy_since_ = Clock::now();
    return true;
}

bool Reader::take(Piece *out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return take_locked(out);
}

bool Reader::await(Piece *out) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        if (take_locked(out)) {
            if (lists_[0].first || lists_[1].first || lists_[2].first) queued_.notify_one();
            return true;
        }
        if (ended_) return false;
        queued_.wait(lock);
    }
}

// A read may have several pieces: whoever takes the first wakes the next thread.
void Reader::notify() { queued_.notify_one(); }

void Reader::finish(const Piece &p, int64_t result) {
    Read &r = *p.read;
    if (r.fault.late_us) std::this_thread::sleep_for(std::chrono::microseconds(r.fault.late_us));
    const uint64_t last = r.offset + r.bytes, piece_end = std::min(p.offset + p.bytes, last);
    uint64_t here = result > 0 ? std::min(p.offset + static_cast<uint64_t>(result), piece_end) : p.offset;
    if (r.fault.missing) here = std::min(here, std::max(p.offset, last - std::min(r.fault.missing, r.bytes)));
    const int os_errno = r.fault.os_errno ? r.fault.os_errno : result < 0 ? static_cast<int>(-result) : 0;
    const bool changed = !r.file->unchanged();
    r.file->forget(p.offset, p.bytes);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (os_errno && !r.os_errno) r.os_errno = os_errno;
        if (here < piece_end || os_errno) r.got = std::min(r.got, here - std::min(here, r.offset));
        r.changed = r.changed || changed;
        guesses_ -= p.guess;
        if (--under_way_ == 0) stats_.busy_ns += ns_since(busy_since_);
        if (--r.pieces || r.next < r.end) return;
        r.ns = ns_since(r.since);
        stats_.reads++;
        stats_.read_ns += r.ns;
        if (r.ok())
            stats_.bytes += r.bytes;
        else if (r.withdrawn)
            stats_.bytes += r.end - r.begin;
        else
            stats_.failed++;
        r.state = Read::State::idle;
    }
    r.done(r);
}

void Reader::end() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended_ = true;
        queued_.notify_all();
    }
    wake();
}

bool Reader::ended() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
}

void Reader::read(Read &r) {
    struct Signal {
        std::mutex mutex;
        std::condition_variable arrived;
        bool done = false;
    } signal;
    r.owner = &signal;
    r.done = [](Read &ended) {
        Signal &s = *static_cast<Signal *>(ended.owner);
        const std::lock_guard<std::mutex> lock(s.mutex);
        s.done = true;
        s.arrived.notify_all();
    };
    submit(r, Rank::urgent);
    std::unique_lock<std::mutex> lock(signal.mutex);
    signal.arrived.wait(lock, [&] { return signal.done; });
}

ds4_status measure(Reader &reader, const SourceFile &file, uint64_t bytes, uint32_t reads, uint64_t seed, double *speed,
                   ds4_error *err) {
    if (!bytes || !reads || bytes > file.size())
        return fail(err, DS4_E_ARGUMENT, "cannot read %u times %llu bytes of a file of %llu", reads,
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(file.size()));
    // As many places as reads that can be under way, each used again and again.
    const uint64_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const uint64_t pieces = (room + reader.options().piece_bytes - 1) / reader.options().piece_bytes;
    const size_t n = static_cast<size_t>(std::min<uint64_t>(reads, reader.options().depth / pieces + 2));
    ZeroedMemory memory;
    if (!memory.allocate(n * room + kAlignment)) return fail(err, DS4_E_MEMORY, "out of memory for %zu reads at a time", n);
    uint8_t *const first = memory.data() + (kAlignment - reinterpret_cast<uintptr_t>(memory.data()) % kAlignment) % kAlignment;
    struct Run {
        std::mutex mutex;
        std::condition_variable arrived;
        std::vector<Read *> idle;
        const Read *bad = nullptr;
    } run;
    std::vector<Read> list(n);
    for (size_t i = 0; i < n; i++) {
        list[i].file = &file;
        list[i].bytes = bytes;
        list[i].into = first + i * room;
        list[i].owner = &run;
        list[i].done = [](Read &r) {
            Run &own = *static_cast<Run *>(r.owner);
            const std::lock_guard<std::mutex> lock(own.mutex);
            if (!r.ok() && !own.bad) own.bad = &r;
            own.idle.push_back(&r);
            own.arrived.notify_one();
        };
        run.idle.push_back(&list[i]);
    }
    run.idle.reserve(n);
    const uint64_t places = (file.size() - bytes) / kAlignment + 1;
    const auto start = Clock::now();
    uint64_t state = hash_mix(kHashSeed, seed);
    for (uint32_t i = 0; i < reads + n; i++) {
        std::unique_lock<std::mutex> lock(run.mutex);
        if (i >= reads || run.bad) {  // all begun: wait for the last ones
            run.arrived.wait(lock, [&] { return run.idle.size() == n; });
            break;
        }
        run.arrived.wait(lock, [&] { return !run.idle.empty(); });
        Read *const r = run.idle.back();
        run.idle.pop_back();
        if (run.bad) {
            run.idle.push_back(r);
            continue;
        }
        lock.unlock();
        state = hash_mix(state, i + 1);
        r->offset = (state >> 8) % places * kAlignment;
        reader.submit(*r, Rank::urgent);
    }
    if (run.bad) return describe(*run.bad, "a range", err);
    *speed = static_cast<double>(bytes) * reads / (static_cast<double>(ns_since(start)) * 1e-9);
    return DS4_OK;
}

}  // namespace ds4::stream
