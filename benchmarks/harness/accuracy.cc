#include "benchmarks/harness/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_convert.h"
#include "ref/decode.h"
#include "ref/ffd.h"
#include "ref/kv_source.h"

namespace longdecode::bench {
namespace {

// One sequence of the workload, as it was before any cache format.
class OriginalSource : public ref::KvSource {
 public:
  OriginalSource(const Workload& work, int64_t batch_idx) : work_(work), batch_idx_(batch_idx) {}
  int64_t kv_len() const override { return work_.spec.kv_len; }
  int32_t num_kv_heads() const override { return work_.spec.num_kv_heads; }
  int32_t key_dim() const override { return work_.spec.key_dim; }
  int32_t value_dim() const override { return work_.spec.value_dim; }
  void key(int32_t kv_head, int64_t token, double* row) const override {
    read(work_.k, kv_head, token, work_.spec.key_dim, row);
  }
  void value(int32_t kv_head, int64_t token, double* row) const override {
    const TensorView& view = work_.v.data != nullptr ? work_.v : work_.k;
    read(view, kv_head, token, work_.spec.value_dim, row);
  }

 private:
  void read(const TensorView& view, int32_t kv_head, int64_t token, int32_t count,
            double* row) const {
    const int64_t at =
        batch_idx_ * view.stride[0] + token * view.stride[1] + kv_head * view.stride[2];
    for (int32_t c = 0; c < count; ++c) {
      row[c] = double{load_element(view.data, view.dtype, at + c)};
    }
  }
  const Workload& work_;
  int64_t batch_idx_;
};

// Largest difference and largest reference value over sequences.
struct ErrorScan {
  double difference = 0.0;
  double reference = 0.0;

  void add(const TensorView& o, int64_t batch_idx, const std::vector<double>& expected) {
    const int64_t base = batch_idx * o.stride[0];
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = double{load_element(o.data, o.dtype, base + static_cast<int64_t>(i))};
      const double error = std::abs(value - expected[i]);
      if (!std::isfinite(error)) difference = std::numeric_limits<double>::infinity();
      difference = std::max(difference, error);
      reference = std::max(reference, std::abs(expected[i]));
    }
  }
  double relative() const { return difference == 0.0 ? 0.0 : difference / reference; }
};

int64_t always_attended_tokens(const ref::AttentionProblem& problem, const ref::PagedSource& kv,
                               const FfdOptions& options) {
  int64_t count = 0;
  for (int64_t token = 0; token < kv.kv_len(); ++token) {
    bool always = false;
    for (int32_t t = 0; t < problem.query_len && !always; ++t) {
      always = problem.visible(t, token) && ref::always_attended(problem, kv, options, t, token);
    }
    count += always ? 1 : 0;
  }
  return count * kv.num_kv_heads();
}

}  // namespace

std::vector<ref::AttentionOutput> dense_reference(const Workload& work, const DecodeDesc& desc,
                                                  const DecodeArgs& host_args) {
  std::vector<ref::AttentionOutput> outputs;
  for (int32_t b = 0; b < work.spec.batch; ++b) {
    outputs.push_back(ref::decode_dense(desc, host_args, b, OriginalSource(work, b)));
  }
  return outputs;
}

Accuracy measure_accuracy(const DecodeDesc& desc, const DecodeArgs& host_args,
                          const std::vector<ref::TileSet>& tiles,
                          const std::vector<ref::AttentionOutput>& dense) {
  ErrorScan stored, original;
  int64_t missed = 0;
  int64_t wanted = 0;
  for (size_t b = 0; b < dense.size(); ++b) {
    const auto batch_idx = static_cast<int32_t>(b);
    original.add(host_args.o, batch_idx, dense[b].o);
    if (tiles.empty()) continue;
    const ref::PagedSource kv(host_args.kv, host_args.batch, batch_idx);
    const ref::AttentionProblem problem = ref::make_problem(desc, host_args, batch_idx, kv);
    stored.add(host_args.o, batch_idx, ref::attend(problem, &tiles[b]).o);
    // With no tile attended, every wanted token is missed.
    const ref::TileSet none(kv.num_kv_heads(), kv.kv_len());
    missed += ref::count_missed_exact(problem, kv, desc.ffd, tiles[b]);
    wanted += ref::count_missed_exact(problem, kv, desc.ffd, none) -
              always_attended_tokens(problem, kv, desc.ffd);
  }
  Accuracy accuracy;
  accuracy.err_dense = original.relative();
  // Plain formats store the keys as they are.
  accuracy.max_rel_err = tiles.empty() ? accuracy.err_dense : stored.relative();
  if (missed > 0) {
    accuracy.missed_exact =
        static_cast<double>(missed) / static_cast<double>(std::max(wanted, missed));
  }
  return accuracy;
}

double max_rel_err_limit(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 1e-4;
    case DType::kF16:
      return 1e-3;
    case DType::kBF16:
      return 4e-3;
  }
  return 0.0;
}

int64_t attended_tokens(const ref::TileSet& tiles, int32_t num_kv_heads, int64_t kv_len) {
  int64_t tokens = 0;
  for (int32_t head = 0; head < num_kv_heads; ++head) {
    for (int64_t tile = 0; tile < tiles.num_tiles; ++tile) {
      if (!tiles.has(head, tile)) continue;
      tokens += std::min<int64_t>(kTileTokens, kv_len - tile * kTileTokens);
    }
  }
  return tokens;
}

int64_t necessary_bytes(const DecodeDesc& desc, int32_t query_len,
                        const std::vector<int64_t>& kv_lens,
                        const std::vector<ref::TileSet>& tiles) {
  const KvFormat& format = desc.format;
  const int64_t element = dtype_bytes(format.dtype);
  const int64_t value_bytes = format.op == Op::kMla ? 0 : format.value_dim * element;
  int64_t bytes = static_cast<int64_t>(kv_lens.size()) * query_len * desc.num_q_heads *
                  (format.key_dim + format.value_dim) * dtype_bytes(desc.q_dtype);
  for (size_t b = 0; b < kv_lens.size(); ++b) {
    const int64_t kv_len = kv_lens[b];
    const int64_t plain_bytes = format.key_dim * element + value_bytes;
    if (tiles.empty()) {
      bytes += format.num_kv_heads * kv_len * plain_bytes;
      continue;
    }
    const int64_t pages = format.num_quantized_pages(kv_len);
    const int64_t unquantized = kv_len - pages * format.page_size;
    const int64_t attended =
        attended_tokens(tiles[b], format.num_kv_heads, kv_len) - format.num_kv_heads * unquantized;
    bytes += format.num_kv_heads * (pages * format.chunk_bytes() + unquantized * plain_bytes) +
             attended * (format.padded_dim() + value_bytes);
  }
  return bytes;
}

}  // namespace longdecode::bench
