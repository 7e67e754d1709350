#include "cpu/cpu_backend.h"

#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "base/errors.h"
#include "base/status_macros.h"
#include "cpu/append.h"
#include "cpu/cpu_features.h"
#include "cpu/dense_decode.h"
#include "cpu/ffd_decode.h"
#include "cpu/merge.h"
#include "cpu/prefill.h"

namespace longdecode::cpu {
namespace {

constexpr int64_t kAlignmentBytes = 64;
// From kMinHugeBytes on memory is aligned to huge pages and asks for them: a decode step reads a
// pool page by page, and 4 KB translations cost it bandwidth. Workspaces are smaller, but used all
// the time: on a virtual machine MLA took 7.0 ms with one of 1 MB in 4 KB pages, 4.0 in a huge
// page.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kMinHugeBytes = int64_t{256} << 10;

Status check_method(const DecodeDesc& desc) {
  if (desc.method == Method::kDense) return {};
  if (desc.format.op == Op::kMla) {
    return unsupported(
        "method 1 (ffd) with format.op 1 (mla): cpu/mla_decode is dense, allowed: 0");
  }
  if (desc.format.keys == KeyEncoding::kPlain) {
    return unsupported(
        "method 1 (ffd) with format.keys 0 (plain): ffd reads code planes, allowed: "
        "1 (two-plane)");
  }
  return {};
}

class CpuBackend final : public Backend {
 public:
  Result<DeviceInfo> detect(int32_t device_idx) const override {
    if (device_idx != 0) {
      return make_status(StatusCode::kUnavailable, "device_idx is {}; allowed on the CPU: 0",
                         device_idx);
    }
    return detect_cpu();
  }

  Result<KernelChoice> select(const DecodeDesc& desc, const DeviceInfo& device) const override {
    LD_RETURN_IF_ERROR(check_method(desc));
    KernelChoice choice;
    if (desc.format.keys == KeyEncoding::kTwoPlane) {
      choice.isa = ffd_isa(device);
      choice.name = "cpu/ffd_decode";
      choice.tokens_per_split = ffd_tokens_per_split(desc);
      return choice;
    }
    choice.isa = dense_isa(desc, device);
    choice.name = desc.format.op == Op::kMla ? "cpu/mla_decode" : "cpu/gqa_decode";
    choice.tokens_per_split = dense_tokens_per_split(desc);
    return choice;
  }

  Result<std::unique_ptr<DecodeKernel>> make_decode(const DecodeDesc& desc,
                                                    const DeviceInfo& device) const override {
    LD_RETURN_IF_ERROR(check_method(desc));
    if (desc.format.keys == KeyEncoding::kTwoPlane) return make_ffd_decode(desc, device);
    return make_dense_decode(desc, device);
  }

  Status append(const AppendArgs& args, const DeviceInfo& device, StreamHandle) const override {
    cpu::append(args, device);
    return {};
  }

  Status prefill(const PrefillArgs& args, const DeviceInfo& device, StreamHandle) const override {
    return cpu::prefill(args, device);
  }

  Status merge(const MergeArgs& args, const DeviceInfo& device, StreamHandle) const override {
    cpu::merge(args, device);
    return {};
  }

  Result<void*> allocate(int64_t num_bytes, const DeviceInfo&) const override {
    if (num_bytes < 0) return invalid_argument("num_bytes is {}; allowed: 0 or more", num_bytes);
    const int64_t alignment = num_bytes >= kMinHugeBytes ? kHugePageBytes : kAlignmentBytes;
    if (num_bytes > INT64_MAX - alignment) return no_memory(num_bytes);
    const int64_t rounded = (num_bytes / alignment + 1) * alignment;
    void* memory = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
    if (memory == nullptr) return no_memory(num_bytes);
#if defined(__linux__)
    // A hint: where it is refused the memory is as good, only slower.
    if (alignment == kHugePageBytes) {
      (void)madvise(memory, static_cast<size_t>(rounded), MADV_HUGEPAGE);
    }
#endif
    return memory;
  }

  void deallocate(void* memory, const DeviceInfo&) const override { std::free(memory); }

  Status copy(void* to, const void* from, int64_t num_bytes, const DeviceInfo&,
              StreamHandle) const override {
    if (num_bytes > 0) std::memcpy(to, from, static_cast<size_t>(num_bytes));
    return {};
  }

  bool host_readable() const override { return true; }

 private:
  static Status no_memory(int64_t num_bytes) {
    return out_of_memory("num_bytes is {}; this machine cannot provide them", num_bytes);
  }
};

}  // namespace

const Backend& backend() {
  static const CpuBackend instance;
  return instance;
}

}  // namespace longdecode::cpu
