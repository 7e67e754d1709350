#include "cuda/kernels/gqa_decode/decode_kernel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>
#include <utility>

#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/device/divisor.h"
#include "cuda/host/architecture.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/status.h"
#include "cuda/host/tensor_map.h"
#include "cuda/kernels/dense_stats/dense_stats.h"
#include "cuda/kernels/gqa_decode/params.h"
#include "cuda/kernels/gqa_decode/sm80/launch.h"
#include "cuda/kernels/gqa_decode/sm90/launch.h"

namespace longdecode::cuda::gqa {
namespace {

using Sm90Launch = cudaError_t (*)(const CUtensorMap&, const CUtensorMap&, Params, bool,
                                   cudaStream_t);
using Sm80Launch = cudaError_t (*)(const sm80::Pools&, Params, bool, cudaStream_t);

template <int... kIndices>
constexpr auto make_sm90_launches(std::integer_sequence<int, kIndices...>) {
  return std::array<Sm90Launch, sizeof...(kIndices)>{sm90::launch<kIndices>...};
}
template <int... kIndices>
constexpr auto make_sm80_launches(std::integer_sequence<int, kIndices...>) {
  return std::array<Sm80Launch, sizeof...(kIndices)>{sm80::launch<kFirstSm80 + kIndices>...};
}
constexpr auto kSm90Launches = make_sm90_launches(std::make_integer_sequence<int, kFirstSm80>());
constexpr auto kSm80Launches =
    make_sm80_launches(std::make_integer_sequence<int, kNumInstances - kFirstSm80>());

constexpr int64_t kAlignment = 256;
// The merge has CTAs for every pair of batches up to this many (the decode kernel's one window).
constexpr int32_t kMergeByPairBatch = 32;
// Longer windows hide nothing: select refuses longer sequences.
constexpr int64_t kLongestWindow = int64_t{1} << 30;

int64_t partials_bytes(const RunShape& shape, int32_t head_dim) {
  if (!shape.may_split) return 0;
  // O^T of a row group and (max, sum) of its rows, fp32.
  const int64_t partial_bytes = (head_dim + 2) * int64_t{kGroupRows} * 4;
  return 2 * int64_t{shape.num_workers} * shape.num_row_groups * partial_bytes;
}

class GqaDecodeKernel final : public DecodeKernel {
 public:
  GqaDecodeKernel(const DecodeDesc& desc, const DeviceInfo& device)
      : desc_(desc), device_(device), instance_(instance_for(desc, device)) {
    for (int32_t query_len = 1; query_len <= desc.max_query_len; ++query_len) {
      const RunShape shape = run_shape(desc, device, desc.max_batch, query_len);
      partials_bytes_ = std::max(partials_bytes_,
                                 round_up(partials_bytes(shape, desc.format.key_dim), kAlignment));
    }
  }

  int64_t workspace_bytes() const override {
    return partials_bytes_ +
           round_up(2 * sizeof(int32_t) * 2 * int64_t{device_.num_sms}, kAlignment);
  }

  Status init(void*, StreamHandle) override { return Status(); }  // no state between runs

  Status run(const DecodeArgs& args, void* workspace, StreamHandle stream_handle) override {
    if (args.batch.batch == 0) return Status();
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    const RunShape shape = run_shape(desc_, device_, args.batch.batch, args.query_len);
    const Params params = make_params(args, shape, workspace);
    LD_RETURN_IF_ERROR(launch(args.kv, params, shape.may_split, stream));
    return write_dense_stats(desc_, args, stream);
  }

 private:
  Status launch(const KvLayerView& kv, const Params& params, bool may_split,
                cudaStream_t stream) const {
    cudaError_t error;
    if (instance_ >= kFirstSm80) {
      const sm80::Pools pools{sm80_pool(kv.k), sm80_pool(kv.v)};
      error = kSm80Launches[instance_ - kFirstSm80](pools, params, may_split, stream);
    } else {
      CUtensorMap k_map, v_map;
      LD_RETURN_IF_ERROR(encode_pool(kv.k, k_map));
      LD_RETURN_IF_ERROR(encode_pool(kv.v, v_map));
      error = kSm90Launches[instance_](k_map, v_map, params, may_split, stream);
    }
    return cuda_status(error, "launch of gqa_decode");
  }

  static sm80::Pool sm80_pool(const TensorView& view) {
    return {static_cast<const uint16_t*>(view.data), stride_of(view, 0), stride_of(view, 1),
            stride_of(view, 2)};
  }

  // Of sm_80 all of a tile.
  int32_t box_tokens() const {
    const int32_t tile_tokens = kInstances[instance_].tokens();
    return instance_ >= kFirstSm80 ? tile_tokens : std::min(desc_.format.page_size, tile_tokens);
  }

