// The Metal device: everything of the back end that calls Metal (driver.h). Objective-C++, with reference counting by the
// compiler (-fobjc-arc), macOS 13 or later.
//
// Kernels get the addresses of buffers inside their records, so an encoder is told about every buffer of the device
// (useResources); that also orders command buffers of one queue. Inside an encoder nothing is ordered but by barriers.
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "source.h"

namespace ds4::metal {

const char *const kBackendName = "metal";

namespace {

constexpr uint32_t kFirstDispatches = 64;     // of a batch are handed in at once, so that the device begins early
constexpr uint64_t kMostGroups = 4u << 20;    // threadgroups of a command buffer: the system stops one that runs for seconds

std::string text_of(NSError *error) { return error ? error.localizedDescription.UTF8String : "no reason given"; }

// Buffers that kernels may reach, and a number that grows with every change.
class Buffers {
  public:
    void add(id<MTLBuffer> b) {
        std::lock_guard lock(mutex_);
        [all_ addObject:b];
        version_++;
    }
    void remove(id<MTLBuffer> b) {
        std::lock_guard lock(mutex_);
        [all_ removeObjectIdenticalTo:b];
    }
    // Tells the encoder about all, when there are others than at `seen`.
    void use(id<MTLComputeCommandEncoder> encoder, uint64_t *seen) {
        std::lock_guard lock(mutex_);
        if (*seen == version_) return;
        *seen = version_;
        std::vector<id<MTLResource>> list;
        for (id<MTLBuffer> b in all_) list.push_back(b);
        if (!list.empty()) [encoder useResources:list.data() count:list.size() usage:MTLResourceUsageRead | MTLResourceUsageWrite];
    }

  private:
    std::mutex mutex_;
    NSMutableArray<id<MTLBuffer>> *all_ = [NSMutableArray array];
    uint64_t version_ = 1;
};

// Compiled kernels by name.
class Pipelines {
  public:
    Pipelines(id<MTLDevice> device, id<MTLLibrary> library) : device_(device), library_(library) {}
    id<MTLComputePipelineState> get(const char *name, std::string *message) {
        std::lock_guard lock(mutex_);
        if (auto found = made_.find(name); found != made_.end()) return found->second;
        id<MTLFunction> function = [library_ newFunctionWithName:@(name)];
        if (!function) {
            *message = std::string("the Metal library has no kernel ") + name + "; it belongs to another build";
            return nil;
        }
        NSError *error = nil;
        id<MTLComputePipelineState> made = [device_ newComputePipelineStateWithFunction:function error:&error];
        if (!made) {
            *message = std::string("kernel ") + name + " cannot be prepared: " + text_of(error);
            return nil;
        }
        return made_[name] = made;
    }

  private:
    std::mutex mutex_;
    id<MTLDevice> device_;
    id<MTLLibrary> library_;
    std::unordered_map<std::string, id<MTLComputePipelineState>> made_;
};

class MetalStream : public Stream {
  public:
    MetalStream(id<MTLCommandQueue> queue, std::shared_ptr<Pipelines> pipelines, std::shared_ptr<Buffers> buffers)
        : queue_(queue), pipelines_(std::move(pipelines)), buffers_(std::move(buffers)) {}

    ~MetalStream() override {
        std::string ignored;
        wait(&ignored);
    }

