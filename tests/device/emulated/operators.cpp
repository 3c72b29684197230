// Operators of the emulated accelerator: those of the CPU, run on a stream's thread.
//
// An operator is queued with the places of its tensors in the kernels' mapping. What it returns is
// allocated at once, shaped by a run on tensors without data, and full of poison until its turn.
// Operators whose results' shapes depend on values, or that return numbers, wait for their stream.

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device.h"

namespace emulated {
namespace {

using c10::IValue;
using torch::jit::Stack;

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == TYPE;
}

// Returns a tensor of the CPU in the place of one of a device; it keeps no memory alive.
at::Tensor in_place(const at::Tensor& tensor) {
  auto options = tensor.options().device(c10::DeviceType::CPU).pinned_memory(false);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto made = at::from_blob(kernel_address(tensor.const_data_ptr()), tensor.sizes(),
                            tensor.strides(), options);
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

void poison(const at::Tensor& place) {
  at::AutoDispatchBelowAutograd below;
  if (place.is_floating_point() || place.is_complex()) {
    place.fill_(std::numeric_limits<double>::quiet_NaN());
  } else if (place.scalar_type() != at::kBool) {
    place.fill_(place.scalar_type() == at::kByte ? 0xA5 : 0x5A);
  }
}

at::Tensor copy_of_host(const at::Tensor& tensor) {
  auto made = tensor.clone();
  made.unsafeGetTensorImpl()->set_wrapped_number(
      tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return made;
}

at::Tensor without_data(const at::Tensor& tensor) {
  if (!tensor.defined() || (!is_ours(tensor) && !tensor.dim())) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           tensor.options().device(c10::DeviceType::Meta).pinned_memory(false));
}

// Returns an argument with its tensors, devices and generators mapped.
template <typename Map>
IValue mapped(const IValue& value, c10::DeviceType device, const Map& map) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(map(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector())
      list.push_back(tensor.defined() ? map(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor && tensor->defined() ? std::optional(map(*tensor)) : tensor);
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == TYPE) return c10::Device(device);
  if (value.isGenerator()) return drawn_from(value.toGenerator());
  return value;
}

bool takes_generator(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (argument.type()->str().find("Generator") != std::string::npos) return true;
  return false;
}

template <typename Visit>
void each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  if (value.isOptionalTensorList())
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) visit(*tensor);
}

// Returns the argument that a result is, such as that of an operator in place; -1: a new tensor.
int written_argument(const c10::FunctionSchema& schema, size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (!alias) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other && other->beforeSets() == alias->beforeSets()) {
      TORCH_CHECK(alias->isWrite(), "the emulated device has no view by ", schema.name());
      return static_cast<int>(i);
    }
  }
  return -1;
}

at::Tensor new_like(const at::Tensor& shape, c10::Device device) {
  return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device));
}

// Returns the results' shapes as tensors without data; nothing where values decide them.
std::optional<Stack> shapes(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  Stack stack;
  for (const IValue& value : arguments)
    stack.push_back(mapped(value, c10::DeviceType::Meta, without_data));
  try {
    at::AutoDispatchBelowAutograd below;
    op.callBoxed(stack);
  } catch (const std::exception&) {  // also what is written in Python raises
    return std::nullopt;
  }
  return stack;
}

// Gives the targets of an operator with out= the shape of what it will write.
void resize_outputs(const c10::OperatorHandle& op, const std::vector<IValue>& arguments,
                    const Stack& made) {
  for (size_t i = 0; i < made.size(); ++i) {
    const int place = written_argument(op.schema(), i);
    if (place < 0 || !made[i].isTensor() || !arguments[place].isTensor()) continue;
    const at::Tensor &target = arguments[place].toTensor(), &shape = made[i].toTensor();
    if (target.defined() && target.sizes() != shape.sizes()) target.resize_(shape.sizes());
  }
}

bool has_out(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments())
    if (argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite())
      return true;
  return false;
}

void run(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), num_results = schema.returns().size();
  std::vector<IValue> arguments(stack->end() - count, stack->end());
  torch::jit::drop(*stack, count);

  std::optional<c10::Device> device;
  for (const IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!is_ours(tensor)) return;
      TORCH_CHECK(!device || *device == tensor.device(), schema.name(), ": tensors on ",
                  *device, " and on ", tensor.device());
      device = tensor.device();
    });
    if (!device && value.isDevice() && value.toDevice().type() == TYPE) device = value.toDevice();
  }
  c10::OptionalDeviceGuard guard(device);
  if (!device || !device->has_index())
    device = c10::impl::getDeviceGuardImpl(TYPE)->getDevice();
  Stream* stream = current_stream(*device);

  bool has_values = false, has_new = false;
  for (size_t i = 0; i < num_results; ++i) {
    const auto& type = schema.returns()[i].type();
    has_new |= written_argument(schema, i) < 0;
    has_values |= !type->isSubtypeOf(*c10::TensorType::get()) && written_argument(schema, i) < 0;
  }
  const bool draws = takes_generator(schema);
  std::optional<Stack> made;
  if (!has_values && (has_new || has_out(schema))) made = shapes(op, arguments);
  if (made) resize_outputs(op, arguments, *made);

  Stack on_host;
  for (size_t i = 0; i < count; ++i) {
    IValue value = mapped(arguments[i], c10::DeviceType::CPU, [](const at::Tensor& tensor) {
      return is_ours(tensor) ? in_place(tensor) : copy_of_host(tensor);
    });
    if (draws && value.isNone() &&
        schema.arguments()[i].type()->str().find("Generator") != std::string::npos)
      value = drawn_from(default_generator(device->index()));
    on_host.push_back(value);
  }

  if (draws || (has_new && !made)) {
    stream->synchronize();
    at::AutoDispatchBelowAutograd below;
    op.callBoxed(on_host);
    for (size_t i = 0; i < num_results; ++i) {
      const int place = written_argument(schema, i);
      if (place >= 0) {
        stack->push_back(arguments[place]);
      } else {
        stack->push_back(mapped(on_host[i], TYPE, [&](const at::Tensor& tensor) {
          auto result = new_like(tensor, *device);
          auto target = in_place(result);
          stream->enqueue([target, tensor] { target.copy_(tensor); });
          return result;
        }));
      }
    }
    return;
  }

  std::vector<at::Tensor> targets(num_results);
  for (size_t i = 0; i < num_results; ++i) {
    const int place = written_argument(schema, i);
    if (place >= 0) {
      stack->push_back(arguments[place]);
    } else if (!(*made)[i].isTensor() || !(*made)[i].toTensor().defined()) {
      stack->push_back((*made)[i]);
    } else {
      auto result = new_like((*made)[i].toTensor(), *device);
      targets[i] = in_place(result);
      stack->push_back(result);
    }
  }
  stream->enqueue([op, on_host, targets] {
    at::AutoDispatchBelowAutograd below;
    Stack values = on_host;
    op.callBoxed(values);
    for (size_t i = 0; i < targets.size(); ++i)
      if (targets[i].defined()) targets[i].copy_(values[i].toTensor());
  });
}

