// A second torch device in host memory, that behaves like CUDA where it counts.
//
// Its tensors have no NumPy view, and no operation mixes them with those of
// the CPU. Each operation runs on the CPU, on aliases of its tensors.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Storage;
using at::Tensor;
using c10::DeviceType;
using c10::IValue;

constexpr auto kFake = DeviceType::PrivateUse1;
const c10::Device kFakeDevice(kFake, 0);

// Memory.

void free_owner(void* owner) { delete static_cast<c10::DataPtr*>(owner); }

c10::DataPtr as_fake(c10::DataPtr data) {
  if (data.get() == nullptr) return {nullptr, kFakeDevice};
  void* memory = data.get();
  auto* owner = new c10::DataPtr(std::move(data));
  return {memory, owner, &free_owner, kFakeDevice};
}

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return as_fake(c10::GetCPUAllocator()->allocate(bytes));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_owner; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};
FakeAllocator allocator;
REGISTER_ALLOCATOR(kFake, &allocator);

// Devices and generators.

struct FakeGuard final : c10::impl::NoOpDeviceGuardImpl<kFake> {
  c10::Device getDevice() const override { return kFakeDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return kFakeDevice; }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kFakeDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, kFakeDevice);
  }
  void record(void**, const c10::Stream&, c10::DeviceIndex,
              c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeGuard);

struct FakeGenerator final : at::CPUGeneratorImpl {
  FakeGenerator() { move_to(kFakeDevice); }
  void move_to(c10::Device device) { device_ = device; }
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::make_generator<FakeGenerator>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<FakeGenerator>();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage,
                              size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};
const bool hooked =
    (at::RegisterPrivateUse1HooksInterface(new FakeHooks()), true);

bool is_fake(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kFake;
}

Tensor tensor_of(Storage storage, c10::DispatchKey key, const Tensor& like) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  return made;
}

// The tensors of one operation: their aliases on the CPU, and back.
class Aliases {
 public:
  Tensor to_cpu(const Tensor& tensor) {
    auto* own = tensor.storage().unsafeGetStorageImpl();
    auto found = on_cpu_.find(own);
    if (found == on_cpu_.end()) {
      Storage alias(Storage::use_byte_size_t(), own->nbytes(),
                    c10::DataPtr(own->mutable_data(), c10::kCPU),
                    c10::GetCPUAllocator(), /*resizable=*/true);
      found = on_cpu_.emplace(own, alias).first;
      own_.emplace(alias.unsafeGetStorageImpl(), tensor.storage());
    }
    return tensor_of(found->second, c10::DispatchKey::CPU, tensor);
  }

  Tensor to_fake(const Tensor& result) {
    auto* memory = result.storage().unsafeGetStorageImpl();
    auto found = own_.find(memory);
    if (found == own_.end()) {
      auto bytes = memory->nbytes();
      auto data = memory->set_data_ptr(c10::DataPtr(nullptr, c10::kCPU));
      Storage storage(Storage::use_byte_size_t(), bytes,
                      as_fake(std::move(data)), &allocator, /*resizable=*/true);
      found = own_.emplace(memory, storage).first;
      kept_.push_back(result);
    }
    return tensor_of(found->second, c10::DispatchKey::PrivateUse1, result);
  }

  // An operation may have given an output other memory, and another shape.
  void take_back(const Tensor& tensor, const Tensor& alias) {
    auto* own = tensor.storage().unsafeGetStorageImpl();
    auto* used = alias.storage().unsafeGetStorageImpl();
    if (used->data() != own->data()) {
      auto data = used->set_data_ptr(c10::DataPtr(used->mutable_data(), c10::kCPU));
      own->set_data_ptr_noswap(as_fake(std::move(data)));
      own->set_nbytes(used->nbytes());
    }
    if (tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides())
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
          alias.sizes(), alias.strides(), alias.storage_offset());
  }

 private:
  std::unordered_map<c10::StorageImpl*, Storage> on_cpu_, own_;
  std::vector<Tensor> kept_;
};

// What CUDA refuses.

