#include "runtime.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

namespace emulated {
namespace {

constexpr size_t ARENA_BYTES = size_t{16} << 30;
constexpr size_t PAGE = 4096;
constexpr size_t POOL = 32;  // streams of a device beside the default one

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atol(text) : otherwise;
}

size_t whole_pages(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

// A block and what is to happen on its other streams before it is used again.
using Freed = std::pair<Block*, std::vector<std::shared_ptr<Moment>>>;

// A device's memory in both mappings.
struct Arena {
  char *address, *kernel_address;
  std::mutex mutex;
  size_t end = 0, used = 0, peak = 0;
  std::multimap<size_t, char*> free;               // by size, to be handed out again
  std::deque<std::pair<size_t, char*>> quarantine;  // shut not long ago
  std::map<Stream*, std::vector<Freed>> freed;       // which the next allocation may get

  Arena() {
    int file = memfd_create("emulated device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, ARENA_BYTES)) throw std::runtime_error("no memory file");
    address = map(file, PROT_NONE);
    kernel_address = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }

  static char* map(int file, int protection) {
    void* made = mmap(nullptr, ARENA_BYTES, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (made == MAP_FAILED) throw std::runtime_error("no room for the memory of a device");
    return static_cast<char*>(made);
  }

  bool holds(const void* wanted) const {
    auto place = static_cast<const char*>(wanted);
    return place >= address && place < address + ARENA_BYTES;
  }

  std::vector<Freed> take_freed(Stream* stream) {
    std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(freed[stream], {});
  }

  void protect(char* place, size_t size, int protection) {
    if (mprotect(kernel_address + (place - address), size, protection))
      throw std::runtime_error("the memory of a device could not be shut or opened");
  }
};

struct Device {
  Arena arena;
  std::mutex mutex;
  std::vector<Stream*> streams;  // never freed, as their threads end with the process
  Stream* first = nullptr;       // the default one
  size_t num_given = 0;          // of the pool, since it is full
  std::exception_ptr error;
};

std::vector<Device*>& devices() {
  static auto* made = [] {
    auto* all = new std::vector<Device*>();
    for (long i = 0; i < setting("EMULATED_DEVICES", 2); ++i) all->push_back(new Device());
    for (size_t i = 0; i < all->size(); ++i)
      (*all)[i]->streams.push_back((*all)[i]->first = new Stream(static_cast<int>(i), 0, 0));
    return all;
  }();
  return *made;
}

Device& device_at(int device) { return *devices().at(device); }

std::mutex pinned_mutex;
std::map<char*, size_t>& pinned() {
  static auto* all = new std::map<char*, size_t>();
  return *all;
}

}  // namespace

void Moment::finish() {
  std::lock_guard<std::mutex> lock(mutex_);
  at = Clock::now();
  is_done_ = true;
  changed_.notify_all();
}

void Moment::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return is_done_; });
}

bool Moment::is_done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_done_;
}

Stream::Stream(int device, int id, int priority) : device(device), id(id), priority(priority) {
  lags_.seed(setting("EMULATED_SEED", 0) * 1000003 + device * 1009 + id);
  std::thread(&Stream::work, this).detach();
}

void Stream::enqueue(Task task, int factor) {
  if (factor != PROMPT) check_device(device);  // what is prompt may be called where nothing may raise
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.emplace_back(std::move(task), factor);
  changed_.notify_all();
}

void Stream::work() {
  const long longest_us = setting("EMULATED_LAG_US", 300);
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    auto [task, factor] = std::move(tasks_.front());
    tasks_.pop_front();
    is_busy_ = true;
    const auto lag_us = longest_us && factor ? factor * (longest_us / 2 + lags_() % longest_us / 2) : 0;
    lock.unlock();
    if (lag_us) std::this_thread::sleep_for(std::chrono::microseconds(lag_us));
    try {
      task();
    } catch (...) {
      std::lock_guard<std::mutex> guard(device_at(device).mutex);
      if (!device_at(device).error) device_at(device).error = std::current_exception();
    }
    task = nullptr;  // with what it holds, before anybody hears of its end
    lock.lock();
    is_busy_ = false;
    changed_.notify_all();
  }
}

std::shared_ptr<Moment> Stream::record() {
  auto moment = std::make_shared<Moment>();
  enqueue([moment] { moment->finish(); }, PROMPT);
  return moment;
}

void Stream::wait_for(std::shared_ptr<Moment> moment) {
  enqueue([moment] { moment->wait(); }, PROMPT);
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !is_busy_; });
  lock.unlock();
  check_device(device);
}

bool Stream::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return tasks_.empty() && !is_busy_;
}

namespace {
void shut(Stream* stream, std::vector<Freed> blocks);
}

void travel(size_t num_bytes) {
  static const long mb_per_s = setting("EMULATED_COPY_MB_PER_S", 0);
  if (mb_per_s) std::this_thread::sleep_for(std::chrono::nanoseconds(num_bytes * 1000 / mb_per_s));
}

void take_exclusively(int device) {
  static const char* folder = std::getenv("EMULATED_EXCLUSIVE");
  if (!folder || !*folder) return;
  static std::mutex mutex;
  static std::set<int> taken;
  std::lock_guard<std::mutex> lock(mutex);
  if (taken.count(device)) return;
  const std::string path = std::string(folder) + "/device-" + std::to_string(device);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || flock(file, LOCK_EX | LOCK_NB))
    throw std::runtime_error("device " + std::to_string(device) + " is busy or unavailable");
  taken.insert(device);  // the lock ends with the process
}