void run_boxed(const c10::OperatorHandle& op, Stack* stack) { run(op, stack); }

c10::OperatorHandle find(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

void convolution(const c10::OperatorHandle&, Stack* stack) {
  run(find("aten::convolution"), stack);
}

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  // The CPU's has the sizes of the bias as its fourth argument.
  const auto weight = (*stack)[stack->size() - 8].toTensor();
  const bool is_transposed = (*stack)[stack->size() - 4].toBool();
  const int64_t groups = (*stack)[stack->size() - 2].toInt();
  const int64_t channels = is_transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->end() - 7, IValue(std::vector<int64_t>{channels}));
  run(find("aten::convolution_backward"), stack);
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool> is_pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!is_pinned.value_or(false), "only memory of the host can be pinned");
  c10::OptionalDeviceGuard guard(device);
  at::Tensor made = at::detail::empty_generic(
      size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
  poison(in_place(made));
  return made;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  at::Tensor made = at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
  poison(in_place(made));
  return made;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  const size_t needed = at::detail::computeStorageNbytesContiguous(
      size, self.dtype().itemsize(), self.storage_offset());
  if (needed > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), needed);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                        at::IntArrayRef size, at::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.data() == nullptr || stride.size() != size.size())
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  else
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const int64_t count = storage.nbytes() / self.dtype().itemsize();
  return set_storage(self, std::move(storage), 0, {count}, {});
}

// Copies between this host and its devices, on the current stream. The host need not wait for those
// of pinned memory. PyTorch itself asks for others, which read the host's memory at once.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool is_async) {
  const auto device = is_ours(source) ? source.device() : target.device();
  Stream* stream = current_stream(device);
  if (is_ours(source) && is_ours(target)) {
    auto from = in_place(source), to = in_place(target);
    if (source.device() == target.device()) {
      stream->enqueue([from, to] { to.copy_(from); });
      return target;
    }
    Stream* other = current_stream(target.device());
    stream->wait_for(other->record());
    stream->enqueue([from, to] { to.copy_(from); });
    other->wait_for(stream->record());
    return target;
  }
  const at::Tensor& host = is_ours(source) ? target : source;
  const bool is_pinned = emulated::is_pinned(host.const_data_ptr()) || !host.numel();
  TORCH_CHECK(!is_async || is_pinned || is_ours(target),
              "a copy with non_blocking=True needs pinned memory on the host");
  const auto from = is_ours(source) ? in_place(source) : source;
  const auto to = is_ours(target) ? in_place(target) : target;
  const auto copy = [from, to] {
    travel(to.nbytes());
    to.copy_(from);
  };
  if (is_async && is_pinned) {
    if (is_ours(source)) poison(to);
    // Which keeps the host's memory alive.
    stream->enqueue(copy, is_ours(target) ? FROM_HOST : 1);
  } else {
    stream->enqueue(copy);
    stream->synchronize();
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar value_of(const at::Tensor& tensor) {
  current_stream(tensor.device())->synchronize();
  return in_place(tensor).item();
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  record_use(tensor.storage().data_ptr(), runtime_stream(stream));
}

std::tuple<at::Tensor, at::Tensor> dropout(const at::Tensor& input, double rate,
                                           std::optional<bool> trains) {
  if (!trains.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double kept = 1 - rate;
  auto mask = at::empty_like(input, at::kBool).bernoulli_(kept);
  return {input * mask * (kept ? 1 / kept : 0.0), mask};
}

int64_t attention_by_formula(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const std::optional<at::Tensor>&, double, bool,
                             std::optional<double>, bool) {
  return 0;
}

// Those with a kernel of parts for any device have one of their own on the CPU.
constexpr const char* WHOLE[] = {
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "native_batch_norm", "native_batch_norm_backward",
};

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("as_strided", [](const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                          std::optional<int64_t> offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, offset);
  });
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &value_of);
  m.impl("record_stream", &record_stream);
  m.impl("native_dropout", &dropout);
  m.impl("_fused_sdp_choice", &attention_by_formula);
  m.impl("convolution_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  for (const char* name : WHOLE)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define IN_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(IN_LOWER_PRECISION)
  AT_FORALL_FP32(IN_FLOAT32)
}

TORCH_LIBRARY(emulated, m) {
  m.def("default_generator(int device) -> Generator?",
        [](int64_t device) { return default_generator(device); });
}

}  // namespace
}  // namespace emulated