void refuse_mixture(const std::string& name, size_t argument,
                    const Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0 || is_fake(tensor)) return;
  static const std::unordered_set<std::string> indexing = {
      "aten::index", "aten::index_put", "aten::index_put_",
      "aten::_index_put_impl_", "aten::_unsafe_index",
      "aten::_unsafe_index_put"};
  if (argument == 1 && indexing.count(name)) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found ",
              "at least two devices, fake:0 and ", tensor.device(), "! (", name,
              ")");
}

const std::unordered_set<std::string> products = {
    "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addmv",
    "aten::addmv_", "aten::dot", "aten::mv", "aten::addbmm", "aten::vdot"};

// With FAKEDEV_TF32, factors of a product have 11 significant bits.
Tensor rounded_factor(const std::string& name, size_t i, const Tensor& alias) {
  static const bool on = std::getenv("FAKEDEV_TF32") != nullptr;
  const bool added = i == 0 && name.compare(0, 9, "aten::add") == 0;
  // Products with a vector have no such kernels.
  const bool rounds = products.count(name) && name.find("mm") != name.npos;
  if (!on || added || !rounds || alias.scalar_type() != at::kFloat) return alias;
  at::AutoDispatchBelowADInplaceOrView below;
  auto bits = alias.clone().view(at::kInt);
  return bits.add(1 << 12).bitwise_and(~((1 << 13) - 1)).view(at::kFloat);
}

void refuse_integers(const std::string& name, const Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !products.count(name) || !c10::isIntegralType(tensor.scalar_type(), true),
      "\"", name, "_fake\" not implemented for '", tensor.scalar_type(), "'");
}

// What is an exception on the CPU ends all work on a GPU.
void refuse_bounds(const std::string& name, const c10::Error& error) {
  const std::string what = error.what_without_backtrace();
  if (what.find("out of range") == std::string::npos &&
      what.find("out of bounds") == std::string::npos)
    return;
  if (name.find("index") == std::string::npos &&
      name.find("scatter") == std::string::npos &&
      name.find("gather") == std::string::npos &&
      name.find("embedding") == std::string::npos)
    return;
  TORCH_CHECK(false, "fake error: device-side assert triggered (", name, ": ",
              what, ")");
}

// Replaces each tensor of a value by what `convert` returns; whether it holds
// tensors at all.
template <class Convert>
bool replace_tensors(IValue& value, const Convert& convert) {
  if (value.isTensor()) {
    value = convert(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<Tensor> all;
    for (const Tensor& tensor : value.toTensorVector())
      all.push_back(convert(tensor));
    value = all;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (const auto& tensor : value.toOptionalTensorVector())
      all.push_back(tensor.has_value() ? std::optional(convert(*tensor))
                                       : std::nullopt);
    value = all;
  } else {
    return false;
  }
  return true;
}

// Every operation without a kernel of its own.
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet,
                torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const size_t count = schema.arguments().size();
  const size_t first = stack->size() - count;
  Aliases aliases;
  std::vector<std::pair<Tensor, Tensor>> written;  // Own, and alias.
  std::vector<FakeGenerator*> generators;
  bool any_fake = false;

  auto each = [](const IValue& value, const auto& apply) {
    if (value.isTensor()) {
      apply(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) apply(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        if (tensor.has_value()) apply(*tensor);
    }
  };
  for (size_t i = 0; i < count; ++i)
    each((*stack)[first + i],
         [&](const Tensor& tensor) { any_fake |= is_fake(tensor); });

  for (size_t i = 0; i < count; ++i) {
    IValue& value = (*stack)[first + i];
    const auto* alias_info = schema.arguments()[i].alias_info();
    const bool writes = alias_info != nullptr && alias_info->isWrite();
    auto convert = [&](const Tensor& tensor) -> Tensor {
      if (any_fake) refuse_mixture(name, i, tensor);
      if (!is_fake(tensor)) return tensor;
      refuse_integers(name, tensor);
      Tensor alias = aliases.to_cpu(tensor);
      if (writes) written.emplace_back(tensor, alias);
      return writes ? alias : rounded_factor(name, i, alias);
    };
    if (replace_tensors(value, convert)) continue;
    if (value.isGenerator()) {
      auto* generator =
          dynamic_cast<FakeGenerator*>(value.toGenerator().unsafeGetGeneratorImpl());
      TORCH_CHECK(generator != nullptr || !any_fake,
                  "Expected a 'fake' device type for generator but found 'cpu'");
      if (generator != nullptr) {
        generator->move_to(c10::kCPU);
        generators.push_back(generator);
      }
    } else if (value.isDevice()) {
      value = c10::Device(c10::kCPU);
    }
  }
  auto restore = [&] {
    for (auto* generator : generators) generator->move_to(kFakeDevice);
  };
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  } catch (const c10::Error& error) {
    restore();
    refuse_bounds(name, error);
    throw;
  } catch (...) {
    restore();
    throw;
  }
  restore();
  for (auto& [own, alias] : written) aliases.take_back(own, alias);

  auto back = [&](const Tensor& result) -> Tensor {
    if (!result.defined()) return result;
    for (auto& [own, alias] : written)
      if (alias.is_same(result)) return own;
    return aliases.to_fake(result);
  };
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    replace_tensors((*stack)[i], back);
  }
}

