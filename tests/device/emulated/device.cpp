#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <utility>

namespace emulated {
namespace {

thread_local c10::DeviceIndex current = 0;
thread_local std::map<int, Stream*> current_streams;

void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < num_devices(), "there is no device ", int(index), " of ",
              num_devices());
}

c10::Stream as_torch(Stream* stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, stream->device), stream->id);
}

void free_block(void* block) { release(static_cast<Block*>(block)); }

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(TYPE, current);
    if (size == 0) return {nullptr, nullptr, &free_block_of_nothing, device};
    Block* block = emulated::allocate(current, size, current_stream(device));
    TORCH_CHECK_WITH(OutOfMemoryError, block, "device ", int(current), " is out of memory: ", size,
                     " bytes were asked for, ", allocated_bytes(current), " are in use");
    return {block->address, block, &free_block, device};
  }
  static void free_block_of_nothing(void*) {}
  void copy_data(void* to, const void* from, size_t size) const override {
    auto source = kernel_address(from), target = kernel_address(to);
    current_stream(c10::Device(TYPE, current))->enqueue([=] { std::memcpy(target, source, size); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override {
    record_use(memory, runtime_stream(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = allocated_bytes(device);
    stats.allocated_bytes[0].peak = peak_bytes(device);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak(device); }
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* made = allocate_pinned(std::max<size_t>(size, 1));
    return {made, made, &release_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }
};

// Draws on the CPU, so that seeds mean the same as there.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(TYPE, device),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* made = new DeviceGenerator(device_.index());
    made->inner = inner.clone();
    return made;
  }
  at::Generator inner;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return num_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return num_devices(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_index(device);
    current = device;
  }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    check_index(device);
    return std::exchange(current, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static auto* all = new std::map<int, at::Generator>();
    const int index = device < 0 ? current : device;
    check_index(index);
    if (!all->count(index)) (*all)[index] = at::make_generator<DeviceGenerator>(index);
    return (*all)[index];
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<DeviceGenerator>(device < 0 ? current : device);
  }
  at::Device getDeviceFromPtr(void* address) const override {
    const int device = device_of(address);
    TORCH_CHECK(device >= 0, "the address is not one of a device");
    return at::Device(TYPE, device);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* made = new PinnedMemory();
    return made;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    const auto before = std::exchange(current, storage.device().index());
    c10::DataPtr made = device_allocator()->allocate(size);
    const size_t kept = std::min(size, storage.nbytes());
    if (kept) device_allocator()->copy_data(made.get(), storage.data(), kept);
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(std::move(made));
    impl->set_nbytes(size);
    current = before;
  }
};

const Hooks& hooks() {
  static auto* made = new Hooks();
  return *made;
}

using Event = std::shared_ptr<Moment>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(TYPE, hooks().exchangeDevice(device.index()));
  }
  c10::Device getDevice() const override { return c10::Device(TYPE, current); }
  void setDevice(c10::Device device) const override { hooks().setCurrentDevice(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return as_torch(current_stream(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return as_torch(default_stream(device.has_index() ? device.index() : current));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_urgent) const override {
    return getNewStream(device, is_urgent ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = device.has_index() ? device.index() : current;
    check_index(index);
    return as_torch(new_stream(index, priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    Stream* before = current_stream(stream.device());
    current_streams[stream.device_index()] = runtime_stream(stream);
    return as_torch(before);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return num_devices(); }
  bool queryStream(const c10::Stream& stream) const override {
    return runtime_stream(stream)->is_idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    runtime_stream(stream)->synchronize();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device < 0 ? current : device);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new Event();
    *static_cast<Event*>(*event) = runtime_stream(stream)->record();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) runtime_stream(stream)->wait_for(*static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return !event || (*static_cast<Event*>(event))->is_done();
  }
  void synchronizeEvent(void* event) const override {
    if (event) (*static_cast<Event*>(event))->wait();
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto& from = *static_cast<Event*>(first);
    const auto& to = *static_cast<Event*>(second);
    from->wait();
    to->wait();
    return std::chrono::duration<double, std::milli>(to->at - from->at).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory,
                             const c10::Stream& stream) const override {
    record_use(memory, runtime_stream(stream));
  }
};

Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory);
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
const bool are_hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(const_cast<Hooks*>(&hooks()));
  return true;
}();

}  // namespace

c10::Allocator* device_allocator() { return &memory; }

Stream* current_stream(c10::Device device) {
  const int index = device.has_index() ? device.index() : current;
  check_index(index);
  auto found = current_streams.find(index);
  return found == current_streams.end() ? default_stream(index) : found->second;
}

Stream* runtime_stream(const c10::Stream& stream) {
  return stream_of(stream.device_index(), static_cast<int>(stream.id()));
}

void record_use(const c10::DataPtr& memory, Stream* stream) {
  if (memory.get_context()) record_use(static_cast<Block*>(memory.get_context()), stream);
}

at::Generator default_generator(c10::DeviceIndex device) {
  return hooks().getDefaultGenerator(device);
}

at::Generator drawn_from(const at::Generator& generator) {
  auto* own = dynamic_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
  return own ? own->inner : generator;
}

}  // namespace emulated