  Status encode_pool(const TensorView& view, CUtensorMap& map) const {
    PagedHeads pool;
    pool.base = view.data;
    pool.dtype = desc_.format.dtype;
    pool.num_pages = view.shape[0];
    pool.num_heads = view.shape[1];
    pool.page_size = view.shape[2];
    pool.dim = view.shape[3];
    // The stride of a dimension of size 1 is not meant to be used, but has to be valid.
    const int64_t token = 2 * view.stride[2];
    pool.token_stride_bytes = token;
    pool.head_stride_bytes = view.shape[1] > 1 ? 2 * view.stride[1] : token;
    pool.page_stride_bytes = view.shape[0] > 1 ? 2 * view.stride[0] : token;
    pool.box_tokens = box_tokens();
    return encode_paged_heads(pool, map);
  }

  Params make_params(const DecodeArgs& args, const RunShape& shape, void* workspace) const {
    Params p{};
    set_decode_tensors(args, p);
    p.g_sink_logits = args.sink_logits;
    p.g_partials = static_cast<float*>(workspace);
    p.g_split_info = reinterpret_cast<int32_t*>(static_cast<char*>(workspace) + partials_bytes_);
    p.softmax_scale_log2e = desc_.softmax_scale * std::numbers::log2e_v<float>;
    if (desc_.soft_cap > 0.0f) {
      p.cap_in = desc_.softmax_scale / desc_.soft_cap;
      p.cap_out = desc_.soft_cap * std::numbers::log2e_v<float>;
    }
    p.sliding_window = static_cast<int32_t>(std::min(desc_.sliding_window, kLongestWindow));
    p.num_kv_heads = desc_.format.num_kv_heads;
    p.num_row_groups = shape.num_row_groups;
    p.cta_row_groups = shape.cta_row_groups;
    p.group = make_divisor(desc_.num_q_heads / desc_.format.num_kv_heads);
    p.num_row_blocks = make_divisor(shape.num_row_blocks);
    p.num_workers = make_divisor(shape.num_workers);
    p.num_splits = make_divisor(shape.num_splits);
    p.page_shift = std::countr_zero(static_cast<uint32_t>(desc_.format.page_size));
    p.box_shift = std::countr_zero(static_cast<uint32_t>(box_tokens()));
    p.causal = desc_.causal;
    p.fixed_splits = desc_.batch_invariant;
    p.merges_by_pair = shape.merges_by_pair;
    return p;
  }

  DecodeDesc desc_;
  DeviceInfo device_;
  int32_t instance_;
  int64_t partials_bytes_ = 0;
};

}  // namespace

int32_t instance_for(const DecodeDesc& desc, const DeviceInfo& device) {
  const Tile tile{desc.format.key_dim, desc.format.dtype == DType::kF16,
                  architecture_of(device) == Architecture::kSm80};
  const auto* const found = std::find(std::begin(kInstances), std::end(kInstances), tile);
  return found == std::end(kInstances) ? -1 : static_cast<int32_t>(found - kInstances);
}

RunShape run_shape(const DecodeDesc& desc, const DeviceInfo& device, int32_t batch,
                   int32_t query_len) {
  const int32_t group = desc.num_q_heads / desc.format.num_kv_heads;
  const Tile& tile = kInstances[instance_for(desc, device)];
  const auto row_blocks_of = [&](int32_t row_groups) {
    return static_cast<int32_t>(ceil_div(row_groups, tile.max_row_groups()));
  };
  RunShape shape;
  shape.num_row_groups = ceil_div(query_len * group, kGroupRows);
  shape.num_row_blocks = row_blocks_of(shape.num_row_groups);
  shape.cta_row_groups = ceil_div(shape.num_row_groups, shape.num_row_blocks);
  const int64_t max_pairs = int64_t{desc.max_batch} * desc.format.num_kv_heads;
  const int64_t pairs = int64_t{batch} * desc.format.num_kv_heads;
  const bool one_tile = desc.max_kv_len <= tile.tokens();
  const auto slots_of = [&](int32_t row_groups) {
    return device.num_sms * tile.ctas_per_sm(row_groups) / row_blocks_of(row_groups);
  };
  if (desc.batch_invariant) {
    // Neither the batch nor the query length of the run may change the splits.
    const auto most_groups = static_cast<int32_t>(ceil_div(desc.max_query_len * group, kGroupRows));
    shape.num_splits =
        static_cast<int32_t>(std::max<int64_t>(1, slots_of(most_groups) / max_pairs));
    shape.num_workers = static_cast<int32_t>(shape.num_splits * pairs);
    shape.may_split = shape.num_splits > 1 && !one_tile;
    shape.merges_by_pair = true;
    return shape;
  }
  shape.num_workers = std::max(1, slots_of(shape.num_row_groups));
  shape.may_split = shape.num_workers > 1 && !one_tile;
  shape.merges_by_pair = batch <= kMergeByPairBatch && pairs <= shape.num_workers;
  return shape;
}

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<GqaDecodeKernel>(desc, device);
}

}  // namespace longdecode::cuda::gqa
