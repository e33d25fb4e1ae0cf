// PyTorch's operators on the simulated GPU: PyTorch's own for the CPU, on the memory of the device, in the order of the stream.
//
// All that comes before a kernel is PyTorch's real host code: dispatch, allocator, autograd, copies. What stays PyTorch's own
// entirely are the operators that run no kernel (REAL below). An operator's outputs are allocated when it is called; their shapes
// come from PyTorch's "meta" kernels. What is computed is queued, with raw pointers: it holds nothing alive, so memory that is
// given back too early is overwritten as on a GPU.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <functional>
#include <iostream>
#include <set>

using c10::IValue;
using torch::jit::Stack;

namespace {

// They allocate, look or wait, and launch no kernel.
const std::set<std::string> REAL = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::unfold",
    "aten::set_", "aten::set_.source_Storage", "aten::set_.source_Tensor", "aten::set_.source_Storage_storage_offset",
    "aten::resize_", "aten::record_stream", "aten::_local_scalar_dense", "aten::is_pinned", "aten::_pin_memory",
    "aten::_assert_async", "aten::_assert_async.msg", "aten::is_set_to", "aten::view_as_real", "aten::view_as_complex",
    "aten::_efficientzerotensor"};
// Of PyTorch's own, the device's choice of an algorithm ends in cuDNN or cuBLAS.
const char *const ALSO[] = {"aten::convolution", "aten::convolution_backward", "aten::copy_"};
// They make the host wait on a GPU as well.
const std::set<std::string> WAITING = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::unique_dim_consecutive", "aten::equal", "aten::repeat_interleave.Tensor", "aten::bincount"};

template <typename Function>
Function device_function(const char *name) {
  static void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function>(dlsym(library, name));
}

void *current_stream() {
  static auto named = device_function<void *(*)(void *)>("stream_named");
  return named(c10::cuda::getCurrentCUDAStream().stream());
}

void run_queued(void *argument) {
  std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()> *>(argument));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  // Whoever waits runs it: one thread each, or every thread of DALI's had a pool of its own.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  try {
    (*work)();
  } catch (const std::exception &error) {
    std::cerr << "simulated GPU: a kernel of PyTorch failed: " << error.what() << std::endl;
  }
  at::set_num_threads(threads);
}

void queue(std::function<void()> work) {
  static auto call = device_function<void (*)(void *, void (*)(void *), void *, int)>("queue_call");
  static auto count = device_function<void (*)(int, long)>("count_one");
  count(0, 1);
  call(current_stream(), run_queued, new std::function<void()>(std::move(work)), 0);
}

void wait_for_stream() {
  static auto wait = device_function<void (*)(void *)>("stream_wait");
  wait(current_stream());
}

// ---- The same tensor elsewhere ----

bool on_device(const at::Tensor &tensor) { return tensor.defined() && tensor.is_cuda(); }