    void dispatch(const char *name, Grid grid, uint32_t threads, const void *record, size_t bytes) override {
        if (!error_.empty()) return;
        @autoreleasepool {
            id<MTLComputePipelineState> pipeline = pipelines_->get(name, &error_);
            if (!pipeline) return;
            if (threads > pipeline.maxTotalThreadsPerThreadgroup) {
                error_ = std::string("kernel ") + name + " runs with at most " +
                         std::to_string(pipeline.maxTotalThreadsPerThreadgroup) + " threads here and needs " + std::to_string(threads);
                return;
            }
            if (!encoder_ && !begin()) return;
            buffers_->use(encoder_, &seen_);
            if (pending_ && behind_barrier_) [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers];
            behind_barrier_ = false;
            pending_ = true;
            [encoder_ setComputePipelineState:pipeline];
            [encoder_ setBytes:record length:bytes atIndex:0];
            [encoder_ dispatchThreadgroups:MTLSizeMake(grid.x, grid.y, grid.z) threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
            dispatches_++;
            groups_ += uint64_t{grid.x} * grid.y * grid.z;
            if ((first_ && dispatches_ >= kFirstDispatches) || groups_ >= kMostGroups) submit();
        }
    }

    void barrier() override { behind_barrier_ = true; }

    ds4_status wait(std::string *message) override {
        @autoreleasepool {
            submit();
            first_ = true;
            ds4_status status = error_.empty() ? DS4_OK : DS4_E_DEVICE;
            for (id<MTLCommandBuffer> b : submitted_) {
                [b waitUntilCompleted];
                if (b.status != MTLCommandBufferStatusError || status != DS4_OK) continue;
                error_ = "a command buffer failed: " + text_of(b.error);
                status = b.error.code == MTLCommandBufferErrorOutOfMemory ? DS4_E_MEMORY : DS4_E_DEVICE;
            }
            submitted_.clear();
            if (status != DS4_OK) *message = std::move(error_);
            error_.clear();
            return status;
        }
    }

  private:
    bool begin() {
        buffer_ = [queue_ commandBuffer];
        encoder_ = [buffer_ computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
        if (!encoder_) error_ = "no command buffer could be made";
        seen_ = 0;
        pending_ = false;
        return encoder_ != nil;
    }
    void submit() {
        if (!encoder_) return;
        [encoder_ endEncoding];
        [buffer_ commit];
        submitted_.push_back(buffer_);
        buffer_ = nil;
        encoder_ = nil;
        first_ = false;
        dispatches_ = 0;
        groups_ = 0;
    }

    id<MTLCommandQueue> queue_;
    id<MTLCommandBuffer> buffer_ = nil;
    id<MTLComputeCommandEncoder> encoder_ = nil;
    std::shared_ptr<Pipelines> pipelines_;
    std::shared_ptr<Buffers> buffers_;
    std::vector<id<MTLCommandBuffer>> submitted_;
    uint64_t seen_ = 0, groups_ = 0;
    uint32_t dispatches_ = 0;
    bool first_ = true, pending_ = false, behind_barrier_ = false;
    std::string error_;
};

class MetalDriver : public Driver {
  public:
    MetalDriver(id<MTLDevice> device, id<MTLLibrary> library)
        : device_(device), pipelines_(std::make_shared<Pipelines>(device, library)), buffers_(std::make_shared<Buffers>()) {}

    DeviceInfo info() override {
        DeviceInfo i;
        i.name = device_.name.UTF8String;
        int family = 7;  // Apple silicon of the first generation
        while (family < 20 && [device_ supportsFamily:static_cast<MTLGPUFamily>(MTLGPUFamilyApple1 + family)]) family++;
        i.arch = "apple" + std::to_string(family);
        i.memory = device_.recommendedMaxWorkingSetSize;
        i.used = device_.currentAllocatedSize;
        i.largest = device_.maxBufferLength;
        i.page = static_cast<uint64_t>(getpagesize());
        i.matrices = [device_ supportsFamily:MTLGPUFamilyApple7];
        return i;
    }

    ds4_status allocate(uint64_t bytes, Memory *out, std::string *message) override {
        @autoreleasepool {
            if (bytes > device_.maxBufferLength) return too_long(bytes, message);
            id<MTLBuffer> b = [device_ newBufferWithLength:bytes options:MTLResourceStorageModeShared];
            if (!b) {
                *message = "out of memory";
                return DS4_E_MEMORY;
            }
            memset(b.contents, 0, bytes);
            return take(b, out);
        }
    }

    ds4_status import(const void *host, uint64_t bytes, Memory *out, std::string *message) override {
        @autoreleasepool {
            if (bytes > device_.maxBufferLength) return too_long(bytes, message);
            id<MTLBuffer> b = [device_ newBufferWithBytesNoCopy:const_cast<void *>(host)
                                                         length:bytes
                                                        options:MTLResourceStorageModeShared
                                                    deallocator:nil];
            if (!b) {
                *message = "the system refused";
                return DS4_E_MEMORY;
            }
            return take(b, out);
        }
    }

    void release(Memory &m) override {
        if (!m.handle) return;
        id<MTLBuffer> b = CFBridgingRelease(m.handle);
        buffers_->remove(b);
        m = Memory{};
    }

    std::unique_ptr<Stream> stream(std::string *message) override {
        id<MTLCommandQueue> queue = [device_ newCommandQueue];
        if (!queue) {
            *message = "the device has no more";
            return nullptr;
        }
        return std::make_unique<MetalStream>(queue, pipelines_, buffers_);
    }

  private:
    ds4_status take(id<MTLBuffer> b, Memory *out) {
        buffers_->add(b);
        out->host = static_cast<uint8_t *>(b.contents);
        out->address = b.gpuAddress;
        out->bytes = b.length;
        out->handle = const_cast<void *>(CFBridgingRetain(b));
        return DS4_OK;
    }
    ds4_status too_long(uint64_t bytes, std::string *message) {
        *message = std::to_string(bytes) + " bytes are more than the " + std::to_string(device_.maxBufferLength) +
                   " that a buffer may have on this device";
        return DS4_E_MEMORY;
    }

    id<MTLDevice> device_;
    std::shared_ptr<Pipelines> pipelines_;
    std::shared_ptr<Buffers> buffers_;
};

// ds4.metallib beside this library, as the build made it; without one the source that is part of this library.
id<MTLLibrary> kernels(id<MTLDevice> device, std::string *message) {
    NSError *error = nil;
    Dl_info own{};
    if (dladdr(reinterpret_cast<const void *>(&open_driver), &own) && own.dli_fname) {
        NSString *folder = @(own.dli_fname).stringByDeletingLastPathComponent;
        NSString *path = [folder stringByAppendingPathComponent:@"ds4.metallib"];
        if ([NSFileManager.defaultManager fileExistsAtPath:path]) {
            id<MTLLibrary> library = [device newLibraryWithURL:[NSURL fileURLWithPath:path] error:&error];
            if (!library) *message = std::string(path.UTF8String) + " cannot be loaded: " + text_of(error);
            return library;
        }
    }
    MTLCompileOptions *options = [MTLCompileOptions new];
    options.languageVersion = MTLLanguageVersion3_0;
    options.fastMathEnabled = NO;  // a NaN must stay one, and results must not depend on the compiler's mood
    id<MTLLibrary> library = [device newLibraryWithSource:@(kSource) options:options error:&error];
    if (!library) *message = "the kernels cannot be compiled: " + text_of(error);
    return library;
}

}  // namespace

std::unique_ptr<Driver> open_driver(std::string *message, ds4_status *status) {
    @autoreleasepool {
        *status = DS4_E_UNAVAILABLE;
        id<MTLDevice> device = MTLCreateSystemDefaultDevice();
        if (!device) {
            *message = "this machine has no Metal device; use cpu";
            return nullptr;
        }
        if (![device supportsFamily:MTLGPUFamilyMetal3]) {
            *message = std::string(device.name.UTF8String) + " does not support Metal 3 (Apple silicon, macOS 13 or later); use cpu";
            return nullptr;
        }
        id<MTLLibrary> library = kernels(device, message);
        if (!library) return nullptr;
        return std::make_unique<MetalDriver>(device, library);
    }
}

}  // namespace ds4::metal
