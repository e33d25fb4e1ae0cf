// PyTorch's memory on the simulated GPU, for tests of lifetimes: what is given back is poisoned as soon as a GPU could hand it out.
//
// The rules are those of PyTorch's own allocator. A block belongs to the stream on which it was allocated, and that stream gets it
// again at once, before it has done what it still has queued. If `record_stream` named other streams, they must have passed the
// place at which the block was given back. PyTorch's allocator leaves the bytes of such a block as they were until somebody writes
// into it; here they are poisoned, in the order of the block's stream.
#include <c10/cuda/CUDAException.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include <dlfcn.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>

using Stats = c10::CachingDeviceAllocator::DeviceStats;

namespace {

constexpr int POISON = 0xDB, DEVICE = 2;
constexpr size_t GRAIN = 512, POISONED = size_t{32} << 20, KEPT_AT_MOST = size_t{64} << 20;

template <typename Function>
Function device_function(const char *name) {
  static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}
const auto stream_named = device_function<void *(*)(void *)>("stream_named");
const auto queue_call = device_function<void (*)(void *, void (*)(void *), void *, int)>("queue_call");
const auto stream_done = device_function<int (*)(void *)>("stream_done");
const auto memory_allocate = device_function<void *(*)(int, int, size_t)>("memory_allocate");
const auto memory_free = device_function<int (*)(void *)>("memory_free");

struct Block {
  char *start;
  size_t size;
  int device;
  void *stream;
  std::set<void *> others = {};  // streams that `record_stream` named
  int streams_to_pass = 0;       // before it is poisoned and may be used again
  int calls = 0;                 // that are queued and will look at it

  void poison() { std::memset(start, POISON, std::min(size, POISONED)); }
};

std::mutex lock;
std::map<void *, Block *> in_use;
std::list<Block *> unused;  // the newest first
size_t unused_size;
Stats stats[2];

// Lock held, as in all that follow but those that take it.
void count(Block *block, c10::CachingAllocator::StatArray Stats::*kind, bool more) {
  auto &stat = (stats[block->device].*kind)[0];
  more ? stat.increase(block->size) : stat.decrease(block->size);
}

void keep(Block *block) {
  unused.push_front(block);
  unused_size += block->size;
}

// The oldest that no queued call will look at.
void release(size_t down_to) {
  for (auto at = unused.end(); unused_size > down_to && at != unused.begin();) {
    Block *block = *--at;
    if (block->calls) continue;
    unused_size -= block->size;
    count(block, &Stats::reserved_bytes, false);
    memory_free(block->start);
    delete block;
    at = unused.erase(at);
  }
}

// Its own stream has come to where the block was given back, and got it at once: nobody else may have anything queued.
void poison_in_order(void *argument) {
  std::lock_guard<std::mutex> guard(lock);
  auto block = static_cast<Block *>(argument);
  block->calls--;
  block->poison();
}

void one_stream_passed(void *argument) {
  std::lock_guard<std::mutex> guard(lock);
  auto block = static_cast<Block *>(argument);
  block->calls--;
  if (--block->streams_to_pass) return;
  block->poison();
  keep(block);
}

Block *find_unused(size_t size, int device, void *stream) {
  for (auto at = unused.begin(); at != unused.end(); ++at) {
    Block *block = *at;
    if (block->size != size || block->device != device || block->stream != stream) continue;
    unused.erase(at);
    unused_size -= size;
    return block;
  }
  return nullptr;
}

void wait_for_all() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }

void release_all() {
  wait_for_all();
  std::lock_guard<std::mutex> guard(lock);
  release(0);
}

void *take(size_t bytes, int device, cudaStream_t handle) {
  if (!bytes) return nullptr;
  void *stream = stream_named(handle);
  size_t size = (bytes + GRAIN - 1) / GRAIN * GRAIN;
  std::unique_lock<std::mutex> guard(lock);
  Block *block = find_unused(size, device, stream);
  if (!block) {
    auto start = static_cast<char *>(memory_allocate(DEVICE, device, size));
    if (!start) {
      guard.unlock();
      release_all();
      start = static_cast<char *>(memory_allocate(DEVICE, device, size));
      guard.lock();
      stats[device].num_alloc_retries++;
    }
    if (!start) C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes");
    block = new Block{start, size, device, stream};
    count(block, &Stats::reserved_bytes, true);
  }
  count(block, &Stats::allocated_bytes, true);
  in_use[block->start] = block;
  return block->start;
}

void give_back(void *pointer, size_t, int, cudaStream_t) {
  if (!pointer) return;
  std::unique_lock<std::mutex> guard(lock);
  Block *block = in_use.at(pointer);
  in_use.erase(pointer);
  count(block, &Stats::allocated_bytes, false);

  std::set<void *> others;
  others.swap(block->others);
  void *stream = block->stream;
  block->calls += 1 + static_cast<int>(others.size());
  block->streams_to_pass = 1 + static_cast<int>(others.size());
  if (others.empty()) {
    keep(block);
    release(KEPT_AT_MOST);
  }

  guard.unlock();  // the device may do some of its work now
  auto passed = others.empty() ? poison_in_order : one_stream_passed;
  queue_call(stream, passed, block, 0);
  for (void *other : others) queue_call(other, passed, block, 0);
  stream_done(stream);  // a stream that has nothing else to do poisons it at once
}

void record_stream(void *pointer, cudaStream_t handle) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = in_use.find(pointer);
  if (found == in_use.end()) return;  // memory of another library
  Block *block = found->second;
  void *stream = stream_named(handle);
  if (stream != block->stream) block->others.insert(stream);
}

// PyTorch's pluggable allocator has no statistics, and raises where it is asked for them.
struct Allocator final : torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
  Allocator() : CUDAPluggableAllocator(take, give_back) { set_record_stream_fn(record_stream); }
  void emptyCache(c10::cuda::MempoolId_t) override { release_all(); }
  Stats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    return stats[device];
  }
};

}  // namespace

// Before PyTorch has allocated anything.
extern "C" void use_poisoned_memory() {
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(std::make_shared<Allocator>());
}