at::Tensor on_cpu(const at::Tensor &tensor) {
  if (!on_device(tensor)) return tensor;
  auto options = tensor.options().device(at::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  auto alias = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

at::Tensor on_meta(const at::Tensor &tensor) {
  if (!on_device(tensor)) return tensor;
  auto shape = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  return shape;
}

// What is on the host is read when the operator is called.
at::Tensor as_it_is_now(const at::Tensor &tensor) {
  bool changeable = tensor.defined() && tensor.is_cpu() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return changeable ? tensor.clone() : tensor;
}

using Move = std::function<at::Tensor(const at::Tensor &)>;

IValue moved(const IValue &value, const Move &move, at::DeviceType device) {
  if (value.isTensor()) return move(value.toTensor());
  if (value.isDevice()) return c10::Device(device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor &each : value.toTensorVector()) list.push_back(move(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto &each : value.toOptionalTensorList()) {
      std::optional<at::Tensor> tensor = each;
      list.push_back(tensor ? std::optional<at::Tensor>(move(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void for_each_tensor(const IValue &value, const std::function<void(const at::Tensor &)> &visit) {
  moved(value, [&](const at::Tensor &tensor) { return visit(tensor), tensor; }, at::kCPU);
}

// ---- Random numbers: of a CPU generator that is seeded by the state of the device's ----

at::Generator cpu_generator(const IValue &value, c10::Device device) {
  auto generator = value.isNone() ? at::globalContext().defaultGenerator(device) : value.toGenerator();
  uint64_t offset = generator.get_offset();
  generator.set_offset(offset + 4);
  return at::make_generator<at::CPUGeneratorImpl>(generator.current_seed() + 0x9E3779B97F4A7C15ull * (offset + 1));
}

// ---- One operator ----

struct Call {
  const c10::OperatorHandle op;
  std::vector<IValue> arguments;  // of the call
  c10::Device device;

  const c10::FunctionSchema &schema() const { return op.schema(); }

  Stack moved_arguments(const Move &move, at::DeviceType to) const {
    Stack stack;
    for (const IValue &each : arguments) stack.push_back(moved(each, move, to));
    return stack;
  }

  // The argument that a return is, such as self of add_; -1: it is a new tensor.
  int argument_of(const c10::Argument &returned) const {
    if (!returned.alias_info()) return -1;
    for (size_t i = 0; i < schema().arguments().size(); i++) {
      const auto *alias = schema().arguments()[i].alias_info();
      if (alias && alias->beforeSets() == returned.alias_info()->beforeSets()) return static_cast<int>(i);
    }
    return -1;
  }

  bool has_out() const {
    for (const auto &each : schema().arguments())
      if (each.is_out()) return true;
    return false;
  }

  bool has_new_returns() const {
    for (const auto &each : schema().returns())
      if (argument_of(each) < 0) return true;
    return false;
  }
};

// On the device: empty tensors of the shapes that PyTorch's meta kernel gives.
std::vector<IValue> allocate_returns(const Call &call) {
  Stack shapes = call.moved_arguments(on_meta, at::kMeta);
  call.op.callBoxed(&shapes);
  std::vector<IValue> returns;
  for (size_t i = 0; i < shapes.size(); i++) {
    int argument = call.argument_of(call.schema().returns()[i]);
    if (argument >= 0) {
      at::Tensor there = call.arguments[argument].isTensor() ? call.arguments[argument].toTensor() : at::Tensor();
      if (shapes[i].isTensor() && there.defined() && there.sizes() != shapes[i].toTensor().sizes()) there.resize_(shapes[i].toTensor().sizes());
      returns.push_back(call.arguments[argument]);
    } else {
      returns.push_back(moved(
          shapes[i],
          [&](const at::Tensor &shape) {
            if (!shape.defined()) return at::Tensor();
            return at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(call.device));
          },
          at::kCUDA));
    }
  }
  return returns;
}

// Runs on the CPU, and fills what was allocated.
void compute(const c10::OperatorHandle &op, Stack arguments, const std::vector<IValue> &returns, const std::vector<bool> &is_new) {
  op.callBoxed(&arguments);
  for (size_t i = 0; i < returns.size(); i++) {
    if (!is_new[i]) continue;
    if (returns[i].isTensor() && returns[i].toTensor().defined()) returns[i].toTensor().copy_(arguments[i].toTensor());
    if (returns[i].isTensorList()) {
      auto to = returns[i].toTensorVector(), from = arguments[i].toTensorVector();
      for (size_t each = 0; each < to.size(); each++) to[each].copy_(from[each]);
    }
  }
}

// Waits, and computes at once: of operators whose shapes depend on values, and of those without a meta kernel.
void run_now(const Call &call, Stack *stack) {
  if (WAITING.count(toString(call.op.operator_name()))) c10::cuda::getCurrentCUDAStream().synchronize();
  wait_for_stream();
  std::vector<at::Tensor> outs;
  Stack arguments;
  for (size_t i = 0; i < call.arguments.size(); i++) {
    bool out = call.schema().arguments()[i].is_out();
    arguments.push_back(moved(call.arguments[i], [&](const at::Tensor &each) { return out ? at::empty({0}, each.options().device(at::kCPU)) : on_cpu(each); }, at::kCPU));
  }
  call.op.callBoxed(&arguments);
  for (size_t i = 0; i < arguments.size(); i++) {
    int argument = call.argument_of(call.schema().returns()[i]);
    if (argument >= 0 && call.schema().arguments()[argument].is_out()) {
      at::Tensor out = call.arguments[argument].toTensor(), found = arguments[i].toTensor();
      out.resize_(found.sizes());
      on_cpu(out).copy_(found);
      stack->push_back(out);
    } else if (argument >= 0) {
      stack->push_back(call.arguments[argument]);
    } else {
      stack->push_back(moved(
          arguments[i],
          [&](const at::Tensor &found) {
            if (!found.defined()) return at::Tensor();
            auto there = at::empty_strided(found.sizes(), found.strides(), found.options().device(call.device));
            on_cpu(there).copy_(found);
            return there;
          },
          at::kCUDA));
    }
  }
}

// Copies that CUDA makes by itself, or between host and device, stay PyTorch's.
bool is_real_copy(const Call &call) {
  const at::Tensor &to = call.arguments[0].toTensor(), &from = call.arguments[1].toTensor();
  bool same = to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
              to.is_non_overlapping_and_dense() && to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
  return !on_device(to) || !on_device(from) || to.device() != from.device() || same;
}

void kernel(const c10::OperatorHandle &op, Stack *stack) {
  const auto &schema = op.schema();
  size_t count = schema.arguments().size();
  Call call{op, {stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()}, c10::Device(at::kCUDA, c10::cuda::current_device())};
  torch::jit::drop(*stack, count);
  bool found = false;
  for (const IValue &each : call.arguments)
    for_each_tensor(each, [&](const at::Tensor &tensor) {
      if (!found && on_device(tensor)) call.device = tensor.device(), found = true;
    });
  c10::cuda::CUDAGuard guard(call.device);

  const std::string name = schema.name();
  if (name == "aten::copy_" && is_real_copy(call)) {
    at::Tensor to = call.arguments[0].toTensor();
    at::native::copy_(to, call.arguments[1].toTensor(), call.arguments[2].toBool());
    stack->push_back(to);
    return;
  }

  for (size_t i = 0; i < count; i++) {
    const bool generator = schema.arguments()[i].name() == "generator";
    if (generator) call.arguments[i] = cpu_generator(call.arguments[i], call.device);
  }

  std::vector<IValue> returns;
  if (WAITING.count(toString(op.operator_name()))) return run_now(call, stack);
  if (call.has_new_returns() || call.has_out()) {
    try {
      returns = allocate_returns(call);
    } catch (const c10::NotImplementedError &) {
      return run_now(call, stack);
    }
  } else {
    for (const auto &each : schema.returns()) returns.push_back(call.arguments[call.argument_of(each)]);
  }

  std::vector<bool> is_new;
  std::vector<IValue> there;
  for (size_t i = 0; i < returns.size(); i++) {
    is_new.push_back(call.argument_of(schema.returns()[i]) < 0);
    there.push_back(moved(returns[i], on_cpu, at::kCPU));
  }
  Stack arguments = call.moved_arguments([](const at::Tensor &each) { return on_device(each) ? on_cpu(each) : as_it_is_now(each); }, at::kCPU);
  queue([op, arguments, there, is_new] { compute(op, arguments, there, is_new); });
  for (IValue &each : returns) stack->push_back(std::move(each));
}

// Quiet: that these replace PyTorch's kernels is the purpose.
class Quiet : public c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto &dispatcher = c10::Dispatcher::singleton();
  std::set<std::string> names(std::begin(ALSO), std::end(ALSO));
  for (const auto &name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA))
    if (name.name.rfind("aten::", 0) == 0) names.insert(toString(name));
  for (const std::string &name : names) {
    auto dot = name.find('.', 6);
    auto op = dispatcher.findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!REAL.count(name) && op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU) | op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
      library.impl(name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&kernel>());
  }
}

}  // namespace