Block* allocate(int device, size_t size, Stream* stream) {
  take_exclusively(device);
  Arena& arena = device_at(device).arena;
  shut(stream, arena.take_freed(stream));
  const size_t pages = whole_pages(size);
  const size_t limit = static_cast<size_t>(setting("EMULATED_MEMORY_MB", 4096)) << 20;
  std::lock_guard<std::mutex> lock(arena.mutex);
  char* place = nullptr;
  if (arena.used + pages > limit) return nullptr;
  if (auto found = arena.free.find(pages); found != arena.free.end()) {
    place = found->second;
    arena.free.erase(found);
    arena.protect(place, pages, PROT_READ | PROT_WRITE);
  } else {
    if (arena.end + pages > ARENA_BYTES) return nullptr;
    place = arena.address + arena.end;
    arena.end += pages;
  }
  arena.used += pages;
  arena.peak = std::max(arena.peak, arena.used);
  std::memset(arena.kernel_address + (place - arena.address), 0xA5, pages);
  return new Block{place, size, device, stream, {}};
}

namespace {

// Shuts blocks once their streams have come so far.
void shut(Stream* stream, std::vector<Freed> blocks) {
  if (blocks.empty()) return;
  auto task = [blocks = std::move(blocks)] {
    for (const auto& [block, moments] : blocks) {
      for (const auto& moment : moments) moment->wait();
      Arena& arena = device_at(block->device).arena;
      const size_t pages = whole_pages(block->size);
      std::lock_guard<std::mutex> lock(arena.mutex);
      madvise(arena.kernel_address + (block->address - arena.address), pages, MADV_REMOVE);
      arena.protect(block->address, pages, PROT_NONE);
      arena.quarantine.emplace_back(pages, block->address);
      while (arena.quarantine.size() > static_cast<size_t>(setting("EMULATED_QUARANTINE", 256))) {
        arena.free.insert(arena.quarantine.front());
        arena.quarantine.pop_front();
      }
      delete block;
    }
  };
  stream->enqueue(task, PROMPT);
}

}  // namespace

void release(Block* block) {
  Freed freed{block, {}};
  for (Stream* other : block->others) freed.second.push_back(other->record());
  Arena& arena = device_at(block->device).arena;
  std::lock_guard<std::mutex> lock(arena.mutex);
  arena.used -= whole_pages(block->size);
  arena.freed[block->stream].push_back(std::move(freed));
}

void record_use(Block* block, Stream* stream) {
  std::lock_guard<std::mutex> lock(device_at(block->device).arena.mutex);
  if (stream != block->stream) block->others.insert(stream);
}

int device_of(const void* address) {
  for (int i = 0; i < num_devices(); ++i)
    if (device_at(i).arena.holds(address)) return i;
  return -1;
}

char* kernel_address(const void* address) {
  const int device = device_of(address);
  if (device < 0) return nullptr;
  Arena& arena = device_at(device).arena;
  return arena.kernel_address + (static_cast<const char*>(address) - arena.address);
}

size_t allocated_bytes(int device) { return device_at(device).arena.used; }
size_t peak_bytes(int device) { return device_at(device).arena.peak; }
void reset_peak(int device) { device_at(device).arena.peak = device_at(device).arena.used; }

int num_devices() { return static_cast<int>(devices().size()); }
Stream* default_stream(int device) { return device_at(device).first; }

Stream* new_stream(int device, int priority) {
  Device& owner = device_at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  // From a pool, as on other devices, since each has a thread: used in turn once all are there.
  if (owner.streams.size() > POOL) return owner.streams[1 + owner.num_given++ % POOL];
  owner.streams.push_back(new Stream(device, static_cast<int>(owner.streams.size()), priority));
  return owner.streams.back();
}

Stream* stream_of(int device, int id) {
  Device& owner = device_at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  return owner.streams.at(id);
}

void synchronize_device(int device) {
  Device& owner = device_at(device);
  std::unique_lock<std::mutex> lock(owner.mutex);
  const std::vector<Stream*> streams = owner.streams;
  lock.unlock();
  for (Stream* stream : streams) stream->synchronize();
}

void check_device(int device) {
  Device& owner = device_at(device);
  std::lock_guard<std::mutex> lock(owner.mutex);
  if (owner.error) std::rethrow_exception(owner.error);
}

void* allocate_pinned(size_t size) {
  char* made = static_cast<char*>(std::aligned_alloc(PAGE, whole_pages(size)));
  if (!made) throw std::bad_alloc();
  std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned()[made] = size;
  return made;
}

void release_pinned(void* address) {
  std::lock_guard<std::mutex> lock(pinned_mutex);
  pinned().erase(static_cast<char*>(address));
  std::free(address);
}

bool is_pinned(const void* address) {
  auto place = static_cast<char*>(const_cast<void*>(address));
  std::lock_guard<std::mutex> lock(pinned_mutex);
  auto after = pinned().upper_bound(place);
  return after != pinned().begin() && place < std::prev(after)->first + std::prev(after)->second;
}

}  // namespace emulated

// For MPI: the address by which a host reaches device memory, as a driver gives it to a GPU-aware
// one.
extern "C" __attribute__((visibility("default"))) void* emulated_kernel_address(const void* address) {
  return emulated::kernel_address(address);
}

extern "C" __attribute__((visibility("default"))) int emulated_num_devices() {
  return emulated::num_devices();
}