// The kernels that make, move and look at memory.

Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<at::Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                     std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>,
                     std::optional<bool>) {
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size,
                  c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset.has_value()
          ? std::optional(offset->guard_int(__FILE__, __LINE__))
          : std::nullopt);
}

Tensor view(const Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size,
                     c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size,
                     std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool) {
  Aliases aliases;
  Tensor source = is_fake(self) ? aliases.to_cpu(self) : self;
  Tensor target = is_fake(to) ? aliases.to_cpu(to) : to;
  at::AutoDispatchBelowADInplaceOrView below;
  // As a GPU converts: NaN to 0, and the closest number to what is too large.
  const auto kind = target.scalar_type();
  if (is_fake(self) && c10::isFloatingType(source.scalar_type()) &&
      (kind == at::kInt || kind == at::kLong)) {
    const double low = kind == at::kInt ? -2147483648.0 : -9223372036854775808.0;
    const double high = kind == at::kInt ? 2147483647.0 : 9223372036854774784.0;
    source = source.to(at::kDouble).nan_to_num(0.0, high, low).clamp(low, high);
  }
  target.copy_(source);
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar item(const Tensor& self) {
  Aliases aliases;
  return at::_local_scalar_dense(aliases.to_cpu(self));
}

Tensor& set_storage(Tensor& self, Storage source, c10::SymInt offset,
                    c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(
      self, source, offset.guard_int(__FILE__, __LINE__),
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor& set_whole_storage(Tensor& self, Storage source) {
  int64_t size = source.nbytes() / self.dtype().itemsize();
  return at::native::set_storage_cpu_(self, source, 0, {size}, {});
}

// PyTorch knows no convolution of a foreign device.

Tensor convolve(const Tensor& input, const Tensor& weight,
                const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                bool transposed, c10::SymIntArrayRef output_padding,
                c10::SymInt groups) {
  TORCH_CHECK(is_fake(input) && is_fake(weight),
              "Expected all tensors to be on the same device");
  Aliases aliases;
  std::optional<Tensor> shift;
  if (bias.has_value() && bias->defined()) shift = aliases.to_cpu(*bias);
  at::AutoDispatchBelowADInplaceOrView below;
  return aliases.to_fake(at::convolution_symint(
      aliases.to_cpu(input), aliases.to_cpu(weight), shift, stride, padding,
      dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolve_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> mask) {
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below;
  auto [x, w, b] = at::convolution_backward_symint(
      aliases.to_cpu(gradient), aliases.to_cpu(input), aliases.to_cpu(weight),
      c10::SymIntArrayRef({weight.sym_size(transposed ? 1 : 0)}), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  auto back = [&](const Tensor& result) {
    return result.defined() ? aliases.to_fake(result) : result;
  };
  return {back(x), back(w), back(b)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("convolution_overrideable", convolve);
  m.impl("convolution_backward_overrideable", convolve_backward);
  m.impl("_local_scalar_dense", item);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
}

}  // namespace
