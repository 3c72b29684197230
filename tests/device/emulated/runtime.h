// An accelerator that lies in wait: memory, streams and events, without PyTorch.
//
// Memory of a device is mapped twice. Programs get addresses of a mapping that nobody can read or
// write, so that a host that touches device memory crashes; kernels go by the other one. There,
// freed memory is shut, too, where the stream that it was allocated on allocates again, and is not
// handed out before many more frees: what another stream still does with it crashes.
//
// Each stream is a thread that waits a seeded random time before each operator and copy, so that
// what nobody has waited for has not happened yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace emulated {

using Task = std::function<void()>;
using Clock = std::chrono::steady_clock;
constexpr int PROMPT = 0, FROM_HOST = 4;

// What a recorded event stands for: done once its stream has come so far.
struct Moment {
  void finish();
  void wait();
  bool is_done();
  Clock::time_point at;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
};

class Stream {
 public:
  Stream(int device, int id, int priority);
  // factor: of its wait; 0 for what would give others time to come, and more for copies from the host,
  // so that an operator that does not wait for one comes too early.
  void enqueue(Task task, int factor = 1);
  std::shared_ptr<Moment> record();
  void wait_for(std::shared_ptr<Moment> moment);
  void synchronize();
  bool is_idle();
  const int device, id, priority;

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Task, int>> tasks_;
  bool is_busy_ = false;
  std::mt19937_64 lags_;
};

struct Block {
  char* address;
  size_t size;
  int device;
  Stream* stream;            // that it was allocated on
  std::set<Stream*> others;  // that have used it, as far as has been said
};

// Takes the time of a copy between host and device, by the rate that is set.
void travel(size_t num_bytes);
// Returns a block, null where the device is full: its content is 0xA5. Raises where devices are
// exclusive and another process has this one.
Block* allocate(int device, size_t size, Stream* stream);
// Frees a block for the next allocation of its stream, once the others have come so far.
void release(Block* block);
void record_use(Block* block, Stream* stream);
// Returns the address by which kernels reach an address of a device; null for one of the host.
char* kernel_address(const void* address);
// Returns the device of an address; -1 for one of the host.
int device_of(const void* address);
size_t allocated_bytes(int device);
size_t peak_bytes(int device);
void reset_peak(int device);

int num_devices();
Stream* default_stream(int device);
Stream* new_stream(int device, int priority);
Stream* stream_of(int device, int id);
void synchronize_device(int device);
// Raises what a task of the device has raised, at every later call, as a broken device does.
void check_device(int device);

void* allocate_pinned(size_t size);
void release_pinned(void* address);
bool is_pinned(const void* address);

}  // namespace emulated
