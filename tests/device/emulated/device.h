// The emulated accelerator as PyTorch sees it: devices, streams, events, memory and generators.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include "runtime.h"

namespace emulated {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;

c10::Allocator* device_allocator();
Stream* current_stream(c10::Device device);
Stream* runtime_stream(const c10::Stream& stream);
void record_use(const c10::DataPtr& memory, Stream* stream);
at::Generator default_generator(c10::DeviceIndex device);
// Returns the generator of the CPU that draws for one of a device.
at::Generator drawn_from(const at::Generator& generator);

}  // namespace emulated
