#include "cuda/kernels/ffd_decode/decode_kernel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/integer_math.h"
#include "base/status_macros.h"
#include "cuda/host/architecture.h"
#include "cuda/host/decode_tensors.h"
#include "cuda/host/status.h"
#include "cuda/kernels/ffd_decode/launch.h"

namespace longdecode::cuda::ffd {
namespace {

using Launch = cudaError_t (*)(const Params&, int32_t, int32_t, cudaStream_t);

template <int... kIndices>
constexpr std::array<Launch, kNumInstances> make_launches(std::integer_sequence<int, kIndices...>) {
  return {launch<kIndices>...};
}
constexpr std::array<Launch, kNumInstances> kLaunches =
    make_launches(std::make_integer_sequence<int, kNumInstances>());

// Bytes of codes in flight per SM: more only adds latency, less does not fill the memory.
constexpr int64_t kBytesInFlight = 73728;
constexpr int64_t kAlignment = 256;
constexpr int32_t kTileTokens = 16;

// The instance with the fewest rows that serves num_rows.
int32_t instance_for(const DecodeDesc& desc, const DeviceInfo& device, int32_t num_rows) {
  const bool is_sm80 = architecture_of(device) == Architecture::kSm80;
  int32_t best = -1;
  for (int32_t i = 0; i < kNumInstances; ++i) {
    const Tile& tile = kInstances[i];
    if (tile.head_dim != desc.format.key_dim || tile.is_sm80 != is_sm80) continue;
    if (tile.is_f16 != (desc.format.dtype == DType::kF16)) continue;
    if (tile.rows < 8 && tile.rows < num_rows) continue;
    if (best < 0 || tile.rows < kInstances[best].rows) best = i;
  }
  return best;
}

int64_t partial_bytes(const Tile& tile) {
  return 4 * (int64_t{tile.rows} * tile.head_dim + 2 * tile.rows + 4);
}

class FfdDecodeKernel final : public DecodeKernel {
 public:
  FfdDecodeKernel(const DecodeDesc& desc, const DeviceInfo& device) : desc_(desc), device_(device) {
    for (int32_t query_len = 1; query_len <= desc.max_query_len; ++query_len) {
      const RunPlan plan = plan_run(desc, device, query_len);
      partials_bytes_ =
          std::max(partials_bytes_, plan.num_slots * partial_bytes(kInstances[plan.instance]));
    }
    partials_bytes_ = round_up(partials_bytes_, kAlignment);
    if (desc.max_batch > kSmallBatch) {
      firsts_bytes_ = round_up(4 * (int64_t{desc.max_batch} + 1), kAlignment);
    }
  }

  int64_t workspace_bytes() const override { return partials_bytes_ + 2 * firsts_bytes_; }

  Status init(void* workspace, StreamHandle stream) override {
    if (partials_bytes_ == 0) return Status();
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    // Words of all ones are empty.
    return cuda_status(
        cudaMemsetAsync(workspace, 0xff, partials_bytes_, static_cast<cudaStream_t>(stream)),
        "cudaMemsetAsync of the partial results");
  }

  Status run(const DecodeArgs& args, void* workspace, StreamHandle stream_handle) override {
    if (args.batch.batch == 0) return Status();
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const RunPlan plan =
        plan_run(desc_, device_, desc_.batch_invariant ? desc_.max_query_len : args.query_len);
    const Params params = make_params(args, plan, static_cast<char*>(workspace));
    if (args.stats.kept_tiles != nullptr) {
      const int64_t words =
          int64_t{params.batch} * params.num_kv_heads * args.stats.kept_tiles_stride;
      LD_RETURN_IF_ERROR(cuda_status(cudaMemsetAsync(args.stats.kept_tiles, 0, 4 * words, stream),
                                     "cudaMemsetAsync of stats"));
    }
    if (params.batch > kSmallBatch) {
      LD_RETURN_IF_ERROR(cuda_status(launch_schedule(params, stream), "launch of ffd_schedule"));
    }
    return cuda_status(kLaunches[plan.instance](params, device_.num_sms, plan.shared_bytes, stream),
                       "launch of ffd_decode");
  }

 private:
  void set_cache(const DecodeArgs& args, Params& p) const {
    const KvLayerView& kv = args.kv;
    p.g_chunks = kv.chunks;
    p.chunk_page_stride = kv.chunk_page_stride_bytes;
    p.g_residuals = kv.residuals;
    p.residual_page_stride = kv.residual_page_stride_bytes;
    p.g_v = static_cast<const uint16_t*>(kv.v.data);
    p.v_page_stride = stride_of(kv.v, 0);
    p.v_head_stride = stride_of(kv.v, 1);
    p.v_token_stride = stride_of(kv.v, 2);
    p.g_recent_k = static_cast<const uint16_t*>(kv.recent_k.data);
    p.recent_slot_stride = stride_of(kv.recent_k, 0);
    p.recent_head_stride = stride_of(kv.recent_k, 1);
    p.recent_token_stride = stride_of(kv.recent_k, 2);
    p.page_shift = std::countr_zero(static_cast<uint32_t>(desc_.format.page_size));
    p.page_tiles = desc_.format.page_size / kTileTokens;
    p.chunk_bytes = static_cast<int32_t>(desc_.format.chunk_bytes());
    p.code_bytes = p.chunk_bytes - 4 * desc_.format.key_dim;
    p.ring_tokens = desc_.format.recent_ring_tokens();
    p.g_slots = args.batch.slots;
  }

