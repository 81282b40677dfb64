// Asynchronous reads of ranges of files into given memory: io_uring where the system has it, else threads that wait.
//
// Reads are begun in the order in which they were asked for, those of a higher rank first, at most `depth` at a time; a
// long one is cut into pieces that are read side by side. Of guesses only a few pieces are under way at a time, so that
// a read that is waited for finds the disk nearly free, and a guess that turned out wrong is withdrawn. A read is whole or an error: fewer bytes than wanted, a failed system call
// and a file that is no longer the one that was opened are all told apart, and none is ever taken for data.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "stream/source_file.h"

namespace ds4::stream {

// What a test makes of a read.
struct Fault {
    int os_errno = 0;       // instead of its result
    uint64_t missing = 0;   // bytes that do not arrive
    unsigned late_us = 0;   // time that it takes longer
};

enum class Rank : uint8_t {
    urgent,  // somebody waits for it
    soon,    // will be needed
    guess,   // may be needed
};
constexpr int kRanks = 3;

// One range. It belongs to its owner, who leaves it alone from submit() until done() is called.
struct Read {
    const SourceFile *file = nullptr;
    uint64_t offset = 0, bytes = 0;
    // Where the byte at `offset` goes. For a direct file address and offset agree modulo kAlignment, and the memory out
    // to the next multiples of kAlignment on both sides is the read's as well.
    uint8_t *into = nullptr;
    void (*done)(Read &) = nullptr;  // on a thread of the reader, without locks
    void *owner = nullptr;

    // The result.
    bool ok() const { return os_errno == 0 && !changed && !withdrawn && got == bytes; }
    uint64_t got = 0;      // bytes up to the first that is missing
    int os_errno = 0;
    bool changed = false;    // it is another file, or was written to
    bool withdrawn = false;  // nobody wanted it any more
    uint64_t ns = 0;       // from submit() to done()

    // Of the reader.
    enum class State : uint8_t { idle, queued, begun };
    State state = State::idle;
    Rank rank = Rank::urgent;
    uint64_t begin = 0, end = 0, next = 0;  // the aligned range, and where its next piece begins
    uint32_t pieces = 0;                    // begun and not ended
    Read *before = nullptr, *after = nullptr;
    Fault fault;
    std::chrono::steady_clock::time_point since{};
};

// The message of a read that is not ok(): "cannot read WHAT: ..." with its place in the file. DS4_E_IO.
ds4_status describe(const Read &r, const char *what, ds4_error *err);

enum class Io { automatic, uring, threads };

struct ReaderOptions {
    Io io = Io::automatic;
    unsigned depth = 32;                      // pieces under way at most; with threads, their number
    uint64_t piece_bytes = uint64_t{1} << 20; // a multiple of kAlignment
};

struct ReaderStats {
    uint64_t reads = 0, bytes = 0, failed = 0;
    uint64_t read_ns = 0;  // sum over the reads
    uint64_t busy_ns = 0;  // while at least one was under way
};

class Reader {
public:
    // DS4_E_ARGUMENT: an option is out of range. DS4_E_UNAVAILABLE: io_uring was asked for and the system has none.
    static ds4_status create(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err);
    // Waits for what is under way and forgets what has not begun.
    virtual ~Reader() = default;
    Reader(const Reader &) = delete;
    Reader &operator=(const Reader &) = delete;

    void submit(Read &r, Rank rank);
    // Makes a read urgent: what has not begun of it goes before all of lower rank.
    void hurry(Read &r);
    // Begins nothing more of a guess. True: it is over, and done() is not called; false: done() is called as ever, and the
    // read may even be whole. No effect on reads of another rank.
    bool withdraw(Read &r);
    // One read, waited for.
    void read(Read &r);

    virtual const char *io() const = 0;  // "io_uring" or "threads"
    const ReaderOptions &options() const { return options_; }
    ReaderStats stats() const;

    // For tests: asked once for every read, when its first piece begins.
    void set_fault(std::function<Fault(const Read &)> fault);

protected:
    explicit Reader(const ReaderOptions &o) : options_(o) {}

    struct Piece {
        Read *read = nullptr;
        uint64_t offset = 0, bytes = 0;
        uint8_t *into = nullptr;
        bool guess = false;
    };
    // The next piece, or false when there is none now.
    bool take(Piece *out);
    // Waits for one; false when the reader ends.
    bool await(Piece *out);
    void notify();  // one thread that awaits
    // result: bytes, or a negative errno.
    void finish(const Piece &p, int64_t result);
    void end();
    bool ended() const;
    virtual void wake() = 0;  // something was submitted, or the end came; called without the lock

private:
    bool take_locked(Piece *out);
    void unlink(Read &r);
    void append(Read &r);

    struct List {
        Read *first = nullptr, *last = nullptr;
    };
    const ReaderOptions options_;
    mutable std::mutex mutex_;
    std::condition_variable queued_;
    List lists_[kRanks];
    bool ended_ = false;
    unsigned under_way_ = 0, guesses_ = 0;  // pieces; of them, guesses
    std::chrono::steady_clock::time_point busy_since_{};
    ReaderStats stats_;
    std::function<Fault(const Read &)> fault_;
};

// Made by Reader::create.
ds4_status make_thread_reader(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err);
ds4_status make_uring_reader(const ReaderOptions &o, std::unique_ptr<Reader> *out, ds4_error *err);

// Bytes a second of `reads` reads of `bytes` each from random places of a file, with the reader's depth.
ds4_status measure(Reader &reader, const SourceFile &file, uint64_t bytes, uint32_t reads, uint64_t seed, double *speed,
                   ds4_error *err);

}  // namespace ds4::stream
