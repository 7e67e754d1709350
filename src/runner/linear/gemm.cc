#include "runner/linear/gemm.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace longdecode::runner {
namespace {

// Dequantised weights that exist at a time.
constexpr int64_t kPanelBytes = 4 << 20;
// Fewer are dequantised in less time than a parallel region takes.
constexpr int64_t kMinParallelWeights = 32 << 10;

// oneDNN takes the number of threads from OpenMP's setting of the calling thread.
class ThreadScope {
 public:
  explicit ThreadScope(int32_t num_threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(num_threads);
  }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

}  // namespace

struct Gemm::Impl {
  int32_t num_threads = 1;
  bool bf16 = false;
  dnnl::engine engine;
  dnnl::stream stream;
  const float* x = nullptr;
  int64_t num_x = 0;
  int64_t num_cols = 0;
  std::vector<uint16_t> x_bf16;
  std::vector<uint16_t> panel_bf16;
  std::vector<float> panel_f32;

  int64_t weight_bytes() const { return bf16 ? 2 : 4; }

  // Rows first .. first + count - 1 of w; returns where they lie, [count, num_cols].
  void* dequantize_panel(const Matrix& w, int64_t first, int64_t count) {
    const auto size = static_cast<size_t>(count * num_cols);
    if (!bf16 && w.type == GgmlType::kF32) return const_cast<uint8_t*>(w.row(first));
    if (bf16 && panel_bf16.size() < size) panel_bf16.resize(size);
    if (!bf16 && panel_f32.size() < size) panel_f32.resize(size);
    if (bf16 && w.type == GgmlType::kBF16) return const_cast<uint8_t*>(w.row(first));
#pragma omp parallel num_threads(num_threads) if (count * num_cols > kMinParallelWeights)
    {
      std::vector<float> row(bf16 ? static_cast<size_t>(num_cols) : 0);
#pragma omp for schedule(static)
      for (int64_t r = 0; r < count; ++r) {
        if (bf16) {
          dequantize_row(w, first + r, row.data());
          convert_to_bf16(row.data(), num_cols, panel_bf16.data() + r * num_cols);
        } else {
          dequantize_row(w, first + r, panel_f32.data() + r * num_cols);
        }
      }
    }
    return bf16 ? static_cast<void*>(panel_bf16.data()) : static_cast<void*>(panel_f32.data());
  }

  // y [num_x, stride]: columns 0 .. count - 1 are written.
  void multiply(void* panel, int64_t count, float* y, int64_t stride) {
    using dnnl::memory;
    const auto type = bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc x_desc({num_x, num_cols}, type, memory::dims{num_cols, 1});
    const memory::desc w_desc({num_cols, count}, type, memory::dims{1, num_cols});
    const memory::desc y_desc({num_x, count}, memory::data_type::f32, memory::dims{stride, 1});
    const dnnl::matmul::primitive_desc primitive_desc(dnnl::matmul::desc(x_desc, w_desc, y_desc),
                                                      engine);
    void* x_data = bf16 ? static_cast<void*>(x_bf16.data()) : const_cast<float*>(x);
    dnnl::matmul(primitive_desc)
        .execute(stream, {{DNNL_ARG_SRC, memory(x_desc, engine, x_data)},
                          {DNNL_ARG_WEIGHTS, memory(w_desc, engine, panel)},
                          {DNNL_ARG_DST, memory(y_desc, engine, y)}});
    stream.wait();
  }
};

Gemm::Gemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gemm::Gemm(Gemm&&) noexcept = default;
Gemm& Gemm::operator=(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

Result<Gemm> Gemm::create(int32_t num_threads) {
  auto impl = std::make_unique<Impl>();
  impl->num_threads = num_threads;
  // Instruction sets are bit masks; AMX includes bf16.
  constexpr int kBf16 = dnnl_cpu_isa_avx512_core_bf16;
  impl->bf16 = (static_cast<int>(dnnl_get_effective_cpu_isa()) & kBf16) == kBf16;
  try {
    impl->engine = dnnl::engine(dnnl::engine::kind::cpu, 0);
    impl->stream = dnnl::stream(impl->engine);
  } catch (const dnnl::error& error) {
    return make_status(StatusCode::kUnavailable, "oneDNN has no CPU engine: {}", error.what());
  }
  return Gemm(std::move(impl));
}

bool Gemm::uses_bf16() const { return impl_->bf16; }

void Gemm::set_x(const float* x, int64_t num_x, int64_t num_cols) {
  impl_->x = x;
  impl_->num_x = num_x;
  impl_->num_cols = num_cols;
  if (!impl_->bf16) return;
  impl_->x_bf16.resize(static_cast<size_t>(num_x * num_cols));
  convert_to_bf16(x, num_x * num_cols, impl_->x_bf16.data());
}

Status Gemm::run(const Matrix& w, float* y) {
  Impl& impl = *impl_;
  const ThreadScope threads(impl.num_threads);
  const int64_t panel_rows =
      std::max<int64_t>(64, kPanelBytes / (impl.weight_bytes() * w.num_cols));
  try {
    for (int64_t first = 0; first < w.num_rows; first += panel_rows) {
      const int64_t count = std::min(panel_rows, w.num_rows - first);
      impl.multiply(impl.dequantize_panel(w, first, count), count, y + first, w.num_rows);
    }
  } catch (const dnnl::error& error) {
    return make_status(StatusCode::kInternal, "oneDNN matmul [{}, {}] x [{}, {}]: {}", impl.num_x,
                       w.num_cols, w.num_cols, w.num_rows, error.what());
  }
  return Status();
}

}  // namespace longdecode::runner