  void set_statistics(const DecodeArgs& args, Params& p) const {
    p.g_tokens_scanned = args.stats.tokens_scanned;
    p.g_tokens_attended = args.stats.tokens_attended;
    p.g_bytes_read = args.stats.bytes_read;
    p.g_pseudo_max = args.stats.pseudo_max;
    p.g_dropped_mass_bound = args.stats.dropped_mass_bound;
    p.g_kept_tiles = args.stats.kept_tiles;
    p.kept_tiles_stride = args.stats.kept_tiles_stride;
  }

  Params make_params(const DecodeArgs& args, const RunPlan& plan, char* workspace) const {
    Params p{};
    set_decode_tensors(args, p);
    set_cache(args, p);
    set_statistics(args, p);
    if (args.q.shape[2] == 1 || p.q_head_stride == args.q.shape[3]) {
      p.prefetch_query_bytes = 2 * args.q.shape[2] * args.q.shape[3];
    }
    p.g_partials = reinterpret_cast<float*>(workspace);
    p.g_first_items = reinterpret_cast<int32_t*>(workspace + partials_bytes_);
    p.g_first_slots = p.g_first_items + firsts_bytes_ / 4;
    p.softmax_scale = desc_.softmax_scale;
    p.softmax_scale_log2e = desc_.softmax_scale * std::numbers::log2e_v<float>;
    p.is_dense = desc_.method == Method::kDense;
    p.attends_all = p.is_dense || std::isinf(desc_.ffd.delta);
    p.delta = desc_.ffd.delta;
    p.delta_unscaled = desc_.ffd.delta / desc_.softmax_scale;
    p.margin_sigmas = desc_.ffd.margin_sigmas;
    p.certified = desc_.ffd.certified;
    // Beyond the longest sequence they mean the same, and sums with them do not overflow.
    const auto longest = static_cast<int32_t>(desc_.max_kv_len);
    p.sink_tokens = p.is_dense ? 0 : std::min(desc_.ffd.sink_tokens, longest);
    p.recent_tokens = std::min(desc_.ffd.recent_tokens, longest);
    p.num_q_heads = desc_.num_q_heads;
    p.num_kv_heads = desc_.format.num_kv_heads;
    p.group = p.num_q_heads / p.num_kv_heads;
    p.group_inverse = 65536u / static_cast<uint32_t>(p.group) + 1;
    const int32_t rows = kInstances[plan.instance].rows;
    p.num_row_blocks = static_cast<int32_t>(ceil_div(p.query_len * p.group, rows));
    p.num_splits_target = device_.num_sms;
    p.most_splits = make_divisor(static_cast<int32_t>(
        device_.num_sms / (int64_t{p.batch} * p.num_kv_heads * p.num_row_blocks)));
    p.pages_per_split = plan.pages_per_split;
    p.num_stages = plan.num_stages;
    p.sixteen = 16;
    p.causal = desc_.causal;
    return p;
  }

  DecodeDesc desc_;
  DeviceInfo device_;
  int64_t partials_bytes_ = 0, firsts_bytes_ = 0;
};

}  // namespace

RunPlan plan_run(const DecodeDesc& desc, const DeviceInfo& device, int32_t query_len) {
  RunPlan plan;
  const int32_t num_rows = query_len * desc.num_q_heads / desc.format.num_kv_heads;
  plan.instance = instance_for(desc, device, num_rows);
  if (plan.instance < 0) return plan;
  const Tile& tile = kInstances[plan.instance];
  plan.num_row_blocks = static_cast<int32_t>(ceil_div(num_rows, tile.rows));

  // See schedule.cuh: at most one item a CTA where every (sequence, head) can have one, else twice
  // the 4 items a CTA that crowded_pages_per_split aims at.
  const int64_t pairs = int64_t{desc.max_batch} * desc.format.num_kv_heads * plan.num_row_blocks;
  plan.num_slots = pairs > device.num_sms ? 8 * int64_t{device.num_sms} : device.num_sms;
  if (desc.batch_invariant) {
    const int64_t num_splits = std::max<int64_t>(1, device.num_sms / pairs);
    const int64_t pages = ceil_div(desc.max_kv_len, desc.format.page_size);
    plan.pages_per_split = static_cast<int32_t>(ceil_div(pages, num_splits));
    plan.num_slots = num_splits > 1 ? pairs * num_splits : 0;
  }

  const int64_t scan_warps = num_scan_warps(tile);
  const int64_t chunk_bytes = desc.format.chunk_bytes() * scan_warps;
  const int64_t query_bytes = int64_t{plan.num_row_blocks} * 16 * tile.head_dim;
  const int64_t fixed_bytes =
      kMaxStorageBytes + num_attend_warps(tile) * kSlots * slot_bytes(tile.head_dim) + query_bytes;
  const int64_t wanted = std::max<int64_t>(2, (kBytesInFlight + chunk_bytes / 2) / chunk_bytes);
  const int64_t possible = std::max<int64_t>(0, device.shared_memory_bytes - fixed_bytes);
  plan.num_stages =
      static_cast<int32_t>(std::min({wanted, possible / chunk_bytes, int64_t{kMaxStages}}));
  plan.shared_bytes =
      static_cast<int32_t>(fixed_bytes + std::max(1, plan.num_stages) * chunk_bytes);
  return plan;
}

std::unique_ptr<DecodeKernel> make_decode_kernel(const DecodeDesc& desc, const DeviceInfo& device) {
  return std::make_unique<FfdDecodeKernel>(desc, device);
}

}  // namespace longdecode::cuda::ffd
